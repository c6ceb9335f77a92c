"""A recurrence over many steps on a GPU: a handful of small launches a step, replayed from graphs of a block of steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ...contracts.base import Workload

BLOCK = 50


class Path(Protocol):
    """A recurrence: contracts/kimi_k3/numerics/long_state.py, or `Kernel`."""

    window: Tensor
    state: Tensor

    def step(self, projected: Tensor) -> Tensor:
        """One token a stream [streams, projected width]: the output [streams, channels]."""


class Kernel:
    """The kernel of the recurrence, on pools of its own. `bound` gives its launch on laid-out tensors."""

    def __init__(self, drift: Any, contract: Any, bound: Callable[[Workload, Mapping[str, Tensor]], Callable[[], None]]) -> None:
        from ...contracts.kimi_k3.kda_decode import layout
        from ...contracts.kimi_k3.numerics import op_exams
        from ...contracts.kimi_k3.numerics.long_state import STREAMS

        shard = drift.architecture.kda_shard(drift.tp)
        at = layout.workload(shard, "long", STREAMS)
        self._slots = 1 + torch.arange(STREAMS, device=drift.device)
        inputs = {spec.name: torch.zeros(spec.shape, device=drift.device) for spec in contract.tensors(at)}
        inputs |= {**drift.static, "slots": self._slots.int()}
        self._tensors = op_exams.laid(contract, at, inputs)
        self._launch = bound(at, self._tensors)
        # What is moved on in place is no value that anybody has to carry.
        self.window, self._pool = self._tensors["conv_state"], self._tensors["recurrent_state"]

    @property
    def state(self) -> Tensor:
        """[streams, heads, D, D]"""
        return self._pool[self._slots]

    def step(self, projected: Tensor) -> Tensor:
        """As Path."""
        self._tensors["projected"].copy_(projected)
        self._launch()
        return self._tensors["out"]


class _Replayed:
    """One path's graph of a block, on a stream of its own."""

    def __init__(self, path: Path) -> None:
        self.path, self._graph = path, None
        self.out: Tensor

    def eagerly(self, projections: Tensor) -> None:
        for projected in projections:
            self.out = self.path.step(projected)

    def replay(self, projections: Tensor) -> None:
        """`projections` lie at the same place each time."""
        if self._graph is None:
            self._stream = torch.cuda.Stream()
            self._stream.wait_stream(torch.cuda.current_stream())
            self._capture(projections)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._graph.replay()

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)

    def _capture(self, projections: Tensor) -> None:
        path, graph = self.path, torch.cuda.CUDAGraph()
        carried = {} if isinstance(path, Kernel) else {name: getattr(path, name) for name in ("window", "state")}
        # Captured on the stream that it is replayed on: cuBLAS has one workspace a stream, and graphs that were captured on the same
        # one write their partial sums into the same memory, at the same time.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            for projected in projections:
                out = path.step(projected)
            for name, place in carried.items():
                place.copy_(getattr(path, name))
                setattr(path, name, place)
        self._graph, self.out = graph, out


@torch.no_grad()
def states(
    drift: Any, paths: Mapping[str, Path], steps: int, decades: Sequence[int], say: Callable[[int], None] = lambda step: None
) -> dict[int, dict[str, tuple[Tensor, Tensor]]]:  # fmt: skip
    """Decade -> path -> state and output behind so many steps, on the CPU. Whole blocks, but for the first."""
    each = {name: _Replayed(path) for name, path in paths.items()}
    found: dict[int, dict[str, tuple[Tensor, Tensor]]] = {}

    def keep(step: int) -> None:
        if step in decades:
            found[step] = {name: (one.path.state.cpu().clone(), one.out.cpu().clone()) for name, one in each.items()}

    for step, projected in enumerate(drift.block(0, min(BLOCK, steps)), 1):
        for one in each.values():
            one.eagerly(projected[None])
        keep(step)
    buffer = drift.block(0, BLOCK)
    for number in range(1, -(-steps // BLOCK)):
        buffer.copy_(drift.block(number, BLOCK))
        for one in each.values():
            one.replay(buffer)
        for one in each.values():
            one.join()
        keep((number + 1) * BLOCK)
        say((number + 1) * BLOCK)
    return found
