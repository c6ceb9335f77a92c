"""Attention residuals: which earlier states a sublayer reads, and how it mixes them.

The residual stream is cut into blocks of `block_size` layers. At the first layer of a block the stream is banked and
restarts from that layer's attention output alone; every sublayer reads a softmax mix of all banked blocks and the
stream. Source: Attention Residuals (arXiv 2603.15031), as the published model places the mixes.
"""

import torch
from torch import Tensor

from ....errors import UserError
from ..layer_weights import MixWeights
from .norm import rms_norm
from .precision import Precision


class Stream:
    """The residual stream of one forward pass over `rows` tokens, and its banked blocks."""

    def __init__(self, embedding: Tensor, block_size: int, precision: Precision) -> None:
        self.prefix = embedding
        """[rows, d]: the stream"""
        self.blocks: list[Tensor] = []
        """[rows, d] each: the stream as it entered layers 0, block_size, 2 block_size, ..."""
        self._block_size = block_size
        self._precision = precision

    @property
    def sources(self) -> list[Tensor]:
        """What a mix reads now: the banked blocks, oldest first, then the stream."""
        return [*self.blocks, self.prefix]

    def enter(self, layer: int) -> list[Tensor]:
        """The sources of `layer`'s attention mix; banks the stream where a block begins.

        The banked stream is not a second source of this mix: it equals the stream. Layers come in order: UserError.
        """
        banked = -(-layer // self._block_size)
        if len(self.blocks) != banked:
            raise UserError(
                f"layer {layer} reads {banked} banked blocks, but this stream holds {len(self.blocks)}",
                "walk the layers in order from 0; a part of a walk takes over the stream of the part before",
            )
        sources = self.sources
        if layer % self._block_size == 0:
            self.blocks.append(self.prefix)
        return sources

    def after_attention(self, layer: int, output: Tensor) -> None:
        """Takes up the attention output of `layer`: alone where a block begins, else added."""
        begins = layer % self._block_size == 0
        self.prefix = output if begins else self._precision.round(self.prefix + output)

    def after_mlp(self, output: Tensor) -> None:
        """Takes up the output of a layer's MLP."""
        self.prefix = self._precision.round(self.prefix + output)


def mix(sources: list[Tensor], weights: MixWeights, eps: float, precision: Precision, *, final: bool = False) -> Tensor:
    """sum_s softmax_s(l) v_s with l_s = (v_s . (w_norm * w_proj)) / sqrt(mean(v_s^2) + eps), [rows, d].

    Keys are normalised, the mixed values are the raw sources. One source is returned as it is.
    """
    values = torch.stack(sources)
    query = precision.wide(weights.res_norm) * precision.wide(weights.res_proj)
    logits = (values @ query) * (values.square().mean(-1) + eps).rsqrt()
    mixed = (logits.softmax(0)[..., None] * values).sum(0)
    return precision.round_mix(mixed, final=final)


def mix_norm(
    sources: list[Tensor], weights: MixWeights, eps: float, precision: Precision, *, final: bool = False
) -> Tensor:
    """The mix and the RMSNorm behind it: what a sublayer, or the head, reads."""
    return rms_norm(mix(sources, weights, eps, precision, final=final), weights.out_norm, eps, precision)
