"""How a stock path is called: prepared once on tensors of a GPU, then launched at will."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .base import Workload

if TYPE_CHECKING:
    from torch import Tensor


Packs = dict[tuple[int, ...], Any]
"""What was repacked, by the addresses of what it was made of: parts of one step that have the same weights repack them once"""


@dataclass(frozen=True)
class StockRun:
    """A stock path bound to tensors: all that a timer calls."""

    run: Callable[[], None]
    """Launches on torch's current stream and does nothing else: a CUDA graph can capture it after one call. Inputs and
    states are read where they lay when the run was prepared, so what is written there counts at the next call"""
    outputs: "Mapping[str, Tensor]"
    """Every produced tensor: outputs in buffers of the run, each call's over the last one's; states as they were given,
    updated in place"""


@dataclass(frozen=True)
class StockPath:
    """The stock path of an op, or of a part of the op graph."""

    prepare: "Callable[[Mapping[str, Tensor], Workload], StockRun]"
    """(tensors on the GPU, laid out as the contract says; workload) -> a run. Repacks static tensors, allocates all
    buffers. Runs that shall find nothing in a cache are prepared on copies of their own"""

    def __call__(self, tensors: "Mapping[str, Tensor]", workload: Workload) -> "dict[str, Tensor]":
        """Prepared and run once: every produced tensor."""
        bound = self.prepare(tensors, workload)
        bound.run()
        return dict(bound.outputs)
