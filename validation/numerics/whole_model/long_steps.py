"""Recurrences over many steps, side by side, in blocks: on a GPU, where a step is a handful of small launches, replayed from graphs.

Every `KEPT_EVERY` steps, and behind the last, all that is needed to go on is written down; a run that goes on leaves the same bits.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path as File
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ...contracts.base import Workload
from ...records import digest_files
from .lines import writing

BLOCK = 50
KEPT_EVERY = 5000
"""Steps"""


class Path(Protocol):
    """A recurrence: contracts/kimi_k3/numerics/long_state.py, or `Kernel`."""

    window: Tensor
    """What earlier tokens left for the convolution"""
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
        # Moved on in place, where it stays.
        self.window, self._pool = self._tensors["conv_state"], self._tensors["recurrent_state"]

    @property
    def state(self) -> Tensor:
        """[streams, heads, D, D]"""
        return self._pool[self._slots]

    def restore(self, window: Tensor, state: Tensor) -> None:
        """Puts back what `window` and `state` were."""
        self.window.copy_(window)
        self._pool[self._slots] = state.to(self._pool.device)

    def step(self, projected: Tensor) -> Tensor:
        """As Path."""
        self._tensors["projected"].copy_(projected)
        self._launch()
        return self._tensors["out"]


class _Moved:
    """One path: step by step, or a block from a graph that is captured at first use."""

    def __init__(self, path: Path) -> None:
        self.path, self._graph = path, None
        self.out: Tensor

    def eagerly(self, projected: Tensor) -> None:
        self.out = self.path.step(projected)

    def replay(self, projections: Tensor) -> None:
        """`projections` lie at the same place each time. Has happened when `join` has been waited for."""
        if self._graph is None:
            self._stream = torch.cuda.Stream()
            self._stream.wait_stream(torch.cuda.current_stream())
            self._capture(projections)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._graph.replay()

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)

    def held(self) -> dict[str, Tensor]:
        """What the next step needs."""
        return {name: getattr(self.path, name).cpu().clone() for name in ("window", "state")}

    def hold(self, held: Mapping[str, Tensor]) -> None:
        """Goes on from what `held` gave."""
        if isinstance(self.path, Kernel):
            self.path.restore(**held)
        else:
            for name, tensor in held.items():
                setattr(self.path, name, tensor.to(getattr(self.path, name).device))

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


Found = dict[int, dict[str, tuple[Tensor, Tensor]]]
"""Step -> path -> state [streams, heads, D, D] and output [streams, channels] behind it, on the CPU"""


@torch.no_grad()
def states(
    drift: Any, paths: Mapping[str, Path], steps: int, marks: Sequence[int], kept: File | None = None,
    say: Callable[[int], None] = lambda step: None,
) -> Found:  # fmt: skip
    """What `paths` leave behind each of the steps `marks`. On a GPU those behind the first block end a block.

    `kept`: where what is needed to go on is written down, and taken up from; whoever has used the result removes it.
    """
    each = {name: _Moved(path) for name, path in paths.items()}
    done, found, graphs = 0, {}, drift.device != "cpu"

    def eagerly(number: int, first: int = 0) -> None:
        for step, projected in enumerate(drift.block(number, BLOCK)[: steps - first], first + 1):
            for one in each.values():
                one.eagerly(projected)
            keep(step)

    def keep(step: int) -> None:
        if step in marks:
            found[step] = {name: (one.path.state.cpu().clone(), one.out.cpu().clone()) for name, one in each.items()}

    if kept is not None and (written := _written_down(kept, each)) is not None:
        if graphs:
            eagerly(0)  # graphs are captured behind a first call, here as ever
        done, held, found = written
        for name, one in each.items():
            one.hold(held[name])
    buffer = drift.block(0, BLOCK)
    for number in range(-(-done // BLOCK), -(-steps // BLOCK)):
        if number == 0 or not graphs:
            eagerly(number, number * BLOCK)
        else:
            buffer.copy_(drift.block(number, BLOCK))
            for one in each.values():
                one.replay(buffer)
            for one in each.values():
                one.join()
            keep((number + 1) * BLOCK)
        done = min((number + 1) * BLOCK, steps)
        if kept is not None and (done % KEPT_EVERY == 0 or done == steps):
            _write_down(kept, done, each, found)
        say(done)
    return found


_HELD, _STATE, _OUT = "held", "state", "out"


def _write_down(file: File, done: int, each: Mapping[str, _Moved], found: Found) -> None:
    tensors = {f"{_HELD}/{name}/{what}": tensor for name, one in each.items() for what, tensor in one.held().items()}
    for step, by_path in found.items():
        for name, pair in by_path.items():
            tensors |= {f"{step}/{name}/{what}": tensor for what, tensor in zip((_STATE, _OUT), pair, strict=True)}
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    temporary = file.with_name(file.name + ".new")
    with writing(file):
        save_file(tensors, temporary, {"steps": str(done), "tensors": _digest(tensors)})
        os.replace(temporary, file)


def _written_down(file: File, paths: Iterable[str]) -> tuple[int, dict[str, dict[str, Tensor]], Found] | None:
    """Steps that are done, what each path goes on from, and what was found on the way. None where nothing whole is there."""
    try:
        with safe_open(file, "pt") as opened:
            said, tensors = opened.metadata() or {}, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    if said.get("tensors") != _digest(tensors):
        return None  # steps that run again cost time; wrong ones, the verdict
    steps = sorted({int(name.partition("/")[0]) for name in tensors if not name.startswith(_HELD)})
    held = {name: {what: tensors[f"{_HELD}/{name}/{what}"] for what in ("window", "state")} for name in paths}
    found = {
        step: {name: (tensors[f"{step}/{name}/{_STATE}"], tensors[f"{step}/{name}/{_OUT}"]) for name in paths} for step in steps
    }  # fmt: skip
    return int(said["steps"]), held, found


def _digest(tensors: Mapping[str, Tensor]) -> str:
    return digest_files({name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()})
