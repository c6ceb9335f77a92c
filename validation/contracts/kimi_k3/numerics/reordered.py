"""The plain path again with its sums in another order: the noise that two runs of one path differ by (A/A)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor

from ..step.precision import PUBLISHED, Precision

_SLICES = (2, 3, 4, 5)


@dataclass(frozen=True)
class Reordered(Precision):
    """`PUBLISHED` with every product cut along K into slices that are added up in an order of the seed's choice, and
    ranks summed in another order: what a library does that picks another split for another batch."""

    arithmetic: torch.dtype = PUBLISHED.arithmetic
    storage: torch.dtype = PUBLISHED.storage
    recurrent_state: torch.dtype = PUBLISHED.recurrent_state
    seed: int = 0

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """See `Precision`: accumulated in the arithmetic type, rounded once."""
        return self._sliced(F.linear, x, weight)

    def products(self, x: Tensor, matrices: Tensor) -> Tensor:
        """The same with matrices of their own: x [n, m, K] by [n, N, K]."""
        return self._sliced(lambda part, matrix: part @ matrix.mT, x, matrices)

    def _sliced(self, product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
        random = Random(f"{self.seed} {tuple(weight.shape[-2:])}")
        shift, count = random.randrange(x.shape[-1]), random.choice(_SLICES)
        both = (t.roll(shift, -1).chunk(count, -1) for t in (x, self.wide(weight)))
        slices = list(zip(*both, strict=True))
        random.shuffle(slices)
        total = product(*slices[0])
        for part in slices[1:]:
            total = total + product(*part)
        return self.round(total)

    def all_reduce(self, partials: Sequence[Tensor]) -> Tensor:
        """See `Precision`; the ranks in an order of the seed's choice."""
        shuffled = list(partials)
        Random(f"{self.seed} {len(shuffled)}").shuffle(shuffled)
        return super().all_reduce(shuffled)

