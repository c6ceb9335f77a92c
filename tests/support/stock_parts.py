"""Parts of the op graph with inputs: what a stock path is given, and what the ops' own oracles make of it."""

import op_exam
import torch
from fasttrack_validation.contracts.base import TensorRole, Workload
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.graph import Node, OpGraph, Source, Via
from fasttrack_validation.contracts.kimi_k3.kda_decode import layout
from fasttrack_validation.tensors import torch_dtype
from torch import Tensor

_PAGED = ("page_size", "table_width", "table_stride", "pages", "page_stride")


class Part:
    """Nodes of a graph on one rank, their workloads, and inputs drawn by each op's contract, equal ones shared."""

    def __init__(self, graph: OpGraph, names, architecture: Architecture, tp: int, rows: int, tokens: int = 128):
        chosen = set(names)
        self.graph, self.names, self.tp = graph, tuple(name for name in graph.nodes if name in chosen), tp
        self.nodes = [graph.nodes[name] for name in self.names]
        self.contracts = {
            name: type(op)(architecture, op.policy) for name, op in op_exam.REAL.ops.items()
        }
        self.architecture, self.rows, self.tokens = architecture, rows, tokens
        self.workloads = {node.name: self._workload(node) for node in self.nodes}
        self.written = {value for node in self.nodes for value in node.writes.values()}

    def _workload(self, node: Node) -> Workload:
        if node.op == "kda_decode":
            return layout.workload(self.architecture.kda_shard(self.tp), node.name, self.rows)
        workload = op_exam.declared(self.contracts[node.op], self.tp, self.rows)
        axes = workload.axes | node.axes
        if node.op == "experts":
            axes["experts"] = self.architecture.moe.experts
        if "page_size" in axes:
            width = -(-self.tokens // axes["page_size"])
            axes |= {"table_width": width, "table_stride": width, "pages": 1 + self.rows * width}
        return workload.model_copy(update={"axes": axes})

    def specs(self, node: Node):
        """The tensors of a node that are not its outputs."""
        specs = self.contracts[node.op].tensors(self.workloads[node.name])
        return [spec for spec in specs if spec.role is not TensorRole.OUTPUT]

    def inner(self, source: Source) -> bool:
        """Whether a node of the part hands this on within the rank."""
        return source.value in self.written and source.via in (Via.HERE, Via.COLUMNS)

    def given(self, node: Node, name: str) -> bool:
        """Whether the tensor comes from outside."""
        return name == "blocks" or not node.reads.get(name) or not all(map(self.inner, node.reads[name]))

    def draw(self, seed: int = 3) -> dict[str, Tensor]:
        """What the stock path is given, contiguous on the CPU. The bias alone chooses experts: roundings do not."""
        tensors, seen = {}, {}
        # Rows of a request share a page table where several of its tokens are attended to: that op's tables are everybody's.
        for node in sorted(self.nodes, key=lambda node: node.op != "mla_verify"):
            inputs = self.contracts[node.op].make_inputs(self.workloads[node.name], "typical", seed)
            if node.op == "routing":
                random = torch.Generator().manual_seed(seed)
                inputs["correction_bias"] = 2.0 * torch.randperm(self.architecture.moe.experts, generator=random)
            for name, value in inputs.items():
                if self.given(node, name):
                    sources = (name == "blocks", node.reads.get(name))
                    tensors[f"{node.name}.{name}"] = seen.setdefault(sources, value) if sources[1] else value
        return tensors

    def expected(self, tensors: dict[str, Tensor], path: str = "oracle") -> dict[str, Tensor]:
        """The part's outputs by the ops' own `path`, each value in its own type between ops."""
        values: dict[str, Tensor] = {}
        for node in self.nodes:
            contract, workload = self.contracts[node.op], self.workloads[node.name]
            inputs = {}
            for spec in self.specs(node):
                inputs[spec.name] = tensors.get(f"{node.name}.{spec.name}")
                if spec.name == "blocks":
                    inputs[spec.name] = inputs[spec.name].clone()
                for place, source in enumerate(node.reads.get(spec.name, ())):
                    if not self.inner(source):
                        continue
                    value = values[source.value]
                    if source.via is Via.COLUMNS:
                        value = value.chunk(self.tp, 1)[0]
                    if spec.name == "blocks":
                        inputs[spec.name][place] = value
                    else:
                        inputs[spec.name] = value
            result = getattr(contract, path)(inputs, workload)
            types = {spec.name: torch_dtype(spec.dtype) for spec in contract.tensors(workload)}
            values |= {value: result[name].to(types[name]) for name, value in node.writes.items()}
        return {value: values[value] for value in self.graph.interface(self.names).outputs}


def laid_out(part: Part, tensors: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    """Copies on `device` with the contracts' strides; what was one tensor stays one."""
    placed, done = {}, {}
    for node in part.nodes:
        for spec in part.specs(node):
            key = f"{node.name}.{spec.name}"
            if key not in tensors:
                continue
            value = tensors[key]
            if id(value) not in done:
                storage = torch.zeros(max(spec.storage_elements, 1), dtype=value.dtype, device=device)
                done[id(value)] = storage.as_strided(spec.shape, spec.strides)
                done[id(value)].copy_(value)
            placed[key] = done[id(value)]
    return placed


def error(got: Tensor, expected: Tensor) -> float:
    """Relative, in the norm; what both hold as NaN or at once does not count."""
    got, expected = got.cpu().double().nan_to_num(), expected.cpu().double().nan_to_num()
    return ((got - expected).norm() / expected.norm().clamp(min=1e-30)).item()
