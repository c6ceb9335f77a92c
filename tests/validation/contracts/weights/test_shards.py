"""Every rank's tensors against the stored ones, put together again by hand-written row arithmetic."""

import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from weakref import ref

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.layer_weights import (
    DenseWeights,
    KdaWeights,
    LayerWeights,
    MlaWeights,
    ModelWeights,
    MoeWeights,
    Shard,
)
from fasttrack_validation.contracts.kimi_k3.weights import mxfp4
from fasttrack_validation.contracts.kimi_k3.weights.checkpoint import TORCH_DTYPES, Checkpoint
from fasttrack_validation.contracts.kimi_k3.weights.names import ALog, expected
from fasttrack_validation.contracts.kimi_k3.weights.shard import load_ends, load_layer, load_model
from fasttrack_validation.errors import UserError

LAYERS = (0, 3, 4, 12)
PADDED = 64


@pytest.fixture(scope="module")
def checkpoint(nano_of_five_experts: Path) -> Checkpoint:
    return Checkpoint(nano_of_five_experts, layers=LAYERS)


@pytest.fixture(scope="module")
def stored(nano_of_five_experts: Path) -> dict[str, Tensor]:
    tensors = {}
    for path in nano_of_five_experts.glob("*.safetensors"):
        tensors |= {name.removeprefix("language_model."): tensor for name, tensor in load_file(path).items()}
    return tensors


@pytest.fixture(scope="module", params=[1, 2, 8, 16])
def ranks(request, checkpoint) -> list[ModelWeights]:
    tp = request.param
    return [load_model(checkpoint, Shard(tp, rank), min_expert_intermediate=PADDED) for rank in range(tp)]


def tensors_of(weights) -> list[Tensor]:
    if isinstance(weights, Tensor):
        return [weights]
    if isinstance(weights, dict):
        return [tensor for item in weights.values() for tensor in tensors_of(item)]
    if is_dataclass(weights):
        return [tensor for field in fields(weights) for tensor in tensors_of(getattr(weights, field.name))]
    raise TypeError(type(weights))


def rows(parts: list[Tensor], start: int, stop: int) -> Tensor:
    return torch.cat([part[start:stop] for part in parts])


def replicated(parts: list[Tensor]) -> Tensor:
    assert all(torch.equal(part, parts[0]) for part in parts)
    return parts[0]


def test_ends(ranks, stored):
    assert torch.equal(replicated([rank.embedding for rank in ranks]), stored["model.embed_tokens.weight"])
    assert torch.equal(torch.cat([rank.lm_head for rank in ranks]), stored["lm_head.weight"])
    for rank in ranks:
        assert torch.equal(rank.final_mix.res_norm, stored["model.output_attn_res_norm.weight"])
        assert torch.equal(rank.final_mix.res_proj[None], stored["model.output_attn_res_proj.weight"])
        assert torch.equal(rank.final_mix.out_norm, stored["model.norm.weight"])


@pytest.mark.parametrize("layer", LAYERS)
def test_mixes(ranks, stored, layer):
    prefix = f"model.layers.{layer}."
    for rank in ranks:
        attention, mlp = rank.layers[layer].attention_mix, rank.layers[layer].mlp_mix
        assert torch.equal(attention.res_norm, stored[prefix + "self_attention_res_norm.weight"])
        assert torch.equal(attention.res_proj[None], stored[prefix + "self_attention_res_proj.weight"])
        assert torch.equal(attention.out_norm, stored[prefix + "input_layernorm.weight"])
        assert torch.equal(mlp.res_norm, stored[prefix + "mlp_res_norm.weight"])
        assert torch.equal(mlp.res_proj[None], stored[prefix + "mlp_res_proj.weight"])
        assert torch.equal(mlp.out_norm, stored[prefix + "post_attention_layernorm.weight"])


