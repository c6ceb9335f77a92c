"""Synthetic checkpoints: form, seeds, statistics of what a forward pass would see."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fasttrack_validation.contracts.kimi_k3.architecture import CONFIG, NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.layer_weights import Shard
from fasttrack_validation.contracts.kimi_k3.weights import mxfp4, synthetic, writer
from fasttrack_validation.contracts.kimi_k3.weights.checkpoint import Checkpoint
from fasttrack_validation.contracts.kimi_k3.weights.names import ALog
from fasttrack_validation.contracts.kimi_k3.weights.shard import load_layer
from fasttrack_validation.errors import UserError

LAYERS = (0, 3, 4, 12)
MOE = "language_model.model.layers.3.block_sparse_moe."


def digest(tensors: dict[str, torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(name.encode())
        sha.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("path", [CONFIG, NANO], ids=["real", "nano"])
def test_configuration_round_trip(path, tmp_path):
    architecture = Architecture.from_config(path)
    written = tmp_path / "config.json"
    written.write_text(json.dumps(writer.published_config(architecture)))
    assert Architecture.from_config(written) == architecture
    assert json.loads(written.read_text()) == json.loads(path.read_text())


def test_files_of_a_checkpoint(nano_checkpoint, nano):
    names = {path.name for path in nano_checkpoint.iterdir()}
    shards = {f"model-0000{number}-of-00005.safetensors" for number in range(1, 6)}
    assert names == shards | {"config.json", "model.safetensors.index.json"}
    assert Checkpoint(nano_checkpoint, layers=LAYERS).architecture == nano
    index = json.loads((nano_checkpoint / "model.safetensors.index.json").read_text())
    held = {name: path for path in shards for name in load_file(nano_checkpoint / path)}
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for path in shards for tensor in load_file(nano_checkpoint / path).values()
    )
    with pytest.raises(UserError, match=r"layers\.1.*missing"):
        Checkpoint(nano_checkpoint)


def test_a_layer_does_not_depend_on_its_company(nano_checkpoint, nano, tmp_path):
    synthetic.write(tmp_path / "one", nano, seed=3, layers=[4], ends=False)
    (alone,) = (tmp_path / "one").glob("*.safetensors")
    assert alone.name == "model-00001-of-00001.safetensors"
    assert digest(load_file(alone)) == digest(load_file(nano_checkpoint / "model-00003-of-00005.safetensors"))
    Checkpoint(tmp_path / "one", layers=[4], ends=False)


def test_seeds_and_names_decide_the_values(nano, tmp_path):
    for seed in (0, 1):
        synthetic.write(tmp_path / str(seed), nano, seed=seed, layers=[0], ends=False)
    first, second = (load_file(next((tmp_path / str(seed)).glob("*.safetensors"))) for seed in (0, 1))
    assert first.keys() == second.keys()
    assert not any(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(*(first[f"language_model.model.layers.0.self_attn.{name}_proj.weight"] for name in "qk"))


def test_a_directory_is_never_overwritten(nano, tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="exists already"):
        synthetic.write(tmp_path / "mine", nano, layers=[0])


@pytest.mark.parametrize("layer", [-1, 13])
def test_no_such_layer_is_written(nano, tmp_path, layer):
    with pytest.raises(UserError, match=f"there is no layer {layer}"):
        synthetic.write(tmp_path / "none", nano, layers=[layer])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_nothing(nano, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        synthetic.write(tmp_path / "deep" / "never", nano, layers=[0], ends=False)
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize("storage", ALog)
def test_a_log_in_either_storage_is_the_same_for_every_head(nano, tmp_path, storage):
    synthetic.write(tmp_path / "x", nano, layers=[0], ends=False, a_log=storage)
    (shard,) = (tmp_path / "x").glob("*.safetensors")
    stored = load_file(shard)["language_model.model.layers.0.self_attn.A_log"]
    assert stored.shape == {ALog.VECTOR: (32,), ALog.BROADCAST: (1, 1, 16, 1)}[storage]
    loaded = load_layer(Checkpoint(tmp_path / "x", layers=[0], ends=False, a_log=storage), 0, Shard()).attention.a_log
    assert torch.equal(loaded, stored.flatten()[:16])
    assert (loaded >= 0).all() and (loaded <= 2.7726).all(), "log of 1 to 16"


def test_projections_of_a_normalised_row_are_of_order_one(nano_checkpoint):
    random = torch.Generator().manual_seed(0)
    for path in nano_checkpoint.glob("*.safetensors"):
        for name, weight in load_file(path).items():
            if name.endswith("_proj.weight") and len(weight) > 1:
                rows = torch.randn(64, weight.shape[1], generator=random)
                assert 0.8 < (rows @ weight.float().T).std() < 1.25, name


def test_experts_are_mxfp4_of_their_own_scale(nano_checkpoint):
    layer = load_layer(Checkpoint(nano_checkpoint, layers=LAYERS), 3, Shard()).mlp
    for matrix, k in ((layer.w13, 64), (layer.w2, 512)):
        values = mxfp4.dequantise(matrix.packed, matrix.scale)
        assert values.std().item() == pytest.approx(k**-0.5, rel=0.03)
        assert len(matrix.scale.unique()) > 1 and len(mxfp4.unpack(matrix.packed).unique()) == 16


def routing(checkpoint: Path, tokens: int = 4096) -> torch.Tensor:
    """How often each expert of layer 3 is among the best four, for random normalised tokens."""
    moe = load_layer(Checkpoint(checkpoint, layers=LAYERS), 3, Shard()).mlp
    x = torch.randn(tokens, moe.router.shape[1], generator=torch.Generator().manual_seed(5))
    scores = torch.sigmoid(x @ moe.router.float().T) + moe.correction_bias
    return scores.topk(4).indices.flatten().bincount(minlength=32) / tokens


def test_routing_is_spread_but_uneven(nano_checkpoint):
    share = routing(nano_checkpoint)
    assert share.min() > 0, "every expert is used"
    assert share.max() < 0.6, "none is used nearly always"
    assert share.max() > 4 * share.min(), "some are far more popular"


def test_ties(nano, nano_checkpoint, tmp_path):
    synthetic.write(tmp_path / "ties", nano, seed=3, layers=[3], ends=False, ties=True)
    tied = load_layer(Checkpoint(tmp_path / "ties", layers=[3], ends=False), 3, Shard()).mlp
    free = load_layer(Checkpoint(nano_checkpoint, layers=LAYERS), 3, Shard()).mlp
    assert torch.equal(tied.router[0::2], tied.router[1::2])
    assert torch.equal(tied.correction_bias[0::2], tied.correction_bias[1::2])
    assert torch.equal(tied.router[0::2], free.router[0::2])
    assert torch.equal(tied.w13.packed, free.w13.packed), "tied experts are different experts"
    assert not torch.equal(free.router[0::2], free.router[1::2])
