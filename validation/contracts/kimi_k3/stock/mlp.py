"""The MLPs of one rank: the dense SiTU layer, and the latent mixture of experts with its shared expert beside it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..architecture import Architecture
from ..layer_weights import DenseWeights, MoeWeights
from . import pointwise
from .experts import LATENT_SCALE, Experts
from .packing import Packed

Reduce = Callable[[Tensor], Tensor]
"""A rank's partial sum to the sum over ranks, on the current stream."""


@dataclass(frozen=True)
class PackedExperts:
    """What a layer's MoE reads up to the sum over ranks, as it is launched."""

    router: Tensor
    """[E, d]"""
    correction_bias: Tensor
    """[E] float32"""
    front: Tensor
    """[latent_down L | shared gate S | shared up S, d]: one product"""
    shared_down: Tensor
    """[d, S]"""
    w13: Packed
    w2: Packed

    @property
    def shared(self) -> int:
        """S."""
        return self.shared_down.shape[1]


@dataclass(frozen=True)
class PackedMoe(PackedExperts):
    """A layer's MoE as it is launched."""

    latent_norm: Tensor
    latent_up: Tensor


def dense(y: Tensor, weights: DenseWeights, architecture: Architecture) -> Tensor:
    """down(situ(gate y, up y)): a partial sum [rows, d] bf16 in three launches."""
    return torch.mm(pointwise.situ(torch.mm(y, weights.gate_up.T), architecture.situ), weights.down.T)


class Moe:
    """The routed and the shared expert of one rank at one local expert size.

    The latent projection, in one product with the shared expert's first, and the rest of the shared expert run on a
    side stream, beside router, choice and routed experts. Router logits are float32 from bfloat16 operands.
    """

    def __init__(self, architecture: Architecture, intermediate: int) -> None:
        self.experts = Experts(architecture, intermediate)
        self._architecture = architecture
        self._side = torch.cuda.Stream()
        self._latent_ready = torch.cuda.Event()

    def pack(self, weights: MoeWeights) -> PackedMoe:
        """`weights` with the experts repacked where they are."""
        w13, w2 = self.experts.pack(weights.w13, weights.w2)
        return PackedMoe(
            weights.router,
            weights.correction_bias,
            torch.cat([weights.latent_down, weights.shared_gate_up]),
            weights.shared_down,
            w13,
            w2,
            weights.latent_norm,
            weights.latent_up,
        )

    def __call__(self, y: Tensor, weights: PackedMoe, reduce: Reduce) -> Tensor:
        """The layer's output [rows, d] bf16 from its normed input; `reduce` sums routed and shared parts over ranks."""
        routed, shared = self.partials(y, weights, reduce)
        normed = pointwise.rms_norm(routed, weights.latent_norm, self._architecture.eps.backbone)
        # Up-projection plus shared expert, rounded once.
        return torch.addmm(shared, normed, weights.latent_up.T, out=shared)

    def partials(
        self, y: Tensor, weights: PackedExperts, reduce: Reduce, outputs: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Routed [rows, L] and shared [rows, d] part, each through `reduce`, ready on the current stream.

        Before `reduce` they are put into `outputs`, if given.
        """
        routed, shared = outputs or (None, y.new_empty(y.shape))
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            latent, gate_up = self.front(y, weights)
            self._latent_ready.record(self._side)
            activation = pointwise.situ(gate_up, self._architecture.situ, factor=1 / LATENT_SCALE)
            shared = reduce(torch.mm(activation, weights.shared_down.T, out=shared))
        routes = self.experts.route(self.logits(y, weights), weights.correction_bias)
        main.wait_event(self._latent_ready)
        routed = reduce(self.experts(latent, routes, weights.w13, weights.w2, routed))
        main.wait_stream(self._side)
        return routed, shared

    def logits(self, y: Tensor, weights: PackedExperts) -> Tensor:
        """Router logits [rows, E] float32."""
        return torch.mm(y, weights.router.T, out_dtype=torch.float32)

    def front(self, y: Tensor, weights: PackedExperts) -> tuple[Tensor, Tensor]:
        """Latents [rows, L] and the shared expert's gate | up [rows, 2 S], both times LATENT_SCALE, a power of two."""
        out = y.new_empty(len(y), len(weights.front))
        torch.addmm(out, y, weights.front.T, beta=0, alpha=LATENT_SCALE, out=out)
        return out.split([len(weights.front) - 2 * weights.shared, 2 * weights.shared], 1)