@pytest.mark.parametrize("layer", [0, 4])
def test_kda(ranks, stored, layer):
    parts: list[KdaWeights] = [rank.layers[layer].attention for rank in ranks]
    prefix, tp = f"model.layers.{layer}.self_attn.", len(ranks)
    p, heads = 512 // tp, 16 // tp
    in_proj = [part.in_proj for part in parts]
    for number, name in enumerate("qkvg"):
        assert torch.equal(rows(in_proj, number * p, (number + 1) * p), stored[f"{prefix}{name}_proj.weight"])
    f_a = [part[4 * p : 4 * p + 32] for part in in_proj]
    assert torch.equal(replicated(f_a), stored[prefix + "f_a_proj.weight"])
    beta = 4 * p + 32
    assert torch.equal(rows(in_proj, beta, beta + heads), stored[prefix + "b_proj.weight"])
    assert {len(part) for part in in_proj} == {{1: 2096, 2: 1072, 8: 304, 16: 176}[tp]}
    assert not any(part[beta + heads :].any() for part in in_proj)

    for number, name in enumerate("qkv"):
        third = rows([part.conv_weight for part in parts], number * p, (number + 1) * p)
        assert torch.equal(third, stored[f"{prefix}{name}_conv1d.weight"].squeeze(1))
    assert {part.conv_weight.shape for part in parts} == {(3 * p, 4)}
    assert torch.equal(torch.cat([part.f_b for part in parts]), stored[prefix + "f_b_proj.weight"])
    assert torch.equal(torch.cat([part.a_log for part in parts]), stored[prefix + "A_log"][:16])
    assert torch.equal(torch.cat([part.dt_bias for part in parts]), stored[prefix + "dt_bias"])
    assert torch.equal(replicated([part.o_norm for part in parts]), stored[prefix + "o_norm.weight"])
    assert torch.equal(torch.cat([part.o_proj for part in parts], 1), stored[prefix + "o_proj.weight"])


