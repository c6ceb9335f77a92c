"""A checkpoint that is not what it says it is: each defect is refused by name, before any tensor is used."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fasttrack_validation.contracts.kimi_k3.layer_weights import Shard
from fasttrack_validation.contracts.kimi_k3.weights.checkpoint import Checkpoint
from fasttrack_validation.contracts.kimi_k3.weights.names import ALog
from fasttrack_validation.contracts.kimi_k3.weights.shard import load_layer, load_model
from fasttrack_validation.errors import UserError

INDEX = "model.safetensors.index.json"
LAYER_0 = "language_model.model.layers.0."
LAYER_3 = "language_model.model.layers.3."
EXPERT = LAYER_3 + "block_sparse_moe.experts.1."


def open_small(directory: Path, **options) -> Checkpoint:
    return Checkpoint(directory, layers=(0, 3), **options)


def refusal(directory: Path, **options) -> UserError:
    with pytest.raises(UserError) as caught:
        open_small(directory, **options)
    return caught.value


def weight_map(directory: Path) -> dict[str, str]:
    return json.loads((directory / INDEX).read_text())["weight_map"]


def set_weight_map(directory: Path, names: dict[str, str]) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


def edit_shard(directory: Path, name: str, edit: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """Rewrites the shard that holds `name`; index unchanged."""
    path = directory / weight_map(directory)[name]
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    edit(tensors)
    save_file(tensors, path)
    return path


def replace_tensor(directory: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    return edit_shard(directory, name, lambda tensors: tensors.update({name: change(tensors[name]).contiguous()}))


def rename_tensor(directory: Path, name: str, new: str) -> None:
    """Consistently, in the shard and in the index."""
    edit_shard(directory, name, lambda tensors: tensors.update({new: tensors.pop(name)}))
    set_weight_map(directory, {new if key == name else key: file for key, file in weight_map(directory).items()})


def test_honest_twin_opens_and_loads(small_checkpoint):
    replace_tensor(small_checkpoint, LAYER_0 + "self_attn.A_log", lambda tensor: tensor)
    checkpoint = open_small(small_checkpoint)
    assert set(load_model(checkpoint, Shard()).layers) == {0, 3}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (EXPERT + "w2.weight_scale", "U8 [64, 16]"),
        (LAYER_0 + "self_attn.dt_bias", "F32 [512]"),
        ("language_model.lm_head.weight", "BF16 [512, 128]"),
    ],
)
def test_missing_tensor(small_checkpoint, name, expected):
    edit_shard(small_checkpoint, name, lambda tensors: tensors.pop(name))
    set_weight_map(small_checkpoint, {key: file for key, file in weight_map(small_checkpoint).items() if key != name})
    what = refusal(small_checkpoint).what
    assert f"{INDEX}: {name}: missing: found nothing like it, expected {expected}" in what


def test_renamed_packed_experts_are_not_skipped(small_checkpoint):
    rename_tensor(small_checkpoint, EXPERT + "w1.weight_packed", EXPERT + "w1.weight")
    what = refusal(small_checkpoint).what
    assert f"{EXPERT}w1.weight_packed: missing: found {EXPERT}w1.weight in its module" in what
    assert "expected U8 [512, 32]" in what


def test_every_renamed_expert_is_counted(small_checkpoint):
    for expert in (0, 3):
        name = f"{LAYER_3}block_sparse_moe.experts.{expert}.w1.weight_packed"
        rename_tensor(small_checkpoint, name, name.removesuffix("_packed"))
    assert "missing (and 1 more)" in refusal(small_checkpoint).what


def test_extra_tensor(small_checkpoint):
    name = LAYER_0 + "self_attn.q_proj.bias"
    file = weight_map(small_checkpoint)[LAYER_0 + "self_attn.q_proj.weight"]
    edit_shard(small_checkpoint, LAYER_0 + "self_attn.q_proj.weight", lambda held: held.update({name: torch.ones(512)}))
    set_weight_map(small_checkpoint, weight_map(small_checkpoint) | {name: file})
    assert f"{INDEX}: {name}: found, expected no such tensor" in refusal(small_checkpoint).what


def test_extra_tensor_that_the_index_hides(small_checkpoint):
    name = LAYER_0 + "self_attn.q_proj.bias"
    path = edit_shard(
        small_checkpoint, LAYER_0 + "self_attn.q_proj.weight", lambda held: held.update({name: torch.ones(512)})
    )
    assert refusal(small_checkpoint).what == f"{path}: {name}: found in this file, expected nowhere by {INDEX}"


def test_the_vision_tower_is_not_ours_to_judge(small_checkpoint):
    anchor, name = "language_model.lm_head.weight", "vision_tower.patch_embed.proj.weight"
    edit_shard(small_checkpoint, anchor, lambda held: held.update({name: torch.ones(3)}))
    names = weight_map(small_checkpoint)
    set_weight_map(small_checkpoint, names | {name: names[anchor]})
    assert open_small(small_checkpoint).skipped == {"vision_tower.": 1}


def test_a_tensor_that_nobody_knows_is_refused_wherever_it_lies(small_checkpoint):
    anchor, name = "language_model.lm_head.weight", "draft_model.layers.0.weight"
    names = weight_map(small_checkpoint)
    set_weight_map(small_checkpoint, names | {name: names[anchor]})
    found = refusal(small_checkpoint)
    assert name in found.what and "expected no such tensor" in found.what
    assert "vision_tower., mm_projector." in found.how
    set_weight_map(small_checkpoint, names)
    path = edit_shard(small_checkpoint, anchor, lambda held: held.update({name: torch.ones(3)}))
    assert refusal(small_checkpoint).what == f"{path}: {name}: found in this file, expected nowhere by {INDEX}"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name", [LAYER_0 + "self_attn.o_proj.weight", LAYER_3 + "block_sparse_moe.gate.e_score_correction_bias",
             "language_model.lm_head.weight"],
)  # fmt: skip
def test_weights_that_are_not_finite_are_refused_by_name(small_checkpoint, name, bad):
    def spoil(tensor):
        tensor.view(-1)[-2:] = bad
        return tensor

    path = replace_tensor(small_checkpoint, name, spoil)
    with pytest.raises(UserError) as caught:
        load_model(open_small(small_checkpoint), Shard())
    assert caught.value.what.startswith(f"{path}: {name}: found 2 values that are NaN or infinite")


def test_the_largest_weights_there_are_load(small_checkpoint):
    name = "language_model.lm_head.weight"
    largest = torch.finfo(torch.bfloat16).max
    replace_tensor(small_checkpoint, name, lambda tensor: torch.full_like(tensor, largest))
    assert bool((load_model(open_small(small_checkpoint), Shard()).lm_head == largest).all())


def edit_config(directory: Path, edit: Callable[[dict], None]) -> None:
    config = json.loads((directory / "config.json").read_text())
    edit(config)
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def quantised(config: dict) -> dict:
    return config["text_config"]["quantization_config"]


def weights_of(config: dict) -> dict:
    return quantised(config)["config_groups"]["group_0"]["weights"]


CONFIGS = {
    "another model": (lambda c: c.update(model_type="kimi_k25"), "model_type", "'kimi_k3'"),
    "another text model": (lambda c: c["text_config"].update(model_type="deepseek_v3"), "model_type", "'kimi_linear'"),
    "no quantisation": (lambda c: c["text_config"].pop("quantization_config"), "quantization_config is missing", ""),
    "another library": (lambda c: quantised(c).update(quant_method="awq"), "quant_method", "'compressed-tensors'"),
    "groups of 16": (lambda c: weights_of(c).update(group_size=16), "group_size", "32"),
    "eight bits": (lambda c: weights_of(c).update(num_bits=8), "num_bits", "4"),
    "integers": (lambda c: weights_of(c).update(type="int"), "type", "'float'"),
    "NVFP4": (
        lambda c: quantised(c)["config_groups"]["group_0"].update(format="nvfp4-pack-quantized"),
        "format", "'mxfp4-pack-quantized'",
    ),
    "no format at all": (lambda c: quantised(c)["config_groups"]["group_0"].pop("format"), "format must be", "mxfp4"),
    "scales with a mantissa": (lambda c: weights_of(c).update(scale_dtype="torch.float8_e4m3fn"), "scale_dtype", "uint8"),
    "activations too": (
        lambda c: quantised(c)["config_groups"]["group_0"].update(input_activations={"num_bits": 4}),
        "input_activations", "null",
    ),
    "a second group": (
        lambda c: quantised(c)["config_groups"].update(group_1={"weights": {**weights_of(c), "num_bits": 8}}),
        "group_1.weights.num_bits", "4",
    ),
    "another one on top": (
        lambda c: c.update(quantization_config={**quantised(c), "quant_method": "gptq"}), "quant_method", "compressed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_of_another_format_is_refused_by_key(small_checkpoint, case):
    edit, key, expected = CONFIGS[case]
    edit_config(small_checkpoint, edit)
    found = refusal(small_checkpoint).what
    assert found.startswith(str(small_checkpoint / "config.json")) and key in found and expected in found


def test_a_configuration_rewritten_by_tools_opens(small_checkpoint):
    """The format on top and once for all groups; keys that say nothing about how weights are stored."""

    def edit(config):
        found = config["text_config"].pop("quantization_config")
        found["config_groups"]["group_0"].pop("format")
        found |= {"format": "mxfp4-pack-quantized", "ignore": ["re:.*self_attn.*"], "quantization_status": "compressed"}
        config["quantization_config"] = found

    edit_config(small_checkpoint, edit)
    open_small(small_checkpoint)


@pytest.mark.parametrize(
    ("name", "change", "found", "expected"),
    [
        (LAYER_0 + "self_attn.o_proj.weight", lambda t: t.T, "BF16 [512, 128]", "BF16 [128, 512]"),
        (LAYER_0 + "self_attn.q_conv1d.weight", lambda t: t[:, 0], "F32 [512, 4]", "F32 [512, 1, 4]"),
        (LAYER_3 + "mlp_res_proj.weight", lambda t: t[0], "BF16 [128]", "BF16 [1, 128]"),
        (LAYER_0 + "self_attn.dt_bias", lambda t: t.bfloat16(), "BF16 [512]", "F32 [512]"),
        (LAYER_3 + "block_sparse_moe.gate.weight", lambda t: t.float(), "F32 [5, 128]", "BF16 [5, 128]"),
        (EXPERT + "w1.weight_packed", lambda t: t.view(torch.int8), "I8 [512, 32]", "U8 [512, 32]"),
        # Groups of 16, as in NVFP4, and of 64.
        (EXPERT + "w1.weight_scale", lambda t: t.repeat_interleave(2, 1), "U8 [512, 4]", "U8 [512, 2]"),
        (EXPERT + "w2.weight_scale", lambda t: t[:, ::2], "U8 [64, 8]", "U8 [64, 16]"),
        # One scale for 32 rows instead of 32 columns.
        (EXPERT + "w2.weight_scale", lambda t: t.reshape(2, 512), "U8 [2, 512]", "U8 [64, 16]"),
        (EXPERT + "w2.weight_scale", lambda t: t.view(torch.float8_e8m0fnu), "F8_E8M0 [64, 16]", "U8 [64, 16]"),
        (LAYER_0 + "self_attn.A_log", lambda t: t[:15], "F32 [15]", "F32 [16] (a longer tail of zeros is allowed)"),
    ],
)
def test_misshapen_or_mistyped_tensor(small_checkpoint, name, change, found, expected):
    path = replace_tensor(small_checkpoint, name, change)
    assert refusal(small_checkpoint).what == f"{path}: {name}: found {found}, expected {expected}"


def test_a_log_is_read_only_as_it_is_said_to_be_stored(small_checkpoint):
    name = LAYER_0 + "self_attn.A_log"
    assert "expected F32 [1, 1, 16, 1]" in refusal(small_checkpoint, a_log=ALog.BROADCAST).what
    vector = load_layer(open_small(small_checkpoint), 0, Shard()).attention.a_log
    replace_tensor(small_checkpoint, name, lambda t: t[:16].reshape(1, 1, 16, 1))
    error = refusal(small_checkpoint)
    assert "found F32 [1, 1, 16, 1]" in error.what
    assert error.how == "say how A_log is stored with a_log: vector, broadcast"
    checkpoint = open_small(small_checkpoint, a_log=ALog.BROADCAST)
    assert torch.equal(load_layer(checkpoint, 0, Shard()).attention.a_log, vector)
    second_half = load_layer(checkpoint, 0, Shard(tp=2, rank=1)).attention.a_log
    assert torch.equal(second_half, vector[8:])


def test_a_log_tail_must_be_zero(small_checkpoint):
    name = LAYER_0 + "self_attn.A_log"
    path = replace_tensor(small_checkpoint, name, lambda t: torch.cat([t[:-1], torch.ones(1)]))
    what = f"{path}: {name}: found entries other than zero behind the first 16, expected zeros"
    assert refusal(small_checkpoint).what == what


def test_scale_byte_255_is_refused_when_it_is_read(small_checkpoint):
    def spoil(scale: torch.Tensor) -> torch.Tensor:
        scale[70, 1] = 255
        return scale

    name = EXPERT + "w3.weight_scale"
    path = replace_tensor(small_checkpoint, name, spoil)
    checkpoint = open_small(small_checkpoint)
    with pytest.raises(UserError) as caught:
        load_layer(checkpoint, 3, Shard(tp=16, rank=2))
    assert caught.value.what.startswith(f"{path}: {name}: found scale byte 255")
    # Row 70 belongs to rank 2 alone: the others do not read it.
    load_layer(checkpoint, 3, Shard(tp=16, rank=1))


@pytest.mark.parametrize("left", [0, 7, 100, -1])
def test_truncated_file(small_checkpoint, left):
    path = small_checkpoint / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    what = refusal(small_checkpoint).what
    assert what.startswith(f"{path}: {LAYER_3}") and "truncated" in what


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_shorter_or_longer_file_is_taken(small_checkpoint, data):
    path = small_checkpoint / "model-00003-of-00003.safetensors"
    whole = path.read_bytes()
    length = data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) + 1, len(whole) + 64))
    path.write_bytes((whole + bytes(64))[:length])
    try:
        assert f"{path}: language_model." in refusal(small_checkpoint).what
    finally:
        path.write_bytes(whole)


def test_missing_shard(small_checkpoint):
    path = small_checkpoint / "model-00001-of-00003.safetensors"
    path.unlink()
    what = refusal(small_checkpoint).what
    assert what.startswith(f"{path}: {LAYER_0}") and "missing" in what


def test_shard_that_is_a_pipe(small_checkpoint):
    path = small_checkpoint / "model-00001-of-00003.safetensors"
    path.unlink()
    os.mkfifo(path)
    what = refusal(small_checkpoint).what
    assert what.startswith(f"{path}: {LAYER_0}") and "found something that is no regular file" in what


def test_shard_behind_a_link(small_checkpoint):
    path = small_checkpoint / "model-00001-of-00003.safetensors"
    path.symlink_to(path.rename(path.with_suffix(".blob")))
    load_model(open_small(small_checkpoint), Shard())


def test_index_that_names_a_file_without_the_tensor(small_checkpoint):
    name = EXPERT + "w1.weight_scale"
    wrong = "model-00001-of-00003.safetensors"
    set_weight_map(small_checkpoint, weight_map(small_checkpoint) | {name: wrong})
    assert refusal(small_checkpoint).what == (
        f"{small_checkpoint / wrong}: {name}: not found in this file, expected here by {INDEX}"
    )


def test_tensor_in_two_files(small_checkpoint):
    name = LAYER_0 + "self_attn.dt_bias"
    path = edit_shard(
        small_checkpoint, "language_model.lm_head.weight", lambda held: held.update({name: torch.ones(512)})
    )
    assert refusal(small_checkpoint).what == (
        f"{path}: {name}: found in this file, expected model-00001-of-00003.safetensors by {INDEX}"
    )


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/x.safetensors", "a/b.safetensors", "model.bin", ""])
def test_index_may_name_only_safetensors_files_beside_it(small_checkpoint, file):
    name = LAYER_0 + "self_attn.dt_bias"
    set_weight_map(small_checkpoint, weight_map(small_checkpoint) | {name: file})
    assert f"weight_map.{name}" in refusal(small_checkpoint).what


def test_missing_or_malformed_index(small_checkpoint):
    (small_checkpoint / INDEX).write_text('{"weight_map": ')
    assert f"{INDEX}:1: not valid JSON" in refusal(small_checkpoint).what
    (small_checkpoint / INDEX).write_text("{}")
    assert "weight_map: is missing" in refusal(small_checkpoint).what
    (small_checkpoint / INDEX).unlink()
    assert f"{INDEX}: cannot be read" in refusal(small_checkpoint).what


@pytest.mark.parametrize("key", ["activation_situ_beta", "activation_situ_linear_beta", "hidden_act"])
def test_situ_constants_only_in_the_wrapper_are_not_enough(small_checkpoint, key):
    path = small_checkpoint / "config.json"
    config = json.loads(path.read_text())
    config[key] = config["text_config"].pop(key)
    path.write_text(json.dumps(config))
    assert f"text_config.{key}: is missing" in refusal(small_checkpoint).what


def test_tied_embeddings_are_another_model(small_checkpoint):
    path = small_checkpoint / "config.json"
    path.write_text(path.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    assert "text_config.tie_word_embeddings" in refusal(small_checkpoint).what


def test_configuration_of_another_size(small_checkpoint):
    path = small_checkpoint / "config.json"
    published = path.read_text()
    path.write_text(published.replace('"num_experts": 5,', '"num_experts": 6,'))
    assert "experts.5.w1.weight_packed: missing (and 5 more)" in refusal(small_checkpoint).what
    path.write_text(published.replace('"num_experts": 5,', '"num_experts": 4,'))
    assert "experts.4.w1.weight_packed: found (and 5 more), expected no such" in refusal(small_checkpoint).what
    path.write_text(published.replace('"intermediate_size": 768,', '"intermediate_size": 640,'))
    assert "mlp.gate_proj.weight: found BF16 [768, 128], expected BF16 [640, 128]" in refusal(small_checkpoint).what


def test_only_the_opened_part_is_needed_and_readable(small_checkpoint):
    (small_checkpoint / "model-00002-of-00003.safetensors").unlink()
    (small_checkpoint / "model-00003-of-00003.safetensors").unlink()
    checkpoint = Checkpoint(small_checkpoint, layers=[0], ends=False)
    load_layer(checkpoint, 0, Shard())
    with pytest.raises(UserError, match=r"layers\.3.*outside the part that was opened"):
        load_layer(checkpoint, 3, Shard())
    with pytest.raises(UserError, match=r"model\.layers\.1.*missing"):
        Checkpoint(small_checkpoint, layers=[1], ends=False)


@pytest.mark.parametrize("layer", [-1, 13])
def test_no_such_layer(small_checkpoint, layer):
    with pytest.raises(UserError, match=f"there is no layer {layer}"):
        Checkpoint(small_checkpoint, layers=[layer])
