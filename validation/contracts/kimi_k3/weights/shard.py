"""The tensors of one rank from a checkpoint: which rows and columns, in which order, with which padding.

Heads, vocabulary and intermediate channels are split into equal contiguous parts, in rank order. Column-parallel
weights take rows, row-parallel ones (o_proj, down, w2) columns. Low-rank first factors (f_a, q_a, kv_a), the router,
the latent projections and all norms are replicated.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ....errors import UserError
from ..layer_weights import (
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
from . import names
from .checkpoint import Checkpoint
from .mxfp4 import GROUP, NEUTRAL_SCALE
from .names import ALog

_ALL = slice(None)


def load_model(checkpoint: Checkpoint, shard: Shard, *, min_expert_intermediate: int = 0) -> ModelWeights:
    """The ends and every layer for which the checkpoint was opened. Raises UserError as `load_layer` does."""
    layers = {
        layer: load_layer(checkpoint, layer, shard, min_expert_intermediate=min_expert_intermediate)
        for layer in checkpoint.layers
    }
    return replace(load_ends(checkpoint, shard), layers=layers)


def load_ends(checkpoint: Checkpoint, shard: Shard) -> ModelWeights:
    """What lies around the layers: `layers` is empty. Raises UserError if the vocabulary cannot be split."""
    vocabulary = _split("rows of the vocabulary", checkpoint.architecture.vocab_size, shard)
    return ModelWeights(
        embedding=checkpoint.read(names.EMBEDDING),
        layers={},
        final_mix=_mix(checkpoint, names.FINAL_RES_NORM, names.FINAL_RES_PROJ, names.FINAL_NORM),
        lm_head=checkpoint.read(names.LM_HEAD, (vocabulary,)),
    )


def load_layer(checkpoint: Checkpoint, layer: int, shard: Shard, *, min_expert_intermediate: int = 0) -> LayerWeights:
    """One layer (counted from zero) of one rank, in fresh contiguous CPU tensors.

    Expert intermediate sizes below `min_expert_intermediate` (a multiple of 32) are padded to it: rows of w13 behind
    the gate's and behind the up-projection's, columns of w2; zero elements under scale 1, which contribute zero.
    Raises UserError for a size that the shard's TP degree does not divide into whole heads or whole MXFP4 groups.
    """
    architecture, prefix = checkpoint.architecture, names.layer_prefix(layer)
    attention = _kda if layer in architecture.kda_layers else _mla
    return LayerWeights(
        attention_mix=_layer_mix(checkpoint, prefix, "self_attention", "input_layernorm"),
        attention=attention(checkpoint, prefix + "self_attn.", shard),
        mlp_mix=_layer_mix(checkpoint, prefix, "mlp", "post_attention_layernorm"),
        mlp=_dense(checkpoint, prefix + "mlp.", shard)
        if layer < architecture.moe.first_layer
        else _moe(checkpoint, prefix + "block_sparse_moe.", shard, min_expert_intermediate),
    )


def _split(what: str, size: int, shard: Shard, unit: int = 1) -> slice:
    """This rank's part of `size`, in whole multiples of `unit`."""
    if shard.tp < 1 or size % (shard.tp * unit):
        units = f" in groups of {unit}" if unit > 1 else ""
        degrees = [tp for tp in range(1, size // unit + 1) if size % (tp * unit) == 0]
        raise UserError(f"{size} {what} cannot be split{units} over TP {shard.tp}", f"use one of {degrees}")
    if not 0 <= shard.rank < shard.tp:
        raise UserError(f"there is no rank {shard.rank} in TP {shard.tp}", f"ranks count from 0 to {shard.tp - 1}")
    part = size // shard.tp
    return slice(shard.rank * part, (shard.rank + 1) * part)


def _scaled(part: slice, factor: int) -> slice:
    """The part of an axis with `factor` entries for each of the part's."""
    return slice(part.start * factor, part.stop * factor)


def _shrunk(part: slice, factor: int) -> slice:
    """The part of an axis with one entry for each `factor` of the part's."""
    return slice(part.start // factor, part.stop // factor)


def _stacked(checkpoint: Checkpoint, parts: Sequence[tuple[str, slice]], width: int) -> Tensor:
    """Rows of several bf16 matrices of one width below each other."""
    sizes = [rows.stop - rows.start for _, rows in parts]
    stacked = torch.empty(sum(sizes), width, dtype=torch.bfloat16)
    for destination, (name, rows) in zip(stacked.split(sizes), parts, strict=True):
        checkpoint.read_into(destination, name, (rows,))
    return stacked


def _mix(checkpoint: Checkpoint, res_norm: str, res_proj: str, out_norm: str) -> MixWeights:
    return MixWeights(
        res_norm=checkpoint.read(res_norm),
        res_proj=checkpoint.read(res_proj, (0,)),
        out_norm=checkpoint.read(out_norm),
    )


def _layer_mix(checkpoint: Checkpoint, prefix: str, name: str, out_norm: str) -> MixWeights:
    return _mix(
        checkpoint,
        f"{prefix}{name}_res_norm.weight",
        f"{prefix}{name}_res_proj.weight",
        f"{prefix}{out_norm}.weight",
    )


def _kda(checkpoint: Checkpoint, prefix: str, shard: Shard) -> KdaWeights:
    architecture = checkpoint.architecture
    heads = _split("KDA heads", architecture.kda.heads, shard)
    channels = _scaled(heads, architecture.kda.head_dim)
    local = architecture.kda_shard(shard.tp)

    in_proj = torch.zeros(local.projection_rows, architecture.hidden_size, dtype=torch.bfloat16)
    for column, (name, rows) in {
        **{column: (f"{column}_proj", channels) for column in "qkvg"},
        "f_a": ("f_a_proj", _ALL),
        "beta": ("b_proj", heads),
    }.items():
        checkpoint.read_into(in_proj[local.columns[column]], f"{prefix}{name}.weight", (rows,))

    conv_weight = torch.empty(3, local.channels, local.conv_width)
    for destination, name in zip(conv_weight, "qkv", strict=True):
        checkpoint.read_into(destination, f"{prefix}{name}_conv1d.weight", (channels, 0))

    # By head, never by the length of what is stored: the vector may have a tail that belongs to no head.
    stored_heads = {ALog.VECTOR: (heads,), ALog.BROADCAST: (0, 0, heads, 0)}[checkpoint.a_log]
    return KdaWeights(
        in_proj=in_proj,
        f_b=checkpoint.read(prefix + "f_b_proj.weight", (channels,)),
        conv_weight=conv_weight.flatten(0, 1),
        a_log=checkpoint.read(prefix + "A_log", stored_heads),
        dt_bias=checkpoint.read(prefix + "dt_bias", (channels,)),
        o_norm=checkpoint.read(prefix + "o_norm.weight"),
        o_proj=checkpoint.read(prefix + "o_proj.weight", (_ALL, channels)),
    )


def _mla(checkpoint: Checkpoint, prefix: str, shard: Shard) -> MlaWeights:
    mla = checkpoint.architecture.mla
    heads = _split("MLA heads", mla.heads, shard)
    channels = _scaled(heads, mla.v_head_dim)
    return MlaWeights(
        qkv_a_g=_stacked(
            checkpoint,
            [
                (prefix + "q_a_proj.weight", slice(0, mla.q_lora_rank)),
                (prefix + "kv_a_proj_with_mqa.weight", slice(0, mla.kv_lora_rank + mla.qk_rope_head_dim)),
                (prefix + "g_proj.weight", channels),
            ],
            checkpoint.architecture.hidden_size,
        ),
        q_a_norm=checkpoint.read(prefix + "q_a_layernorm.weight"),
        kv_a_norm=checkpoint.read(prefix + "kv_a_layernorm.weight"),
        q_b=checkpoint.read(prefix + "q_b_proj.weight", (_scaled(heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim),)),
        kv_b=checkpoint.read(prefix + "kv_b_proj.weight", (_scaled(heads, mla.qk_nope_head_dim + mla.v_head_dim),)),
        o_proj=checkpoint.read(prefix + "o_proj.weight", (_ALL, channels)),
    )


def _mlp(checkpoint: Checkpoint, prefix: str, part: slice) -> tuple[Tensor, Tensor]:
    """gate | up, and down, of intermediate channels `part`."""
    gate_up = [(prefix + "gate_proj.weight", part), (prefix + "up_proj.weight", part)]
    return (
        _stacked(checkpoint, gate_up, checkpoint.architecture.hidden_size),
        checkpoint.read(prefix + "down_proj.weight", (_ALL, part)),
    )


def _dense(checkpoint: Checkpoint, prefix: str, shard: Shard) -> DenseWeights:
    part = _split("dense intermediate channels", checkpoint.architecture.dense_intermediate_size, shard)
    gate_up, down = _mlp(checkpoint, prefix, part)
    return DenseWeights(gate_up=gate_up, down=down)


def _moe(checkpoint: Checkpoint, prefix: str, shard: Shard, min_expert_intermediate: int) -> MoeWeights:
    moe = checkpoint.architecture.moe
    shared = _split("shared-expert channels", moe.shared_experts * moe.expert_intermediate_size, shard)
    gate_up, down = _mlp(checkpoint, prefix + "shared_experts.", shared)
    w13, w2 = _experts(checkpoint, prefix + "experts.", shard, min_expert_intermediate)
    return MoeWeights(
        router=checkpoint.read(prefix + "gate.weight"),
        correction_bias=checkpoint.read(prefix + "gate.e_score_correction_bias"),
        latent_down=checkpoint.read(prefix + "routed_expert_down_proj.weight"),
        latent_norm=checkpoint.read(prefix + "routed_expert_norm.weight"),
        latent_up=checkpoint.read(prefix + "routed_expert_up_proj.weight"),
        w13=w13,
        w2=w2,
        shared_gate_up=gate_up,
        shared_down=down,
    )


def _experts(checkpoint: Checkpoint, prefix: str, shard: Shard, min_expert_intermediate: int) -> tuple[Mxfp4, Mxfp4]:
    """w13 = gate | up and w2 of every expert, the intermediate channels of this rank."""
    moe = checkpoint.architecture.moe
    part = _split("expert intermediate channels", moe.expert_intermediate_size, shard, GROUP)
    size = part.stop - part.start
    padded = max(size, min_expert_intermediate)
    if padded % GROUP:
        raise UserError(
            f"an expert intermediate size of {padded} is no whole number of MXFP4 groups",
            f"use a multiple of {GROUP} for min_expert_intermediate",
        )
    w13 = _neutral(moe.experts, 2 * padded, moe.latent_size)
    w2 = _neutral(moe.experts, moe.latent_size, padded)
    for expert in range(moe.experts):
        for name, start in (("w1", 0), ("w3", padded)):
            for suffix, stack in (("weight_packed", w13.packed), ("weight_scale", w13.scale)):
                destination = stack[expert, start : start + size]
                checkpoint.read_into(destination, f"{prefix}{expert}.{name}.{suffix}", (part,))
        for suffix, stack, elements in (("weight_packed", w2.packed, 2), ("weight_scale", w2.scale, GROUP)):
            destination = stack[expert, :, : size // elements]
            checkpoint.read_into(destination, f"{prefix}{expert}.w2.{suffix}", (_ALL, _shrunk(part, elements)))
    return w13, w2


def _neutral(experts: int, rows: int, k: int) -> Mxfp4:
    """Zeros under scale 1."""
    return Mxfp4(
        packed=torch.zeros(experts, rows, k // 2, dtype=torch.uint8),
        scale=torch.full((experts, rows, k // GROUP), NEUTRAL_SCALE, dtype=torch.uint8),
    )
