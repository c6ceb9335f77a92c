"""The weights of one rank, in the shapes in which a decode step reads them. `tp` 1 is the whole model.

Symbols: d hidden size; h local heads of that layer kind; p = 128 h local channels; L latent size; I local expert
intermediate size (padded where the loader was asked to); E experts; S local shared-expert intermediate size. Dense
tensors are bf16 unless said otherwise. Row orders are those of the fused projections that engines use.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Shard:
    """Which slice of a tensor-parallel model."""

    tp: int = 1
    rank: int = 0


@dataclass(frozen=True)
class KdaWeights:
    """Kimi Delta Attention."""

    in_proj: Tensor
    """[q p | k p | v p | g p | f_a 128 (replicated) | beta h | zero rows to a multiple of 16, d]"""
    f_b: Tensor
    """[p, 128]: second factor of the decay gate"""
    conv_weight: Tensor
    """[q p | k p | v p, 4] float32, oldest tap first"""
    a_log: Tensor
    """[h] float32"""
    dt_bias: Tensor
    """[p] float32"""
    o_norm: Tensor
    """[128], shared by the heads"""
    o_proj: Tensor
    """[d, p]: row-parallel, its product is a partial sum"""


@dataclass(frozen=True)
class MlaWeights:
    """Multi-head latent attention without rotation, with output gate."""

    qkv_a_g: Tensor
    """[q_a 1536 | kv_a 512 + 64 | g p, d]: the first two replicated"""
    q_a_norm: Tensor
    """[1536]"""
    kv_a_norm: Tensor
    """[512]"""
    q_b: Tensor
    """[h * (128 nope + 64), 1536]"""
    kv_b: Tensor
    """[h * (128 k_nope + 128 v), 512]"""
    o_proj: Tensor
    """[d, p]"""


@dataclass(frozen=True)
class DenseWeights:
    """The dense SiTU layer."""

    gate_up: Tensor
    """[gate n | up n, d], n the local intermediate size"""
    down: Tensor
    """[d, n]"""


@dataclass(frozen=True)
class Mxfp4:
    """MXFP4 matrices [..., N, K]: E2M1 nibbles, low nibble first, and one E8M0 byte for each 32 elements along K."""

    packed: Tensor
    """[..., N, K / 2] uint8"""
    scale: Tensor
    """[..., N, K / 32] uint8"""


@dataclass(frozen=True)
class MoeWeights:
    """Latent mixture of experts with a shared expert on the full width."""

    router: Tensor
    """[E, d], replicated"""
    correction_bias: Tensor
    """[E] float32: for the selection only"""
    latent_down: Tensor
    """[L, d], replicated"""
    latent_norm: Tensor
    """[L]"""
    latent_up: Tensor
    """[d, L], replicated"""
    w13: Mxfp4
    """[E, gate I | up I, L]"""
    w2: Mxfp4
    """[E, L, I]"""
    shared_gate_up: Tensor
    """[gate S | up S, d]"""
    shared_down: Tensor
    """[d, S]"""


@dataclass(frozen=True)
class MixWeights:
    """One AttnRes mix and the norm behind it."""

    res_norm: Tensor
    """[d]"""
    res_proj: Tensor
    """[d]: the single row of the projection"""
    out_norm: Tensor
    """[d]: input_layernorm, post_attention_layernorm or the model's final norm"""


@dataclass(frozen=True)
class LayerWeights:
    """One layer."""

    attention_mix: MixWeights
    attention: KdaWeights | MlaWeights
    mlp_mix: MixWeights
    mlp: DenseWeights | MoeWeights


@dataclass(frozen=True)
class ModelWeights:
    """What is left of a model when layers are streamed: `layers` maps a layer number to its weights."""

    embedding: Tensor
    """[vocabulary, d] (the whole vocabulary; engines shard it by rows)"""
    layers: dict[int, LayerWeights]
    final_mix: MixWeights
    lm_head: Tensor
    """[local vocabulary, d]"""
