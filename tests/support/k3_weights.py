"""Random weights of a small Kimi K3, whole and cut for one rank: written from the shard table, not from the loader."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import torch
from torch import Generator, Tensor

from fasttrack_validation.contracts.kimi_k3.architecture import NANO, Architecture
from fasttrack_validation.contracts.kimi_k3.layer_weights import (
    DenseWeights,
    KdaWeights,
    LayerWeights,
    MixWeights,
    MlaWeights,
    ModelWeights,
    MoeWeights,
    Mxfp4,
    Shard,
)


@cache
def nano() -> Architecture:
    return Architecture.from_config(NANO)


@cache
def nano_weights() -> ModelWeights:
    return draw(nano(), seed=0)


@cache
def pico() -> Architecture:
    """Nano cut down further, for tests of the whole walk: 5 layers (KDA, KDA, KDA, MLA, MLA) in three blocks."""
    of = nano()
    return of.model_copy(
        update={
            "hidden_size": 64,
            "layers": 5,
            "vocab_size": 64,
            "dense_intermediate_size": 64,
            "attn_res_block_size": 2,
            "kda_layers": (0, 1, 2),
            "mla_layers": (3, 4),
            "kda": of.kda.model_copy(update={"head_dim": 8, "gate_rank": 8}),
            "mla": of.mla.model_copy(
                update={
                    "q_lora_rank": 24,
                    "kv_lora_rank": 16,
                    "qk_nope_head_dim": 8,
                    "qk_rope_head_dim": 4,
                    "v_head_dim": 8,
                }
            ),
            "moe": of.moe.model_copy(update={"experts": 8, "top_k": 2, "latent_size": 32}),
        }
    )


@cache
def pico_weights() -> ModelWeights:
    return draw(pico(), seed=0)


def draw(of: Architecture, seed: int) -> ModelWeights:
    """The unsharded model: matrices of variance 1 / K, norms around one, decays and routing over their whole range."""
    rng = Generator().manual_seed(seed)
    d = of.hidden_size
    layers = {
        layer: LayerWeights(
            attention_mix=draw_mix(rng, d),
            attention=draw_mla(of, rng) if layer in of.mla_layers else draw_kda(of, rng),
            mlp_mix=draw_mix(rng, d),
            mlp=draw_moe(of, rng)
            if layer >= of.moe.first_layer
            else DenseWeights(
                _matrix(rng, 2 * of.dense_intermediate_size, d), _matrix(rng, d, of.dense_intermediate_size)
            ),
        )
        for layer in range(of.layers)
    }
    embedding = torch.randn(of.vocab_size, d, generator=rng).bfloat16()
    return ModelWeights(embedding, layers, draw_mix(rng, d), _matrix(rng, of.vocab_size, d))


def draw_kda(of: Architecture, rng: Generator) -> KdaWeights:
    shard = of.kda_shard(1)
    p, d = shard.channels, of.hidden_size
    in_proj = _matrix(rng, shard.projection_rows, d)
    in_proj[shard.columns["pad"]] = 0
    return KdaWeights(
        in_proj=in_proj,
        f_b=_matrix(rng, p, shard.gate_rank),
        conv_weight=0.5 * torch.randn(3 * p, shard.conv_width, generator=rng),
        a_log=(1 + 15 * torch.rand(shard.heads, generator=rng)).log(),
        dt_bias=torch.rand(p, generator=rng) * 1.25 - 0.75,
        o_norm=_around_one(rng, shard.head_dim),
        o_proj=_matrix(rng, d, p),
    )


def draw_mla(of: Architecture, rng: Generator) -> MlaWeights:
    mla, d = of.mla, of.hidden_size
    p = mla.heads * mla.v_head_dim
    return MlaWeights(
        qkv_a_g=_matrix(rng, mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim + p, d),
        q_a_norm=_around_one(rng, mla.q_lora_rank),
        kv_a_norm=_around_one(rng, mla.kv_lora_rank),
        q_b=_matrix(rng, mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank),
        kv_b=_matrix(rng, mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
        o_proj=_matrix(rng, d, p),
    )


def draw_moe(of: Architecture, rng: Generator) -> MoeWeights:
    moe, d = of.moe, of.hidden_size
    shared = moe.shared_experts * moe.expert_intermediate_size
    return MoeWeights(
        router=_matrix(rng, moe.experts, d),
        correction_bias=0.1 * torch.randn(moe.experts, generator=rng),
        latent_down=_matrix(rng, moe.latent_size, d),
        latent_norm=_around_one(rng, moe.latent_size),
        latent_up=_matrix(rng, d, moe.latent_size),
        w13=_mxfp4(rng, moe.experts, 2 * moe.expert_intermediate_size, moe.latent_size),
        w2=_mxfp4(rng, moe.experts, moe.latent_size, moe.expert_intermediate_size),
        shared_gate_up=_matrix(rng, 2 * shared, d),
        shared_down=_matrix(rng, d, shared),
    )


def shard_model(model: ModelWeights, of: Architecture, tp: int) -> list[ModelWeights]:
    """Every rank's weights."""
    return [
        replace(
            model,
            layers={number: shard_layer(layer, of, Shard(tp, rank)) for number, layer in model.layers.items()},
            lm_head=_cut(model.lm_head, Shard(tp, rank)),
        )
        for rank in range(tp)
    ]


