"""One path's own process on a GPU: the stock path and no model directory, or the specialised path and no stock path.

It draws a cell's tensors itself, from seeds, so that nothing but results crosses the pipe. Neither knows the oracle.
"""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import contracts
from ..contracts.grid import CellSpec, Shard
from .arm import Packed, packed

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CEILING_BYTES, CEILING_REPEATS = 800_000_000 // 16384 * 16384, 20


def main(descriptor: int, role: str, model: str, directory: str) -> None:
    """Answers commands on a connection until it closes: ("ok", value) or ("error", text) for each."""
    worker, pipe = Worker(role, model, Path(directory)), Connection(descriptor)
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(worker, f"do_{command}")(**arguments)))
        except Exception as error:  # the caller decides what it means, so it gets the whole story
            pipe.send(("error", f"{error}\n{traceback.format_exc()}"))


@dataclass
class Copy:
    """One copy of a cell's tensors, with what its inputs and states started from, bound to the path."""

    tensors: dict[str, Tensor]
    inputs: dict[str, Tensor]
    states: dict[str, Tensor]
    run: Callable[[], None]
    outputs: Mapping[str, Tensor]

    def restore(self, seed: int | None) -> None:
        """States as drawn; inputs as drawn, or with their lowest mantissa bits flipped as `seed` says."""
        if seed is not None:
            torch.manual_seed(seed)
        for name, image in (self.states | self.inputs).items():
            whole = storage(self.tensors[name])
            whole.copy_(image)
            if seed is not None and name in self.inputs and whole.dtype.is_floating_point:
                bits = whole.view(_BITS[whole.element_size()])
                bits ^= torch.randint_like(bits, 0, 2)

    def digest(self) -> str:
        """Of every output that is no state: a weighted sum of its words, exact and in 64 bits."""
        total, given = 0, {tensor.data_ptr() for tensor in self.tensors.values()}
        for value, tensor in sorted(self.outputs.items()):
            if tensor.data_ptr() in given:
                continue
            words = tensor.contiguous().flatten().view(_BITS[tensor.element_size()]).long()
            weights = 2 * torch.arange(len(words), device=words.device) + 1
            total = (31 * total + int((words * weights).sum())) % 2**64
        return f"{total:016x}"


class Worker:
    """The state between commands: one captured cell."""

    def __init__(self, role: str, model: str, directory: Path) -> None:
        self.role, self.directory = role, directory
        self.model = contracts.load(model)
        self.copies: list[Copy] = []
        self.captured: Any = None

    def do_machine(self) -> dict[str, str]:
        """What the figures depend on beside the sources."""
        import triton
        from cuda.bindings import driver

        _, number = driver.cuDriverGetVersion()
        return {
            "device": torch.cuda.get_device_name(), "driver": str(number), "cuda": str(torch.version.cuda),
            "torch": torch.__version__, "triton": triton.__version__,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "bf16_reduced_precision_reduction": str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        }  # fmt: skip

    def do_lay_out(self, spec: Mapping[str, Any], hardware: str, seeds: Sequence[int]) -> dict[str, Any]:
        """See `Arm.lay_out`."""
        from ..contracts.kimi_k3.stock.graph import capture

        self.do_free()
        cell = CellSpec.model_validate(spec)
        shard = self.model.grid.shard(cell, hardware)
        inputs, states = shard.volatile()
        prepared, extra, calls = [], 0, ()
        for seed in seeds:
            tensors = shard.draw(seed, "cuda")
            torch.cuda.synchronize()
            before, began = torch.cuda.memory_allocated(), time.perf_counter()
            run, outputs, calls = self._bind(shard, tensors, hardware)
            torch.cuda.synchronize()
            prepared.append(time.perf_counter() - began)
            extra = torch.cuda.memory_allocated() - before
            kept = [{name: storage(tensors[name]).clone() for name in names} for names in (inputs, _restored(states))]
            self.copies.append(Copy(tensors, *kept, run, outputs))
        began = time.perf_counter()
        self.copies[0].run()
        torch.cuda.synchronize()
        first = time.perf_counter() - began
        alone = capture(self.copies[0].run)
        self.captured = capture(lambda: [copy.run() for copy in self.copies])
        return {
            "kernels": alone.kernels + alone.others, "prepare_seconds": min(prepared),
            "first_call_seconds": first, "extra_bytes": extra, "calls": calls,
        }  # fmt: skip

    def _bind(
        self, shard: Shard, tensors: Mapping[str, Tensor], hardware: str
    ) -> tuple[Callable[[], None], Mapping[str, Tensor], tuple[tuple[str, str], ...]]:
        if self.role == "stock":
            bound = shard.stock(tensors)
            return bound.run, bound.outputs, ()
        from .directory import load

        factory, directory = load(self.directory)
        context = factory.ServingContext(factory.hardware(hardware), directory.sources)
        spec = shard.spec
        part = factory.part(
            shard.names, tensors, directory, context, hardware=hardware, tp=spec.tp, rows=spec.rows, tokens=spec.width
        )
        return part.run, part.outputs, part.calls

    def do_produced(self, selection: Mapping[str, Sequence[int]], copy: int) -> dict[str, Packed]:
        """See `Arm.produced`."""
        one = self.copies[copy]
        one.restore(None)
        one.run()
        torch.cuda.synchronize()
        return {
            value: packed(one.outputs[value].index_select(0, torch.tensor(indices, device="cuda")))
            for value, indices in selection.items()
        }

    def do_refresh(self, seed: int) -> None:
        """See `Copy.restore`."""
        for number, copy in enumerate(self.copies):
            copy.restore(seed + number)
        torch.cuda.synchronize()

    def do_replay(self) -> tuple[int, int]:
        """Nanoseconds of one replay, by CUDA events and by the host's clock round a drain."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began = time.perf_counter_ns()
        start.record()
        self.captured.replay()
        end.record()
        torch.cuda.synchronize()
        return round(start.elapsed_time(end) * 1e6), time.perf_counter_ns() - began

    def do_digests(self) -> list[str]:
        """Of every copy, as the last replay left it."""
        return [copy.digest() for copy in self.copies]

    def do_rerun(self, seed: int) -> list[str]:
        """The digests of the same inputs, launched one by one."""
        self.do_refresh(seed)
        for copy in self.copies:
            copy.run()
        torch.cuda.synchronize()
        return self.do_digests()

    def do_ceiling(self) -> float:
        """Bytes per second of one large read, median of replays."""
        from ..contracts.kimi_k3.stock.graph import capture
        from ..timing.read_kernel import read

        self.do_free()
        data = torch.randint(0, 127, (CEILING_BYTES // 4,), dtype=torch.int32, device="cuda")
        sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.captured = capture(lambda: read(data, sink))
        times = sorted(self.do_replay()[0] for _ in range(CEILING_REPEATS))
        self.do_free()
        return CEILING_BYTES / (times[len(times) // 2] * 1e-9)

    def do_free(self) -> None:
        """Gives the card back what the last cell took."""
        self.copies, self.captured = [], None
        torch.cuda.empty_cache()


def storage(tensor: Tensor) -> Tensor:
    """All of a laid tensor's memory, gaps included, as one axis."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def _restored(states: Sequence[str]) -> list[str]:
    """States that a call moves on. Of a latent cache it rewrites the same row each time: nothing to put back."""
    return [name for name in states if not name.endswith(".cache")]
