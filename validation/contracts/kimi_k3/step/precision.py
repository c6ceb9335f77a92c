"""Where a decode step rounds: one switch for the whole graph, and the points that implementations disagree about."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor


class L2(StrEnum):
    """How the epsilon of KDA's L2 norm enters. The two differ only for rows next to zero."""

    INSIDE = "inside"
    """x / sqrt(sum(x^2) + eps): fla-core, vLLM, FlashInfer"""
    MAX = "max"
    """x / max(|x|, eps): some reference code"""


class MixRounding(StrEnum):
    """Whether an AttnRes mix is rounded to the storage type before the norm that follows it."""

    ALWAYS = "always"
    """The published modelling code"""
    FINAL = "final"
    """Fused decode kernels: only the mix before the head, which an unfused norm reads"""
    NEVER = "never"
    """Every mix stays in the arithmetic type"""


@dataclass(frozen=True)
class Precision:
    """Types of a step. Values between modules have type `arithmetic` and are representable in `storage`.

    The flags name rounding points on which public implementations differ; their defaults are the published model's.
    They act only where `storage` is narrower than `arithmetic`. Epsilons are named in `NormEps`.
    """

    arithmetic: torch.dtype
    """Products, sums, norms, softmax, the recurrence"""
    storage: torch.dtype
    """What a module leaves behind: activations, the convolution window, latent rows"""
    recurrent_state: torch.dtype
    """What the recurrent pool holds. Engines offer bfloat16 as an option"""
    l2: L2 = L2.INSIDE
    mix: MixRounding = MixRounding.ALWAYS
    round_normalised: bool = True
    """RMSNorm rounds x rsqrt(mean x^2 + eps) before it multiplies by the weight; fused kernels do not"""
    round_convolved: bool = False
    """q, k and v are rounded after convolution and SiLU; FlashInfer's fused kernel does, vLLM's does not"""
    round_core: bool = False
    """The output of the recurrence is rounded before the gated norm; FlashInfer's fused kernel does"""
    round_routing_weights: bool = False
    """Routing weights are rounded before they scale expert outputs; TRT-LLM-gen's consumers take bfloat16"""

    def wide(self, x: Tensor) -> Tensor:
        """`x` in the arithmetic type."""
        return x.to(self.arithmetic)

    def round(self, x: Tensor, *, where: bool = True) -> Tensor:
        """`x`, rounded to the storage type and widened again; as it is unless `where`."""
        return x.to(self.storage).to(self.arithmetic) if where and self.storage is not self.arithmetic else x

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x W^T with [..., K] and [N, K]: accumulated in the arithmetic type, rounded once."""
        return self.round(F.linear(x, self.wide(weight)))

    def all_reduce(self, partials: Sequence[Tensor]) -> Tensor:
        """The sum over ranks, in rank order, rounded once; `partials` are what each rank sends, rounded already."""
        total = partials[0]
        for partial in partials[1:]:
            total = total + partial
        return self.round(total)

    def round_mix(self, mixed: Tensor, *, final: bool) -> Tensor:
        """An AttnRes mix as the following norm reads it."""
        return self.round(mixed, where=self.mix is MixRounding.ALWAYS or (final and self.mix is MixRounding.FINAL))


EXACT = Precision(arithmetic=torch.float64, storage=torch.float64, recurrent_state=torch.float64)
"""The oracle: nothing is rounded but float64 itself."""

PUBLISHED = Precision(arithmetic=torch.float32, storage=torch.bfloat16, recurrent_state=torch.float32)
"""The plain path: float32 accumulation, bfloat16 wherever the published model leaves a tensor."""
