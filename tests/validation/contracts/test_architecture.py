import json

import pytest
from fasttrack_validation.contracts.kimi_k3.architecture import CONFIG, Architecture
from fasttrack_validation.errors import UserError


@pytest.fixture(scope="module")
def architecture():
    return Architecture.from_config()


def test_published_constants(architecture):
    a = architecture
    assert (a.hidden_size, a.layers, a.vocab_size, a.max_positions) == (7168, 93, 163840, 2**20)
    assert (a.dense_intermediate_size, a.attn_res_block_size) == (33792, 12)
    assert (a.kda.heads, a.kda.head_dim, a.kda.conv_width, a.kda.gate_rank) == (96, 128, 4, 128)
    assert a.kda.gate_lower_bound == -5.0
    assert (a.mla.heads, a.mla.q_lora_rank, a.mla.kv_lora_rank) == (96, 1536, 512)
    assert (a.mla.qk_nope_head_dim, a.mla.qk_rope_head_dim, a.mla.v_head_dim) == (128, 64, 128)
    assert (a.moe.experts, a.moe.top_k, a.moe.shared_experts) == (896, 16, 2)
    assert (a.moe.latent_size, a.moe.expert_intermediate_size, a.moe.first_layer) == (3584, 3072, 1)
    assert (a.situ.beta, a.situ.linear_beta) == (4.0, 25.0)
    assert (a.eps.backbone, a.eps.kda_output, a.eps.kda_l2, a.eps.mla_q_a) == (1e-5, 1e-5, 1e-6, 1e-6)


def test_layer_kinds(architecture):
    kda = tuple(layer for layer in range(93) if (layer + 1) % 4 and layer != 92)
    assert len(kda) == 69
    assert architecture.kda_layers == kda
    assert architecture.mla_layers == (*range(3, 92, 4), 92)
    assert architecture.mla_layers[-2:] == (91, 92)


@pytest.mark.parametrize(("tp", "rows", "heads", "pad"), [(4, 12448, 24, 8), (8, 6288, 12, 4), (16, 3216, 6, 10)])
def test_shard(architecture, tp, rows, heads, pad):
    shard = architecture.kda_shard(tp)
    assert (shard.heads, shard.channels, shard.projection_rows) == (heads, 12288 // tp, rows)
    columns = shard.columns
    assert list(columns) == ["q", "k", "v", "g", "f_a", "beta", "pad"]
    widths = [part.stop - part.start for part in columns.values()]
    assert widths == [12288 // tp] * 4 + [128, heads, pad]
    starts = [part.start for part in columns.values()]
    assert starts == [sum(widths[:n]) for n in range(7)]


def test_shard_of_a_tp_that_does_not_divide_the_heads(architecture):
    with pytest.raises(UserError, match="TP 5"):
        architecture.kda_shard(5)


def changed(tmp_path, edit):
    """The published file with one textual edit, so that line numbers stay those of the file."""
    before, after = edit
    text = CONFIG.read_text()
    assert text.count(before) == 1
    path = tmp_path / "config.json"
    path.write_text(text.replace(before, after))
    return path, 1 + text[: text.index(before)].count("\n")


@pytest.mark.parametrize(
    ("edit", "key", "what"),
    [
        (('"hidden_size": 7168', '"hidden_size": "7168"'), "text_config.hidden_size", "valid integer, got '7168'"),
        (('"gate_lower_bound": -5.0', '"gate_lower_bound": 5.0'), "gate_lower_bound", "less than 0"),
        (('"short_conv_kernel_size": 4', '"short_conv_kernel_size": 4.5'), "short_conv_kernel_size", "integer"),
        (('"activation_situ_beta": 4.0', '"activation_situ_beta": null'), "activation_situ_beta", "valid number"),
        (('"use_full_rank_gate": true', '"use_full_rank_gate": false'), "use_full_rank_gate", "True"),
        (('"mla_use_nope": true', '"mla_use_nope": 1'), "mla_use_nope", "valid boolean, got 1"),
        (('"tie_word_embeddings": false', '"tie_word_embeddings": 0'), "tie_word_embeddings", "valid boolean, got 0"),
        (('"moe_layer_freq": 1', '"moe_layer_freq": true'), "moe_layer_freq", "valid integer, got True"),
        (('"topk_group": 1', '"topk_group": 2'), "topk_group", "should be 1, got 2"),
        (('"activation_situ_beta": 4.0', '"activation_situ_beta": Infinity'), "activation_situ_beta", "finite"),
        (('"rms_norm_eps": 1e-05', '"rms_norm_eps": 1e999'), "rms_norm_eps", "finite"),
        (('"num_experts_per_token": 16', '"num_experts_per_token": 897'), "num_experts_per_token", "at most"),
    ],
)
def test_a_field_that_does_not_fit_is_named_with_its_line(tmp_path, edit, key, what):
    path, line = changed(tmp_path, edit)
    with pytest.raises(UserError) as caught:
        Architecture.from_config(path)
    assert caught.value.what.startswith(f"{path}:{line}: ")
    assert key in caught.value.what and what in caught.value.what


def test_a_missing_field(tmp_path):
    path, _ = changed(tmp_path, ('    "q_lora_rank": 1536,\n', ""))
    with pytest.raises(UserError, match="text_config.q_lora_rank: is missing"):
        Architecture.from_config(path)


def test_more_layers_than_memory_holds(tmp_path):
    path, _ = changed(tmp_path, ('"num_hidden_layers": 93', '"num_hidden_layers": 1000000000000'))
    with pytest.raises(UserError, match="must hold each of 1 to 1000000000000 exactly once"):
        Architecture.from_config(path)


def test_a_layer_in_both_lists(tmp_path):
    data = json.loads(CONFIG.read_text())
    data["text_config"]["linear_attn_config"]["kda_layers"][-1] = 93
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="linear_attn_config: kda_layers and full_attn_layers must hold each"):
        Architecture.from_config(path)


def test_constants_outside_the_text_part_do_not_count(tmp_path):
    data = json.loads(CONFIG.read_text())
    data["activation_situ_beta"] = 1.0
    data["vision_config"] = {"hidden_size": 1024}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data))
    assert Architecture.from_config(path).situ.beta == 4.0
