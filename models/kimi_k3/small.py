"""The decode path for a model of the same mechanism and other sizes: what a whole-model check of a small model runs.

Kernels hold the published model's sizes as constants. Whoever checks a small model gives them those of `constants`, in
a process of its own, before the decoder is made. Every op gets its Triton kernel with tiles that fit. Nothing here is
meant to be fast.
"""

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from torch import Tensor

from .decode import Decoder, Inputs
from .dispatch import Directory
from .environment import Claim, Environment
from .plan import Step
from .shape import Shape

__all__ = ["constants", "rows_of", "small"]

_LOG2_E = 1.4426950408889634
_TILE = {"structure": "tiles", "splits": 1, "num_warps": 4, "num_stages": 2}


def small(
    config: Mapping[str, Any], model: Any, directory: Directory, context: Any, *, card: str,
    capability: tuple[int, int], multiprocessors: int, buckets: Sequence[int] = (1,), device: str = "cuda",
) -> Decoder:  # fmt: skip
    """A decoder of one unsharded rank, once kernels have the sizes of `constants`.

    `config`: the `text_config` of a checkpoint; `model`: its weights, see weights.py; `card`: name of the hardware in
    the dispatch tables. Raises ValueError as `Decoder` does.
    """
    shape = Shape.of(config)
    rows = (min(buckets), max(buckets))
    tables = {
        op: ({"hardware": card, "tp": 1, "rows": rows, "kernel": f"kernels/{op}.py", "config": tiles,
              "basis": "modelled"},)
        for op, tiles in _tiles(shape).items()
    }  # fmt: skip
    fitted = Directory((Claim(card, 1, rows, 1),), tables, directory.kernel)
    here = Environment(card, capability, multiprocessors, 1, shape)
    return Decoder(model, here, fitted, context, shape=shape, buckets=buckets, device=device)


def rows_of(embedding: Tensor, slots: Tensor, page_table: Tensor, lengths: Tensor) -> tuple[Step, Inputs]:
    """A step of one token a request; tensors as `Inputs` has them."""
    return Step((1,) * len(slots)), Inputs(embedding, slots, page_table, lengths)


def constants(config: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Kernel file, relative to the model directory -> its constants for a model of these sizes."""
    of = Shape.of(config)
    found = {
        "attn_res_norm": {"HIDDEN": of.hidden}, "residual": {"HIDDEN": of.hidden},
        "routing": {"EXPERTS": of.experts, "TOP": of.top_k},
        "front": {"EXPERTS": of.experts, "LATENT": of.latent}, "latent_up": {"LATENT": of.latent},
        "experts": {"LATENT": of.latent, "TOP": of.top_k},
        # The gate's rank is a head's width.
        "kda_decode": {"HEAD_DIM": of.kda_head_dim, "GATE_RANK": of.kda_head_dim},
        "mla_core": {
            "LATENT": of.kv_rank, "SHARED": of.rope_dim,
            "SCALE_LOG2": (of.nope_dim + of.rope_dim) ** -0.5 * _LOG2_E,
        },
        "mla_value": {"LATENT": of.kv_rank, "HEAD_DIM": of.v_dim},
        "mla_query": {"Q_RANK": of.q_rank, "LATENT": of.kv_rank, "NOPE": of.nope_dim, "ROPE": of.rope_dim},
    }  # fmt: skip
    return {f"kernels/{file}.py": values for file, values in found.items()}


def _tiles(of: Shape) -> dict[str, dict[str, Any]]:
    """Op -> configuration: tiles as large as divide what they have to divide, up to 128."""
    product = {**_TILE, "block_n": 128, "block_k": 128}
    names = ("in_projection", "mla_projection", "shared_down", "head", "o_proj_residual", "dense_down", "dense_up")
    queries = {name: value for name, value in product.items() if name != "splits"}
    experts = _power(of.latent, 2 * of.expert_intermediate)
    return {name: product for name in names} | {
        "latent_up": product,
        # A tile holds columns of one product; of one head; of one part of a head.
        "front": {**product, "block_n": _power(of.experts, of.latent, of.shared_experts * of.expert_intermediate)},
        "mla_value": {**product, "block_n": _power(of.v_dim)},
        "mla_query": {**queries, "block_n": _power(of.nope_dim, of.rope_dim)},
        "kda_decode": {"structure": "fused", "block_v": of.kda_head_dim, "num_warps": 4},
        "routing": {"num_warps": 4},
        "attn_res_norm": {"num_warps": 4},
        "experts": {
            "structure": "gemv", "block_n": min(64, experts), "block_k": _power(of.latent), "num_warps": 1,
            "num_stages": 2,
        },
        "mla_core": {"splits": 2, "block_tokens": 32, "num_warps": 4, "num_stages": 2},
    }  # fmt: skip


def _power(*sizes: int) -> int:
    """The largest power of two up to 128 that divides all of them."""
    common = gcd(*sizes, 128)
    return common & -common
