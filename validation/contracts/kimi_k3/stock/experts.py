"""The routed experts of one rank: `experts.cu` bound to a model's sizes, launched on tensors."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..architecture import Architecture
from ..layer_weights import Mxfp4
from . import tactics
from .nvrtc import Module
from .packing import Packed, pack_rows, paired_rows

LATENT_SCALE = 2.0**96
"""What the latents are multiplied by on their way in: see experts.cu"""

_SOURCE = Path(__file__).with_name("experts.cu")
_SECOND_WARPS = 4
_COMBINE_THREADS = 128


@dataclass(frozen=True)
class Routes:
    """Where the tokens of a step go. A pair is row * top_k + place."""

    ids: Tensor
    """[rows, top_k] int32, best first"""
    weights: Tensor
    """[rows, top_k] float32"""
    unit_expert: Tensor
    """[units] int32: the expert of each unit, then -1"""
    unit_pairs: Tensor
    """[units, 8] int32: its pairs, then -1"""


class Experts:
    """Router choice and routed experts at one local intermediate size; shared by the layers of a model."""

    def __init__(self, architecture: Architecture, intermediate: int) -> None:
        moe = self._moe = architecture.moe
        self._intermediate = intermediate
        self._width = tactics.CHUNK * tactics.chunks(intermediate)
        latent_chunks, chunks = tactics.chunks(moe.latent_size), tactics.chunks(intermediate)
        self._tactic1 = first = tactics.first(latent_chunks)
        self._tactic2 = second = tactics.second(chunks, moe.latent_size // 16)
        module = Module(
            _SOURCE,
            {
                "EXPERTS": moe.experts,
                "TOP_K": moe.top_k,
                "LATENT": moe.latent_size,
                "INTER": intermediate,
                "FIRST_WARPS": first.warps,
                "FIRST_DEPTH": first.depth,
                "FIRST_VECTOR": tactics.vector(latent_chunks),
                "SECOND_WARPS": _SECOND_WARPS,
                "SECOND_FEW": second.few,
                "SECOND_MANY": second.many,
                "SECOND_DEPTH": second.depth,
                "SECOND_VECTOR": tactics.vector(chunks),
                "SITU_BETA": float(architecture.situ.beta),
                "SITU_LINEAR_BETA": float(architecture.situ.linear_beta),
                "ROUTED_SCALING": float(moe.routed_scaling_factor),
            },
        )
        self._route, self._group, self._first, self._second_few, self._second_many, self._combine = (
            module.kernel(name) for name in ("route", "group", "first", "second_few", "second_many", "combine")
        )
        self._arrived = torch.zeros(1, dtype=torch.int32, device="cuda")

    def pack(self, w13: Mxfp4, w2: Mxfp4, *, unused_nan: bool = False) -> tuple[Packed, Packed]:
        """w13 [E, gate I | up I, L] and w2 [E, L, I] in fragment order. Raises UserError for sizes that do not fit.

        `unused_nan`: experts that no row will choose may have scales of NaN.
        """
        order = paired_rows(self._intermediate, w13.packed.device)
        return pack_rows(w13, order, unused_nan=unused_nan), pack_rows(w2, unused_nan=unused_nan)

    def route(self, logits: Tensor, correction_bias: Tensor) -> Routes:
        """From router logits [rows, E] float32: one launch. Ties, zeros of both signs, NaN: as the plain path."""
        routes = self._routes(logits, len(logits))
        self._choose(logits, correction_bias, routes, len(routes.unit_expert))
        return routes

    def choose(self, logits: Tensor, correction_bias: Tensor, ids: Tensor, weights: Tensor) -> None:
        """The choice alone, into `ids` [rows, top_k] int32 and `weights` [rows, top_k] float32: one launch."""
        self._choose(logits, correction_bias, Routes(ids, weights, ids, ids), 0)

    def group(self, x: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, Routes]:
        """The latents [rows, L] bf16 of `x` times LATENT_SCALE, and the units of `ids`: one launch."""
        rows = len(ids)
        routes = replace(self._routes(weights, rows), ids=ids, weights=weights)
        latent = x.new_empty(rows, self._moe.latent_size)
        self._group(
            (1 + rows, 1),
            32 * -(-self._moe.experts // 32),
            [ids, x, x.stride(0), rows, len(routes.unit_expert), routes.unit_expert, routes.unit_pairs, latent],
        )
        return latent, routes

    def _routes(self, like: Tensor, rows: int) -> Routes:
        moe = self._moe
        units = tactics.max_units(rows, moe.top_k, moe.experts)
        return Routes(
            like.new_empty(rows, moe.top_k, dtype=torch.int32),
            like.new_empty(rows, moe.top_k, dtype=torch.float32),
            like.new_empty(units, dtype=torch.int32),
            like.new_empty(units, tactics.GROUP_TOKENS, dtype=torch.int32),
        )

    def _choose(self, logits: Tensor, correction_bias: Tensor, routes: Routes, units: int) -> None:
        self._route(
            (len(logits), 1),
            32 * -(-self._moe.experts // 32),
            [
                logits,
                logits.stride(0),
                correction_bias,
                len(logits),
                units,
                routes.ids,
                routes.weights,
                routes.unit_expert,
                routes.unit_pairs,
                self._arrived,
            ],
        )

    def __call__(self, latent: Tensor, routes: Routes, w13: Packed, w2: Packed, out: Tensor | None = None) -> Tensor:
        """This rank's partial sum [rows, L] bf16 from `latent` [rows, L] bf16 times LATENT_SCALE: three launches."""
        return self.combine(self.second(self.first(latent, routes, w13), routes, w2), routes, out)

    def first(self, latent: Tensor, routes: Routes, w13: Packed) -> Tensor:
        """situ(W13 z) of every pair, [pairs, I padded to 64] bf16, scaled by LATENT_SCALE."""
        new = latent.new_empty if self._width == self._intermediate else latent.new_zeros
        activated = new(routes.ids.numel(), self._width)
        self._first(
            (self._intermediate // 8, self._parallel_units(routes)),
            32 * self._tactic1.warps,
            [
                w13.words,
                w13.scales,
                latent,
                latent.stride(0),
                routes.unit_expert,
                routes.unit_pairs,
                len(routes.unit_expert),
                activated,
            ],
        )
        return activated

    def second(self, activated: Tensor, routes: Routes, w2: Packed) -> Tensor:
        """W2 of every pair's activation, [pairs, L] bf16."""
        outputs = activated.new_empty(len(activated), self._moe.latent_size)
        units = self._parallel_units(routes)
        each = self._tactic2.each(units)
        kernel = self._second_few if each == self._tactic2.few else self._second_many
        kernel(
            (-(-self._moe.latent_size // (16 * each * _SECOND_WARPS)), units),
            32 * _SECOND_WARPS,
            [w2.words, w2.scales, activated, routes.unit_expert, routes.unit_pairs, len(routes.unit_expert), outputs],
        )
        return outputs

    def combine(self, outputs: Tensor, routes: Routes, out: Tensor | None = None) -> Tensor:
        """The weighted sum over each token's experts, [rows, L] bf16."""
        rows, latent = len(routes.ids), self._moe.latent_size
        routed = outputs.new_empty(rows, latent) if out is None else out
        self._combine(
            (-(-latent // (2 * _COMBINE_THREADS)), rows), _COMBINE_THREADS, [outputs, routes.weights, routed]
        )
        return routed

    def _parallel_units(self, routes: Routes) -> int:
        return tactics.expected_units(len(routes.ids), self._moe.top_k, self._moe.experts)
