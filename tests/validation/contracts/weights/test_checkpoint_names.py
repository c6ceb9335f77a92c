"""The published tensors, against figures that do not come from this code."""

import math

import pytest

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.weights.names import ALog, DType, TensorInfo, expected

SIZES = {DType.BF16: 2, DType.F32: 4, DType.U8: 1}


@pytest.fixture(scope="module")
def real() -> Architecture:
    return Architecture.from_config()


@pytest.fixture(scope="module")
def tensors(real) -> dict[str, TensorInfo]:
    return expected(real)


def test_sizes_add_up_to_the_published_ones(tensors):
    stored = sum(math.prod(info.shape) * SIZES[info.dtype] for info in tensors.values())
    assert round(stored / 1e12, 2) == 1.56
    elements_a_byte = {"weight_packed": 2, "weight_scale": 0}
    parameters = sum(
        math.prod(info.shape) * elements_a_byte.get(name.rpartition(".")[2], 1) for name, info in tensors.items()
    )
    assert round(parameters / 1e12, 1) == 2.8


def test_count_of_tensors(tensors):
    # 6 around each layer; KDA 5 square and low-rank projections, f_a, f_b, beta -> 7, o, 3 convolutions, A_log,
    # dt_bias, o_norm -> 14; MLA 8; dense 3; MoE 5 + 3 shared + 6 an expert; 5 ends.
    assert len(tensors) == 93 * 6 + 69 * 14 + 24 * 8 + 3 + 92 * (5 + 3 + 896 * 6) + 5


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("model.embed_tokens.weight", "BF16", (163840, 7168)),
        ("model.output_attn_res_proj.weight", "BF16", (1, 7168)),
        ("model.norm.weight", "BF16", (7168,)),
        ("lm_head.weight", "BF16", (163840, 7168)),
        ("model.layers.0.mlp.down_proj.weight", "BF16", (7168, 33792)),
        ("model.layers.0.self_attention_res_norm.weight", "BF16", (7168,)),
        ("model.layers.92.mlp_res_proj.weight", "BF16", (1, 7168)),
        ("model.layers.0.self_attn.k_conv1d.weight", "F32", (12288, 1, 4)),
        ("model.layers.90.self_attn.f_a_proj.weight", "BF16", (128, 7168)),
        ("model.layers.90.self_attn.f_b_proj.weight", "BF16", (12288, 128)),
        ("model.layers.90.self_attn.b_proj.weight", "BF16", (96, 7168)),
        ("model.layers.90.self_attn.dt_bias", "F32", (12288,)),
        ("model.layers.90.self_attn.o_norm.weight", "BF16", (128,)),
        ("model.layers.92.self_attn.q_b_proj.weight", "BF16", (18432, 1536)),
        ("model.layers.92.self_attn.kv_a_proj_with_mqa.weight", "BF16", (576, 7168)),
        ("model.layers.92.self_attn.kv_b_proj.weight", "BF16", (24576, 512)),
        ("model.layers.92.self_attn.g_proj.weight", "BF16", (12288, 7168)),
        ("model.layers.1.block_sparse_moe.gate.weight", "BF16", (896, 7168)),
        ("model.layers.1.block_sparse_moe.gate.e_score_correction_bias", "F32", (896,)),
        ("model.layers.1.block_sparse_moe.routed_expert_down_proj.weight", "BF16", (3584, 7168)),
        ("model.layers.1.block_sparse_moe.routed_expert_norm.weight", "BF16", (3584,)),
        ("model.layers.1.block_sparse_moe.routed_expert_up_proj.weight", "BF16", (7168, 3584)),
        ("model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", "BF16", (6144, 7168)),
        ("model.layers.1.block_sparse_moe.experts.895.w3.weight_packed", "U8", (3072, 1792)),
        ("model.layers.1.block_sparse_moe.experts.895.w3.weight_scale", "U8", (3072, 112)),
        ("model.layers.1.block_sparse_moe.experts.0.w2.weight_packed", "U8", (3584, 1536)),
        ("model.layers.1.block_sparse_moe.experts.0.w2.weight_scale", "U8", (3584, 96)),
    ],
)
def test_published_tensor(tensors, name, dtype, shape):
    assert tensors[f"language_model.{name}"] == TensorInfo(shape, DType(dtype))


def test_kda_and_mla_layers_differ_and_only_layer_0_is_dense(tensors):
    def layers_with(suffix: str) -> list[int]:
        return [layer for layer in range(93) if f"language_model.model.layers.{layer}.{suffix}" in tensors]

    assert layers_with("self_attn.A_log") == [layer for layer in range(92) if layer % 4 != 3]
    assert layers_with("self_attn.q_a_proj.weight") == [*range(3, 92, 4), 92]
    assert layers_with("mlp.gate_proj.weight") == [0]
    assert layers_with("block_sparse_moe.gate.weight") == list(range(1, 93))


def test_part_of_a_model(real):
    assert {name.split(".")[3] for name in expected(real, [2, 5], ends=False)} == {"2", "5"}
    assert len(expected(real, [])) == 5


@pytest.mark.parametrize(
    ("storage", "shape", "admitted"),
    [
        (ALog.VECTOR, (96,), True),
        (ALog.VECTOR, (128,), True),
        (ALog.VECTOR, (95,), False),
        (ALog.VECTOR, (1, 1, 96, 1), False),
        (ALog.VECTOR, (), False),
        (ALog.BROADCAST, (1, 1, 96, 1), True),
        (ALog.BROADCAST, (96,), False),
        (ALog.BROADCAST, (1, 1, 128, 1), False),
    ],
)
def test_a_log_storage(real, storage, shape, admitted):
    info = expected(real, [0], a_log=storage)["language_model.model.layers.0.self_attn.A_log"]
    assert info.admits(shape, "F32") is admitted
    assert not info.admits(shape, "BF16")