@pytest.mark.parametrize("layer", [3, 12])
def test_mla(ranks, stored, layer):
    parts: list[MlaWeights] = [rank.layers[layer].attention for rank in ranks]
    prefix, tp = f"model.layers.{layer}.self_attn.", len(ranks)
    fused = [part.qkv_a_g for part in parts]
    assert torch.equal(replicated([part[:96] for part in fused]), stored[prefix + "q_a_proj.weight"])
    assert torch.equal(replicated([part[96:176] for part in fused]), stored[prefix + "kv_a_proj_with_mqa.weight"])
    assert torch.equal(rows(fused, 176, 176 + 512 // tp), stored[prefix + "g_proj.weight"])
    assert {len(part) for part in fused} == {176 + 512 // tp}
    assert torch.equal(torch.cat([part.q_b for part in parts]), stored[prefix + "q_b_proj.weight"])
    assert torch.equal(torch.cat([part.kv_b for part in parts]), stored[prefix + "kv_b_proj.weight"])
    assert torch.equal(replicated([part.q_a_norm for part in parts]), stored[prefix + "q_a_layernorm.weight"])
    assert torch.equal(replicated([part.kv_a_norm for part in parts]), stored[prefix + "kv_a_layernorm.weight"])
    assert torch.equal(torch.cat([part.o_proj for part in parts], 1), stored[prefix + "o_proj.weight"])


def assert_mlp(gate_up: list[Tensor], down: list[Tensor], size: int, stored: dict[str, Tensor], prefix: str) -> None:
    part = size // len(gate_up)
    assert torch.equal(rows(gate_up, 0, part), stored[prefix + "gate_proj.weight"])
    assert torch.equal(rows(gate_up, part, 2 * part), stored[prefix + "up_proj.weight"])
    assert torch.equal(torch.cat(down, 1), stored[prefix + "down_proj.weight"])


def test_dense(ranks, stored):
    parts: list[DenseWeights] = [rank.layers[0].mlp for rank in ranks]
    assert_mlp([part.gate_up for part in parts], [part.down for part in parts], 768, stored, "model.layers.0.mlp.")


@pytest.mark.parametrize("layer", [3, 4, 12])
def test_moe(ranks, stored, layer):
    parts: list[MoeWeights] = [rank.layers[layer].mlp for rank in ranks]
    prefix = f"model.layers.{layer}.block_sparse_moe."
    for attribute, name in {
        "router": "gate.weight",
        "correction_bias": "gate.e_score_correction_bias",
        "latent_down": "routed_expert_down_proj.weight",
        "latent_norm": "routed_expert_norm.weight",
        "latent_up": "routed_expert_up_proj.weight",
    }.items():
        assert torch.equal(replicated([getattr(part, attribute) for part in parts]), stored[prefix + name])
    shared = [part.shared_gate_up for part in parts], [part.shared_down for part in parts]
    assert_mlp(*shared, 1024, stored, prefix + "shared_experts.")


@pytest.mark.parametrize("layer", [3, 4, 12])
def test_experts_and_their_padding(ranks, stored, layer):
    parts: list[MoeWeights] = [rank.layers[layer].mlp for rank in ranks]
    size = 512 // len(ranks)
    padded = max(size, PADDED)
    for expert in range(5):
        prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}."
        for suffix, member, elements in (("weight_packed", "packed", 2), ("weight_scale", "scale", 32)):
            w13 = [getattr(part.w13, member)[expert] for part in parts]
            w2 = [getattr(part.w2, member)[expert] for part in parts]
            assert {matrix.shape for matrix in w13} == {(2 * padded, 64 // elements)}
            assert {matrix.shape for matrix in w2} == {(64, padded // elements)}
            neutral = {"packed": 0, "scale": 127}[member]
            assert torch.equal(rows(w13, 0, size), stored[f"{prefix}w1.{suffix}"])
            assert torch.equal(rows(w13, padded, padded + size), stored[f"{prefix}w3.{suffix}"])
            assert torch.equal(
                torch.cat([matrix[:, : size // elements] for matrix in w2], 1), stored[f"{prefix}w2.{suffix}"]
            )
            for matrix in w13:
                assert (matrix[size:padded] == neutral).all() and (matrix[padded + size :] == neutral).all()
            assert all((matrix[:, size // elements :] == neutral).all() for matrix in w2)


def expert_sum(weights: MoeWeights, z: Tensor) -> Tensor:
    """Float64 sum over all experts, with gate times up as the activation: any f with f(0, 0) = 0 would do."""
    gate, up = (mxfp4.dequantise(weights.w13.packed, weights.w13.scale) @ z).chunk(2, dim=1)
    return (mxfp4.dequantise(weights.w2.packed, weights.w2.scale) @ (gate * up)[..., None]).sum(0).squeeze(-1)


def test_padding_changes_no_result_and_ranks_sum_to_the_whole(checkpoint):
    z = torch.randn(64, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).squeeze(-1)
    whole = expert_sum(load_layer(checkpoint, 3, Shard()).mlp, z)
    shards = [Shard(16, rank) for rank in range(16)]
    for padding in (0, 96):
        parts = [load_layer(checkpoint, 3, shard, min_expert_intermediate=padding).mlp for shard in shards]
        torch.testing.assert_close(sum(expert_sum(part, z) for part in parts), whole, rtol=1e-12, atol=1e-12)


def test_every_tensor_is_fresh_and_contiguous(ranks):
    for rank in ranks:
        tensors = tensors_of(rank)
        assert all(tensor.is_contiguous() and tensor.storage_offset() == 0 for tensor in tensors)
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


class Allocations(TorchDispatchMode):
    """Peak bytes of tensors alive at once that share no memory with an operand of the operation that made them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._made = 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        operands = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in operands:
                self._made.append((ref(tensor), tensor.nbytes))
        self._made = [made for made in self._made if made[0]() is not None]
        self.peak = max(self.peak, sum(size for _, size in self._made))
        return result


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("tp", [1, 16])
def test_loading_holds_one_tensor_beyond_what_is_kept(checkpoint, stored, layer, tp):
    with Allocations() as allocations:
        weights = load_layer(checkpoint, layer, Shard(tp, tp - 1), min_expert_intermediate=PADDED)
    kept = sum(tensor.nbytes for tensor in tensors_of(weights))
    largest = max(t.nbytes for name, t in stored.items() if name.startswith(f"model.layers.{layer}."))
    assert kept <= allocations.peak <= kept + largest


@pytest.mark.parametrize(
    ("tp", "message"),
    [
        (3, "16 KDA heads cannot be split over TP 3"),
        (32, "16 KDA heads cannot be split over TP 32"),
        (0, "16 KDA heads cannot be split over TP 0"),
    ],
)
def test_heads_that_do_not_divide(checkpoint, tp, message):
    with pytest.raises(UserError) as caught:
        load_layer(checkpoint, 4, Shard(tp, 0))
    assert (caught.value.what, caught.value.how) == (message, "use one of [1, 2, 4, 8, 16]")


def test_no_such_rank(checkpoint):
    for rank in (-1, 8):
        with pytest.raises(UserError, match=f"there is no rank {rank} in TP 8"):
            load_layer(checkpoint, 4, Shard(8, rank))


def test_padding_must_be_whole_groups(checkpoint):
    with pytest.raises(UserError, match="min_expert_intermediate"):
        load_layer(checkpoint, 4, Shard(16, 0), min_expert_intermediate=48)


class Shapes:
    """A checkpoint of the real model without its 1.56 TB: tensors have shapes and types only."""

    a_log = ALog.VECTOR

    def __init__(self, architecture: Architecture, layers: tuple[int, ...]) -> None:
        self.architecture, self.layers = architecture, layers
        self._tensors = expected(architecture, layers)

    def read(self, name: str, index=()) -> Tensor:
        info = self._tensors[name]
        return torch.empty(info.shape, dtype=TORCH_DTYPES[info.dtype], device="meta")[index]

    def read_into(self, destination: Tensor, name: str, index=()) -> None:
        part = self.read(name, index)
        assert (part.shape, part.dtype) == (destination.shape, destination.dtype), name


@pytest.fixture(scope="module")
def real_layers() -> dict[int, dict[int, LayerWeights]]:
    real = Architecture.from_config()
    shapes = Shapes(real, (0, 1, 3))
    with torch.device("meta"):
        return {
            tp: {
                layer: load_layer(shapes, layer, Shard(tp, tp - 1), min_expert_intermediate=256)
                for layer in shapes.layers
            }
            for tp in (8, 16)
        }


# Published per-rank sizes of an engine's fused tensors.
REAL_SHAPES = {
    "in_proj": [(6288, 7168), (3216, 7168)],
    "f_b": [(1536, 128), (768, 128)],
    "conv_weight": [(4608, 4), (2304, 4)],
    "a_log": [(12,), (6,)],
    "dt_bias": [(1536,), (768,)],
    "o_proj": [(7168, 1536), (7168, 768)],
    "qkv_a_g": [(3648, 7168), (2880, 7168)],
    "q_b": [(2304, 1536), (1152, 1536)],
    "kv_b": [(3072, 512), (1536, 512)],
    "gate_up": [(8448, 7168), (4224, 7168)],
    "down": [(7168, 4224), (7168, 2112)],
    "shared_gate_up": [(1536, 7168), (768, 7168)],
    "shared_down": [(7168, 768), (7168, 384)],
    "w13.packed": [(896, 768, 1792), (896, 512, 1792)],
    "w13.scale": [(896, 768, 112), (896, 512, 112)],
    "w2.packed": [(896, 3584, 192), (896, 3584, 128)],
    "w2.scale": [(896, 3584, 12), (896, 3584, 8)],
}


@pytest.mark.parametrize("name", REAL_SHAPES)
def test_real_shapes(real_layers, name):
    for tp, shape in zip((8, 16), REAL_SHAPES[name], strict=True):
        layers = real_layers[tp]
        holders = [layers[0].attention, layers[3].attention, layers[0].mlp, layers[1].mlp]
        attribute, _, member = name.partition(".")
        for holder in (holder for holder in holders if hasattr(holder, attribute)):
            tensor = getattr(holder, attribute)
            assert (getattr(tensor, member) if member else tensor).shape == shape


def test_real_bytes_of_a_rank(real_layers):
    def megabytes(*tensors: Tensor) -> float:
        return sum(math.prod(t.shape) * t.element_size() for t in tensors) / 1e6

    for tp, kda, mla, expert in ((8, 112.6, 84.5, 2.19), (16, 57.3, 57.4, 1.46)):
        layers = real_layers[tp]
        assert megabytes(*tensors_of(layers[1].attention)) == pytest.approx(kda, abs=0.1)
        assert megabytes(*tensors_of(layers[3].attention)) == pytest.approx(mla, abs=0.1)
        moe = layers[1].mlp
        assert megabytes(*tensors_of(moe.w13), *tensors_of(moe.w2)) / 896 == pytest.approx(expert, abs=0.01)


def test_real_ends():
    shapes = Shapes(Architecture.from_config(), ())
    for tp, vocabulary in ((8, 20480), (16, 10240)):
        ends = load_ends(shapes, Shard(tp, 0))
        assert ends.lm_head.shape == (vocabulary, 7168)
        assert ends.embedding.shape == (163840, 7168)
    with pytest.raises(UserError, match="163840 rows of the vocabulary cannot be split over TP 12"):
        load_ends(shapes, Shard(12, 0))


def test_expert_slices_are_whole_groups():
    real = Architecture.from_config()
    # 1536 / 96 = 16 channels are half a group, although both numbers of heads divide by 96.
    few = real.model_copy(update={"moe": real.moe.model_copy(update={"expert_intermediate_size": 96 * 16})})
    with torch.device("meta"), pytest.raises(UserError) as caught:
        load_layer(Shapes(few, (1,)), 1, Shard(96, 0))
    assert caught.value.what == "1536 expert intermediate channels cannot be split in groups of 32 over TP 96"
