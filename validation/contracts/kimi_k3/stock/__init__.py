"""The stock path of a decode step on a GPU: one rank's layers from the best pieces a user of the card has today."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from ..architecture import Architecture

if TYPE_CHECKING:
    from .layer import Stock


def path(
    architecture: Architecture,
    tp: int,
    *,
    device: str = "cuda",
    reduce: Callable[[Tensor], Tensor] = lambda partial: partial,
) -> "Stock":
    """One rank of a group of `tp` on `device`.

    `reduce` sums a partial [rows, .] bf16 over ranks on the current stream. The default hands it back: what one rank
    alone can run; a group's communication is then neither done nor timed. Raises UserError naming what is missing.
    """
    from . import require

    gpu = require.gpu(device)
    from .layer import Stock

    return Stock(architecture, tp, gpu, reduce)
