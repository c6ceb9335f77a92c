"""The step model with an eye on it: the stream behind every layer, and which experts each row went to."""

from collections.abc import Sequence

from torch import Tensor

from ..layer_weights import LayerWeights, MoeWeights
from ..step import dense
from ..step.attn_res import Stream
from ..step.model import Attention, Model
from ..step.moe import experts
from ..step.norm import rms_norm
from ..step.router import choose, router_logits


class Observed(Model):
    """A `Model` that remembers the last step; its parts are methods, so that a planted fault overrides one."""

    streams: list[Tensor]
    """[rows, d] behind each layer of the last step"""
    chosen: dict[int, Tensor]
    """Layer -> [rows, top k] ids of experts, in increasing order"""
    scores: dict[int, Tensor]
    """Layer -> [rows, experts]: what experts are chosen by, sigmoid of the logits plus the correction bias"""
    number = 0
    """The layer that runs now"""

    def embed(self, tokens: Tensor) -> Stream:
        """See `Model`; forgets the step before."""
        self.streams, self.chosen, self.scores = [], {}, {}
        return super().embed(tokens)

    def layer(self, number: int, stream: Stream, ranks: Sequence[LayerWeights], attention: Attention) -> None:
        """See `Model`."""
        self.number = number
        super().layer(number, stream, ranks, attention)
        self.streams.append(stream.prefix)

    def _mlp(self, y: Tensor, ranks: Sequence[LayerWeights]) -> Tensor:
        mlps = [rank.mlp for rank in ranks]
        if isinstance(mlps[0], MoeWeights):
            return self.moe(y, mlps)
        return super()._mlp(y, ranks)

    def moe(self, y: Tensor, ranks: Sequence[MoeWeights]) -> Tensor:
        """As step/moe.py, in overridable parts."""
        first, precision = ranks[0], self.precision
        logits = self.router_logits(y, first.router)
        ids, weights = self.choose(logits, first.correction_bias)
        self.scores[self.number] = logits.sigmoid() + precision.wide(first.correction_bias)
        self.chosen[self.number] = ids.sort(-1).values
        latent = precision.linear(y, first.latent_down)
        routed = [self.experts(latent, ids, weights, rank) for rank in ranks]
        normed = self.latent_norm(routed, first.latent_norm)
        shared = [self.shared(y, rank) for rank in ranks]
        return precision.round(precision.linear(normed, first.latent_up) + precision.all_reduce(shared))

    def router_logits(self, y: Tensor, weight: Tensor) -> Tensor:
        """See step/router.py."""
        return router_logits(y, weight, self.precision)

    def choose(self, logits: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """See step/router.py."""
        return choose(logits, bias, self.architecture.moe, self.precision)

    def experts(self, latent: Tensor, ids: Tensor, weights: Tensor, rank: MoeWeights) -> Tensor:
        """See step/moe.py: one rank's partial sum."""
        return experts(latent, ids, weights, rank, self.architecture.situ, self.precision)

    def shared(self, y: Tensor, weights: MoeWeights) -> Tensor:
        """One rank's share of the shared expert."""
        return dense.partial(y, weights.shared_gate_up, weights.shared_down, self.architecture.situ, self.precision)

    def latent_norm(self, routed: Sequence[Tensor], weight: Tensor) -> Tensor:
        """The norm of what all ranks' experts sum to: not linear, so behind the sum."""
        summed = self.precision.all_reduce(routed)
        return rms_norm(summed, weight, self.architecture.eps.backbone, self.precision)

