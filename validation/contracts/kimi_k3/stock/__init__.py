"""The stock path on a GPU: ops, parts of the op graph, layers, from the best pieces a user of the card has today."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...base import OpContract, Workload
from ...stock import Packs, StockPath, StockRun
from ..architecture import Architecture
from ..graph import OpGraph
from . import require

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
    gpu = require.gpu(device)
    from .layer import Stock

    return Stock(architecture, tp, gpu, reduce)


def op(contract: OpContract, device: str = "cuda") -> StockPath:
    """The stock path of one op. Raises UserError naming what is missing."""
    gpu = require.gpu(device)
    from . import ops

    torch.cuda.set_device(gpu)
    return StockPath(partial(ops.prepare, contract))


def part(
    graph: OpGraph,
    names: Iterable[str],
    contracts: Mapping[str, OpContract],
    tensors: Mapping[str, Tensor],
    workloads: Mapping[str, Workload],
    *,
    device: str = "cuda",
    rank: int = 0,
    packs: Packs | None = None,
) -> StockRun:
    """A connected part of the op graph, a layer or a step among them, bound to tensors: see `parts.prepare`."""
    torch.cuda.set_device(require.gpu(device))
    from .parts import prepare

    return prepare(graph, names, contracts, tensors, workloads, rank=rank, packs=packs)
