"""The stock path's own process: PyTorch, the public libraries, and nothing of a candidate.

It runs an op's stock path on slots that take turns inside one CUDA graph, as `session.Contestant` asks, and measures
the read ceiling of the card. Everything the two ends say to each other is a tuple over a pipe; the judge's process is
the only other end.
"""

import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from .. import contracts
from ..contracts.base import OpContract, TensorRole, TensorSpec, Workload
from ..tensors import torch_dtype


def serve(pipe: Connection, model: str) -> None:
    """Answers commands until the pipe closes: ("ok", value) or ("error", text) for each."""
    torch.set_num_threads(1)
    ops = contracts.load(model)
    worker = _Worker()
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(worker, f"do_{command}")(ops, **arguments)))
        except Exception as error:  # the judge decides what a failing stock path means, so it gets the whole story
            pipe.send(("error", f"{error}\n{traceback.format_exc()}"))


class _Worker:
    """The state between commands: one captured op."""

    def __init__(self) -> None:
        self.slots: list[dict[str, torch.Tensor]] = []
        self.sets: list[dict[str, torch.Tensor]] = []
        self.graph: torch.cuda.CUDAGraph | None = None
        self.kept: list[Any] = []

    def do_flags(self, ops) -> dict[str, str]:
        """Global switches that could slow or speed the stock path, as they stand in this process."""
        return {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cudnn_benchmark": str(torch.backends.cudnn.benchmark),
            "deterministic": str(torch.are_deterministic_algorithms_enabled()),
            "bf16_reduced_precision_reduction": str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        }

    def do_capture(
        self, ops, op: str, workload: dict, distribution: str, seeds: Sequence[int], slots: int, shared_static: bool
    ) -> int:
        """Draws the input sets, lays `slots` copies out and captures one graph that runs each; gives kernels a call.

        The same seeds give the judge's process the same inputs.
        """
        self.free()
        contract, point = ops.op(op), Workload.model_validate(workload)
        drawn = [contract.make_inputs(point, distribution, seed) for seed in seeds]
        specs = contract.tensors(point)
        self.sets = [
            {s.name: _laid(s, values[s.name]) for s in specs if s.role in (TensorRole.INPUT, TensorRole.STATE)}
            for values in drawn
        ]
        static = {s.name: _laid(s, drawn[0][s.name]) for s in specs if s.role is TensorRole.STATIC}
        for _ in range(slots):
            weights = static if shared_static else {name: _copy(tensor) for name, tensor in static.items()}
            moving = {name: _copy(tensor) for name, tensor in self.sets[0].items()}
            outputs = {s.name: _laid(s, None) for s in specs if s.role is TensorRole.OUTPUT}
            self.slots.append(weights | moving | outputs)
        run = contract.stock("cuda")
        self.graph = self._capture(lambda: [run(slot, point) for slot in self.slots], lambda: run(self.slots[0], point))
        return round(_kernel_nodes(self.graph) / slots)

    def do_restore(self, ops, sets: Sequence[int]) -> None:
        """Slot i gets the inputs and states of set `sets[i]`."""
        for slot, which in zip(self.slots, sets, strict=True):
            for name, tensor in self.sets[which].items():
                _storage(slot[name]).copy_(_storage(tensor))
        torch.cuda.synchronize()

    def do_replay(self, ops) -> tuple[int, int]:
        """Nanoseconds of one replay, by CUDA events and by the host's clock round a drain."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began = time.perf_counter_ns()
        start.record()
        self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        return round(start.elapsed_time(end) * 1e6), time.perf_counter_ns() - began

    def do_produced(self, ops, op: str, workload: dict, slot: int) -> dict[str, torch.Tensor]:
        """What the last replay left in a slot: outputs from the captured call, states in place."""
        contract, point = ops.op(op), Workload.model_validate(workload)
        returned = self.kept[0][slot]
        return {name: returned.get(name, self.slots[slot].get(name)).cpu().contiguous() for name in contract.produced}

    def do_ceiling(self, ops, size: int, repeats: int) -> float:
        """Bytes per second of reading `size` bytes with a kernel, median of `repeats` graph replays."""
        from .read_kernel import read

        data = torch.randint(0, 127, (size // 4,), dtype=torch.int32, device="cuda")
        sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.free()
        self.graph = self._capture(lambda: read(data, sink), lambda: read(data, sink))
        times = sorted(self.do_replay(ops)[0] for _ in range(repeats))
        self.free()
        return size / (times[len(times) // 2] * 1e-9)

    def free(self) -> None:
        """Gives the card back what the last op took."""
        self.slots, self.sets, self.graph, self.kept = [], [], None, []
        torch.cuda.empty_cache()

    def _capture(self, body, warm_up) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                warm_up()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, stream=stream):
            self.kept.append(body())  # a graph's intermediates live as long as somebody holds them
        graph.instantiate()
        return graph


def _laid(spec: TensorSpec, value: torch.Tensor | None) -> torch.Tensor:
    """A tensor on the card with the contract's strides; outputs start as zeros."""
    storage = torch.zeros(max(spec.storage_elements, 1), dtype=torch_dtype(spec.dtype), device="cuda")
    laid = storage.as_strided(spec.shape, spec.strides)
    if value is not None:
        laid.copy_(value)
    return laid


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return _storage(tensor).clone().as_strided(tensor.shape, tensor.stride())


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    """All of a laid tensor's memory, gaps included, as one axis."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def _kernel_nodes(graph: torch.cuda.CUDAGraph) -> int:
    """Kernels in a captured graph, counted from the graph itself."""
    from cuda.bindings import driver

    raw = driver.CUgraph(graph.raw_cuda_graph())
    _, _, count = driver.cuGraphGetNodes(raw)
    _, nodes, _ = driver.cuGraphGetNodes(raw, count)
    kinds = [driver.cuGraphNodeGetType(node)[1] for node in nodes]
    return sum(kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL for kind in kinds)