def shard_layer(layer: LayerWeights, of: Architecture, shard: Shard) -> LayerWeights:
    attention, mlp = layer.attention, layer.mlp
    return replace(
        layer,
        attention=shard_kda(attention, of, shard) if isinstance(attention, KdaWeights) else _mla(attention, of, shard),
        mlp=shard_moe(mlp, shard) if isinstance(mlp, MoeWeights) else _dense(mlp, shard),
    )


def shard_kda(whole: KdaWeights, of: Architecture, shard: Shard) -> KdaWeights:
    """q, k, v, g and beta by head; f_a on every rank; zero rows up to a multiple of 16."""
    columns, local = of.kda_shard(1).columns, of.kda_shard(shard.tp)
    rows = [_cut(whole.in_proj[columns[name]], shard) for name in "qkvg"]
    rows += [whole.in_proj[columns["f_a"]], _cut(whole.in_proj[columns["beta"]], shard)]
    padding = local.projection_rows - sum(map(len, rows))
    return KdaWeights(
        in_proj=torch.cat([*rows, whole.in_proj.new_zeros(padding, of.hidden_size)]),
        f_b=_cut(whole.f_b, shard),
        conv_weight=_cut_parts(whole.conv_weight, shard, 3),
        a_log=_cut(whole.a_log, shard),
        dt_bias=_cut(whole.dt_bias, shard),
        o_norm=whole.o_norm,
        o_proj=_cut(whole.o_proj, shard, 1),
    )


def shard_moe(whole: MoeWeights, shard: Shard) -> MoeWeights:
    """Experts and shared expert by intermediate channel; all else on every rank."""
    return replace(
        whole,
        w13=Mxfp4(_cut_parts(whole.w13.packed, shard, 2, 1), _cut_parts(whole.w13.scale, shard, 2, 1)),
        w2=Mxfp4(_cut(whole.w2.packed, shard, 2), _cut(whole.w2.scale, shard, 2)),
        shared_gate_up=_cut_parts(whole.shared_gate_up, shard, 2),
        shared_down=_cut(whole.shared_down, shard, 1),
    )


def _mla(whole: MlaWeights, of: Architecture, shard: Shard) -> MlaWeights:
    replicated = of.mla.q_lora_rank + of.mla.kv_lora_rank + of.mla.qk_rope_head_dim
    return replace(
        whole,
        qkv_a_g=torch.cat([whole.qkv_a_g[:replicated], _cut(whole.qkv_a_g[replicated:], shard)]),
        q_b=_cut(whole.q_b, shard),
        kv_b=_cut(whole.kv_b, shard),
        o_proj=_cut(whole.o_proj, shard, 1),
    )


def _dense(whole: DenseWeights, shard: Shard) -> DenseWeights:
    return DenseWeights(_cut_parts(whole.gate_up, shard, 2), _cut(whole.down, shard, 1))


def _cut(tensor: Tensor, shard: Shard, axis: int = 0) -> Tensor:
    size, rest = divmod(tensor.shape[axis], shard.tp)
    assert not rest
    return tensor.narrow(axis, shard.rank * size, size)


def _cut_parts(tensor: Tensor, shard: Shard, parts: int, axis: int = 0) -> Tensor:
    return torch.cat([_cut(part, shard, axis) for part in tensor.chunk(parts, axis)], axis)


def _matrix(rng: Generator, *shape: int) -> Tensor:
    return (torch.randn(shape, generator=rng) * shape[-1] ** -0.5).bfloat16()


def _around_one(rng: Generator, *shape: int) -> Tensor:
    return (0.5 + torch.rand(shape, generator=rng)).bfloat16()


def draw_mix(rng: Generator, d: int) -> MixWeights:
    return MixWeights(_around_one(rng, d), _matrix(rng, d), _around_one(rng, d))


def _mxfp4(rng: Generator, *shape: int) -> Mxfp4:
    *rows, columns = shape
    # An element has a root mean square near 3; scales spread over three octaves.
    exponent = 127 - round(math.log2(3 * columns**0.5))
    return Mxfp4(
        torch.randint(0, 256, (*rows, columns // 2), generator=rng, dtype=torch.uint8),
        (exponent + torch.randint(-1, 2, (*rows, columns // 32), generator=rng)).to(torch.uint8),
    )


def tokens(of: Architecture, count: int, seed: int = 1) -> Tensor:
    return torch.randint(of.vocab_size, (count,), generator=Generator().manual_seed(seed))


def fingerprint(state, request: int) -> Iterable[Tensor]:
    """Everything committed for a request, cache by cache: what later steps can see of it."""
    slot, pages, length = int(state.slots[request, 0]), state.pages[request], state.lengths[request]
    for rank in state.ranks:
        for cache in rank.values():
            if hasattr(cache, "conv"):
                yield from (cache.conv[slot], cache.recurrent[slot])
            else:
                yield cache.read(pages, length)
