"""The tensors of a published Kimi K3 checkpoint: name, shape and dtype of each.

Only `language_model.` is listed. Of what lies outside of it the vision tower and its projector (`SKIPPED`) are not ours
to judge; anything else is no part of a published checkpoint.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ..architecture import Architecture
from .mxfp4 import GROUP

PREFIX = "language_model."
SKIPPED = ("vision_tower.", "mm_projector.")
_MODEL = f"{PREFIX}model."

EMBEDDING = f"{_MODEL}embed_tokens.weight"
FINAL_RES_NORM = f"{_MODEL}output_attn_res_norm.weight"
FINAL_RES_PROJ = f"{_MODEL}output_attn_res_proj.weight"
FINAL_NORM = f"{_MODEL}norm.weight"
LM_HEAD = f"{PREFIX}lm_head.weight"


class DType(StrEnum):
    """Element types, as the safetensors format spells them."""

    BF16 = "BF16"
    F32 = "F32"
    U8 = "U8"


class ALog(StrEnum):
    """How a checkpoint stores `A_log`: published checkpoints differ, and the shape alone must not decide."""

    VECTOR = "vector"
    """[n] with n >= heads; entries from `heads` on are zero and belong to no head"""
    BROADCAST = "broadcast"
    """[1, 1, heads, 1], as in the older Kimi Linear checkpoints"""


@dataclass(frozen=True)
class TensorInfo:
    """Shape and element type of one stored tensor. `zero_tail`: the one axis may be longer, with zeros behind."""

    shape: tuple[int, ...]
    dtype: DType
    zero_tail: bool = False

    def admits(self, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether a tensor of this shape and safetensors type is the one described."""
        fits = len(shape) == 1 and shape >= self.shape if self.zero_tail else shape == self.shape
        return fits and dtype == self.dtype

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}" + (" (a longer tail of zeros is allowed)" if self.zero_tail else "")


def layer_prefix(layer: int) -> str:
    """What the names of a layer (counted from zero) begin with."""
    return f"{_MODEL}layers.{layer}."


def expected(
    architecture: Architecture,
    layers: Collection[int] | None = None,
    *,
    ends: bool = True,
    a_log: ALog = ALog.VECTOR,
) -> dict[str, TensorInfo]:
    """Every tensor of these layers (None: all; counted from zero) and, with `ends`, of what lies around the layers."""
    tensors = dict(_ends(architecture)) if ends else {}
    for layer in range(architecture.layers) if layers is None else layers:
        tensors |= {layer_prefix(layer) + name: info for name, info in _layer(architecture, layer, a_log)}
    return tensors


_Tensors = Iterator[tuple[str, TensorInfo]]


def _bf16(*shape: int) -> TensorInfo:
    return TensorInfo(shape, DType.BF16)


def _f32(*shape: int) -> TensorInfo:
    return TensorInfo(shape, DType.F32)


def _ends(a: Architecture) -> _Tensors:
    yield EMBEDDING, _bf16(a.vocab_size, a.hidden_size)
    yield FINAL_RES_NORM, _bf16(a.hidden_size)
    yield FINAL_RES_PROJ, _bf16(1, a.hidden_size)
    yield FINAL_NORM, _bf16(a.hidden_size)
    yield LM_HEAD, _bf16(a.vocab_size, a.hidden_size)


def _layer(a: Architecture, layer: int, a_log: ALog) -> _Tensors:
    for mix in ("self_attention", "mlp"):
        yield f"{mix}_res_norm.weight", _bf16(a.hidden_size)
        yield f"{mix}_res_proj.weight", _bf16(1, a.hidden_size)
    yield "input_layernorm.weight", _bf16(a.hidden_size)
    yield "post_attention_layernorm.weight", _bf16(a.hidden_size)
    yield from _prefixed("self_attn.", _kda(a, a_log) if layer in a.kda_layers else _mla(a))
    if layer < a.moe.first_layer:
        yield from _prefixed("mlp.", _mlp(a.hidden_size, a.dense_intermediate_size))
    else:
        yield from _prefixed("block_sparse_moe.", _moe(a))


def _kda(a: Architecture, a_log: ALog) -> _Tensors:
    d, heads, rank, channels = a.hidden_size, a.kda.heads, a.kda.gate_rank, a.kda.heads * a.kda.head_dim
    for name in "qkvg":
        yield f"{name}_proj.weight", _bf16(channels, d)
    yield "b_proj.weight", _bf16(heads, d)
    yield "f_a_proj.weight", _bf16(rank, d)
    yield "f_b_proj.weight", _bf16(channels, rank)
    for name in "qkv":
        yield f"{name}_conv1d.weight", _f32(channels, 1, a.kda.conv_width)
    yield (
        "A_log",
        {
            ALog.VECTOR: TensorInfo((heads,), DType.F32, zero_tail=True),
            ALog.BROADCAST: _f32(1, 1, heads, 1),
        }[a_log],
    )
    yield "dt_bias", _f32(channels)
    yield "o_norm.weight", _bf16(a.kda.head_dim)
    yield "o_proj.weight", _bf16(d, channels)


def _mla(a: Architecture) -> _Tensors:
    d, mla = a.hidden_size, a.mla
    channels = mla.heads * mla.v_head_dim
    yield "q_a_proj.weight", _bf16(mla.q_lora_rank, d)
    yield "q_a_layernorm.weight", _bf16(mla.q_lora_rank)
    yield "q_b_proj.weight", _bf16(mla.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank)
    yield "kv_a_proj_with_mqa.weight", _bf16(mla.kv_lora_rank + mla.qk_rope_head_dim, d)
    yield "kv_a_layernorm.weight", _bf16(mla.kv_lora_rank)
    yield "kv_b_proj.weight", _bf16(mla.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
    yield "g_proj.weight", _bf16(channels, d)
    yield "o_proj.weight", _bf16(d, channels)


def _mlp(width: int, intermediate: int) -> _Tensors:
    yield "gate_proj.weight", _bf16(intermediate, width)
    yield "up_proj.weight", _bf16(intermediate, width)
    yield "down_proj.weight", _bf16(width, intermediate)


def _moe(a: Architecture) -> _Tensors:
    d, moe = a.hidden_size, a.moe
    yield "gate.weight", _bf16(moe.experts, d)
    yield "gate.e_score_correction_bias", _f32(moe.experts)
    yield "routed_expert_down_proj.weight", _bf16(moe.latent_size, d)
    yield "routed_expert_norm.weight", _bf16(moe.latent_size)
    yield "routed_expert_up_proj.weight", _bf16(d, moe.latent_size)
    yield from _prefixed("shared_experts.", _mlp(d, moe.shared_experts * moe.expert_intermediate_size))
    # w1 is the gate, w3 the up-projection.
    wide = _mxfp4(moe.expert_intermediate_size, moe.latent_size)
    narrow = _mxfp4(moe.latent_size, moe.expert_intermediate_size)
    for expert in range(moe.experts):
        for name, parts in (("w1", wide), ("w2", narrow), ("w3", wide)):
            for part, info in parts.items():
                yield f"experts.{expert}.{name}.{part}", info


def _mxfp4(rows: int, k: int) -> dict[str, TensorInfo]:
    return {
        "weight_packed": TensorInfo((rows, k // 2), DType.U8),
        "weight_scale": TensorInfo((rows, k // GROUP), DType.U8),
    }


def _prefixed(prefix: str, tensors: _Tensors) -> _Tensors:
    return ((prefix + name, info) for name, info in tensors)
