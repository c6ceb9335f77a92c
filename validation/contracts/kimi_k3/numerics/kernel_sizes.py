"""The published model's sizes, as kernels hold them, for another architecture; and tiles that fit small widths.

Kernels are written for one model: their sizes are constants of their modules. To run them on the nano model they are
given its sizes, and nothing else of them changes. Dispatch tables are about the real widths, so small ones get
configurations of their own here: which kernels run is the same, how they are cut is not.
"""

from collections.abc import Mapping
from typing import Any

from ..architecture import Architecture

_LOG2_E = 1.4426950408889634
_TILES = {"structure": "tiles", "block_n": 128, "block_k": 128, "splits": 1, "num_warps": 4, "num_stages": 2}
_PRODUCTS = ("in_projection", "mla_projection", "shared_down", "head", "o_proj_residual", "dense_down", "dense_up")


def constants(of: Architecture) -> dict[str, dict[str, float]]:
    """Kernel file, without its ending -> its constants for `of`."""
    mla, moe, width = of.mla, of.moe, of.hidden_size
    scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** -0.5 * _LOG2_E
    return {
        "attn_res_norm": {"HIDDEN": width},
        "residual": {"HIDDEN": width},
        "routing": {"EXPERTS": moe.experts, "TOP": moe.top_k},
        "front": {"EXPERTS": moe.experts, "LATENT": moe.latent_size},
        "latent_up": {"LATENT": moe.latent_size},
        "experts": {"LATENT": moe.latent_size, "TOP": moe.top_k},
        **{
            op: {"HEAD_DIM": of.kda.head_dim, "GATE_RANK": of.kda.gate_rank} for op in ("kda_decode", "kda_verify")
        },
        **{
            op: {"LATENT": mla.kv_lora_rank, "SHARED": mla.qk_rope_head_dim, "SCALE_LOG2": scale}
            for op in ("mla_core", "mla_verify")
        },
        "mla_value": {"LATENT": mla.kv_lora_rank, "HEAD_DIM": mla.v_head_dim},
        "mla_query": {
            "Q_RANK": mla.q_lora_rank, "LATENT": mla.kv_lora_rank, "NOPE": mla.qk_nope_head_dim,
            "ROPE": mla.qk_rope_head_dim,
        },
    }  # fmt: skip


def sizes(of: Architecture) -> dict[str, Any]:
    """The fields of the decode path's `Shape`."""
    return {
        "hidden": of.hidden_size, "layers": of.layers, "vocabulary": of.vocab_size,
        "dense_intermediate": of.dense_intermediate_size, "block_size": of.attn_res_block_size,
        "kda_layers": of.kda_layers, "kda_heads": of.kda.heads, "kda_head_dim": of.kda.head_dim,
        "conv_width": of.kda.conv_width, "mla_heads": of.mla.heads, "q_rank": of.mla.q_lora_rank,
        "kv_rank": of.mla.kv_lora_rank, "nope_dim": of.mla.qk_nope_head_dim, "rope_dim": of.mla.qk_rope_head_dim,
        "v_dim": of.mla.v_head_dim, "experts": of.moe.experts, "top_k": of.moe.top_k, "latent": of.moe.latent_size,
        "expert_intermediate": of.moe.expert_intermediate_size, "shared_experts": of.moe.shared_experts,
        "first_moe": of.moe.first_layer,
    }  # fmt: skip


def configurations(of: Architecture, tp: int) -> dict[str, Mapping[str, Any]]:
    """Op -> a configuration that fits `of` on one rank of `tp`. Every op runs as a kernel of its own.

    Tiles are as large as widths allow: an interpreter's time goes with the number of programs.
    """
    columns = of.hidden_size // tp
    head, latent = of.mla.v_head_dim, of.mla.kv_lora_rank
    # A tile of the front holds columns of one product; a tile of an expert is one of gate and up, and of the outputs.
    front = _power(of.moe.experts, of.moe.latent_size)
    expert = min(64, _power(of.moe.latent_size, 2 * of.moe.expert_intermediate_size // tp))
    query = {**_TILES, "block_n": min(32, _power(of.mla.qk_nope_head_dim, of.mla.qk_rope_head_dim)), "block_k": 32}
    query.pop("splits")
    return {
        **{op: _TILES for op in _PRODUCTS},
        "latent_up": {**_TILES, "block_n": min(128, _power(columns)), "block_k": min(64, of.moe.latent_size)},
        "front": {**_TILES, "block_n": front},
        "mla_value": {**_TILES, "block_n": min(32, head), "block_k": min(64, latent)},
        "mla_query": query,
        "kda_decode": {"structure": "fused", "block_v": of.kda.head_dim, "num_warps": 4},
        "kda_verify": {"block_v": of.kda.head_dim, "num_warps": 4},
        "routing": {"num_warps": 4},
        "attn_res_norm": {"num_warps": 4},
        "experts": {
            "structure": "gemv", "block_n": expert, "block_k": min(64, of.moe.latent_size), "num_warps": 1,
            "num_stages": 2,
        },
        "mla_core": {"splits": 2, "block_tokens": 64, "num_warps": 4, "num_stages": 2},
        "mla_verify": {"block_q": 32, "splits": 2, "block_tokens": 64, "num_warps": 4, "num_stages": 2},
    }  # fmt: skip


def _power(*widths: int) -> int:
    """The largest power of two that divides all of `widths`."""
    return min(width & -width for width in widths)
