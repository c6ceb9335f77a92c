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
class PackedMoe(MoeWeights):
    """A layer's MoE with the experts in fragment order."""

    w13: Packed
    w2: Packed


def dense(y: Tensor, weights: DenseWeights, architecture: Architecture) -> Tensor:
    """down(situ(gate y, up y)): a partial sum [rows, d] bf16 in three launches."""
    return _mlp(y, weights.gate_up, weights.down, architecture)


class Moe:
    """The routed and the shared expert of one rank at one local expert size.

    The latent projection and the shared expert run on a side stream, beside router, choice and routed experts. Router
    logits are float32 from bfloat16 operands.
    """

    def __init__(self, architecture: Architecture, intermediate: int) -> None:
        self.experts = Experts(architecture, intermediate)
        self._architecture = architecture
        self._side = torch.cuda.Stream()
        self._latent_ready = torch.cuda.Event()

    def pack(self, weights: MoeWeights) -> PackedMoe:
        """`weights` with the experts repacked where they are."""
        dense_parts = {name: value for name, value in vars(weights).items() if isinstance(value, Tensor)}
        w13, w2 = self.experts.pack(weights.w13, weights.w2)
        return PackedMoe(**dense_parts, w13=w13, w2=w2)

    def __call__(self, y: Tensor, weights: PackedMoe, reduce: Reduce) -> Tensor:
        """The layer's output [rows, d] bf16 from its normed input; `reduce` sums routed and shared parts over ranks."""
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            latent = self.latent(y, weights)
            self._latent_ready.record(self._side)
            shared = reduce(_mlp(y, weights.shared_gate_up, weights.shared_down, self._architecture))
        routes = self.experts.route(self.logits(y, weights), weights.correction_bias)
        main.wait_event(self._latent_ready)
        routed = reduce(self.experts(latent, routes, weights.w13, weights.w2))
        normed = pointwise.rms_norm(routed, weights.latent_norm, self._architecture.eps.backbone)
        main.wait_stream(self._side)
        # Up-projection plus shared expert, rounded once.
        return torch.addmm(shared, normed, weights.latent_up.T, out=shared)

    def logits(self, y: Tensor, weights: MoeWeights) -> Tensor:
        """Router logits [rows, E] float32."""
        return torch.mm(y, weights.router.T, out_dtype=torch.float32)

    def latent(self, y: Tensor, weights: MoeWeights) -> Tensor:
        """What the experts read, [rows, L] bf16: the latents times LATENT_SCALE, a power of two."""
        out = y.new_empty(len(y), len(weights.latent_down))
        return torch.addmm(out, y, weights.latent_down.T, beta=0, alpha=LATENT_SCALE, out=out)


def _mlp(y: Tensor, gate_up: Tensor, down: Tensor, architecture: Architecture) -> Tensor:
    return torch.mm(pointwise.situ(torch.mm(y, gate_up.T), architecture.situ), down.T)
