"""The stock path's own process: PyTorch, the public libraries, and nothing of a candidate.

It runs an op's stock path on slots that take turns inside one CUDA graph, as `session.Contestant` asks, and measures
the read ceiling of the card. Everything the two ends say to each other is a tuple over a pipe; the judge's process is
the only other end.
"""

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from safetensors.torch import save

from .. import contracts
from ..contracts.base import TensorRole, TensorSpec, Workload
from ..contracts.stock import StockRun
from ..tensors import torch_dtype
from . import hygiene

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def main(descriptor: int, model: str) -> None:
    """Answers commands on a connection until it closes: ("ok", value) or ("error", text) for each."""
    torch.set_num_threads(1)
    worker, pipe = _Worker(contracts.load(model)), Connection(descriptor)
    while True:
        try:
            command, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(worker, f"do_{command}")(**arguments)))
        except Exception as error:  # the judge decides what a failing stock path means, so it gets the whole story
            pipe.send(("error", f"{error}\n{traceback.format_exc()}"))


@dataclass
class _Slot:
    """One copy of the op's memory, with what its states started from."""

    tensors: dict[str, torch.Tensor]
    states: dict[str, torch.Tensor]
    inputs: list[torch.Tensor]
    bound: StockRun


class _Worker:
    """The state between commands: one captured op."""

    def __init__(self, model: contracts.ModelContract) -> None:
        self.model = model
        self.slots: list[_Slot] = []
        self.graph: torch.cuda.CUDAGraph | None = None

    def do_flags(self) -> dict[str, str]:
        """What the stock path runs with: version, device, and its switches as they stand now."""
        return {"torch": torch.__version__, "device": torch.cuda.get_device_name()} | hygiene.read()

    def do_switches(self) -> dict[str, str]:
        """The switches that could slow or speed the stock path, as they stand now (hygiene.py)."""
        return hygiene.read()

    def do_load(self, op: str) -> None:
        """Imports the op's stock path and starts the device: seconds that need not pass while someone waits."""
        self.model.op(op).stock("cuda")
        torch.cuda.init()

    def do_capture(
        self, op: str, workload: dict, distribution: str, seeds: Sequence[int], slots: int
    ) -> int:
        """Draws one input set a seed, lays them out in turn on `slots` copies of the op's memory, and captures one
        graph that runs each copy; gives kernels a call. The weights are the first set's everywhere."""
        self.free()
        contract, point = self.model.op(op), Workload.model_validate(workload)
        drawn = [contract.make_inputs(point, distribution, seed) for seed in seeds]
        specs = contract.tensors(point)
        path = contract.stock("cuda")
        for number in range(slots):
            values = drawn[0] | {
                s.name: drawn[number % len(drawn)][s.name] for s in specs if s.role in (TensorRole.INPUT, TensorRole.STATE)
            }
            tensors = {s.name: _laid(s, values.get(s.name)) for s in specs}
            states = {s.name: _storage(tensors[s.name]).clone() for s in specs if s.role is TensorRole.STATE}
            inputs = [tensors[s.name] for s in specs if s.role is TensorRole.INPUT]
            self.slots.append(_Slot(tensors, states, inputs, path.prepare(tensors, point)))
        self.graph = self._capture(lambda: [slot.bound.run() for slot in self.slots], self.slots[0].bound.run)
        return round(_kernel_nodes(self.graph) / slots)

    def do_refresh(self, seed: int) -> None:
        """States as drawn; the lowest mantissa bits of floating inputs flipped at random."""
        torch.manual_seed(seed)
        for slot in self.slots:
            for name, image in slot.states.items():
                _storage(slot.tensors[name]).copy_(image)
            for tensor in slot.inputs:
                if tensor.dtype.is_floating_point:
                    bits = tensor.view(_BITS[tensor.element_size()])
                    bits ^= torch.randint_like(bits, 0, 2)
        torch.cuda.synchronize()

    def do_replay(self) -> tuple[int, int]:
        """Nanoseconds of one replay, by CUDA events and by the host's clock round a drain."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began = time.perf_counter_ns()
        start.record()
        self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        return round(start.elapsed_time(end) * 1e6), time.perf_counter_ns() - began

    def do_produced(self, slot: int) -> bytes:
        """What the last replay left in a slot (outputs and states), as safetensors: torch would share memory instead of
        sending contents, with whom it inherited a key from."""
        return save({name: tensor.cpu().contiguous() for name, tensor in self.slots[slot].bound.outputs.items()})

    def do_ceiling(self, size: int, repeats: int) -> float:
        """Bytes per second of reading `size` bytes with a kernel, median of `repeats` graph replays."""
        from .read_kernel import read

        data = torch.randint(0, 127, (size // 4,), dtype=torch.int32, device="cuda")
        sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.free()
        self.graph = self._capture(lambda: read(data, sink), lambda: read(data, sink))
        times = sorted(self.do_replay()[0] for _ in range(repeats))
        self.free()
        return size / (times[len(times) // 2] * 1e-9)

    def free(self) -> None:
        """Gives the card back what the last op took."""
        self.slots, self.graph = [], None
        torch.cuda.empty_cache()

    def _capture(self, body, warm_up) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                warm_up()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, stream=stream):
            body()
        graph.instantiate()
        return graph


def _laid(spec: TensorSpec, value: torch.Tensor | None) -> torch.Tensor:
    """A tensor on the card with the contract's strides; outputs start as zeros."""
    storage = torch.zeros(max(spec.storage_elements, 1), dtype=torch_dtype(spec.dtype), device="cuda")
    laid = storage.as_strided(spec.shape, spec.strides)
    if value is not None:
        laid.copy_(value)
    return laid


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
