"""A layer on one rank at its real shapes: tensors for both paths, and the right results for a few of its rows."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from ...tensors import DType, torch_dtype
from ..base import Comparison, Cost, OpContract, TensorRole, TensorSpec, Workload
from ..grid import CellSpec, Examined, Shard
from ..stock import StockRun
from ..subgraph import Subgraph
from . import part
from .architecture import Architecture
from .graph import Node, OpGraph, Source, Via
from .kda_decode import layout
from .op import Layout

PAGE = 64
"""Tokens of a page of the latent cache"""
EXAMINED = 4
"""Rows that are held against the oracle: rows do not depend on each other, and float64 takes its time"""
MARGIN = 5e-4
"""Scores of the last expert chosen and the first one left must be this far apart for a row to be examined: roundings
before the router move a score by about a tenth of it, and another expert is another result"""

Values = dict[str, Tensor]


class Ambiguous(ValueError):
    """No examined row has experts that any honest arithmetic would choose: draw others."""


class _Layer(Subgraph):
    """A whole layer as a part: for its bytes and comparisons. Its workloads are given, so declared ones need not fit."""

    def _check(self) -> None:
        pass


class RankShard(Shard):
    """Some nodes of the step, by default those of one layer. What other ranks send is given: exchange bytes are read, nothing is communicated."""

    scope = "one rank, exchange bytes local, no communication"

    def __init__(
        self, architecture: Architecture, ops: Mapping[str, OpContract], spec: CellSpec, graph: OpGraph,
        names: Sequence[str],
    ) -> None:
        self.spec, self.architecture, self.graph, self.names = spec, architecture, graph, tuple(names)
        self.nodes = [self.graph.nodes[name] for name in self.names]
        self.contracts = {node.op: ops[node.op] for node in self.nodes}
        self.part = _Layer("kimi_k3", self.names[0], part.members(self.graph, self.nodes, ops))
        self.written = {value for node in self.nodes for value in node.writes.values()}

    def workload(self, node: Node, rows: int) -> Workload:
        """The workload of a node for `rows` rows: as declared, with this place's axes, all experts, this context."""
        contract, tp = self.contracts[node.op], self.spec.tp
        if node.op == "kda_decode":
            return layout.workload(self.architecture.kda_shard(tp), node.name, rows)
        workload = contract.at(tp, rows, Layout(), node.name)
        axes = workload.axes | node.axes
        if node.op == "attn_res_norm":
            axes["block_stride"] = rows * axes["block_row_stride"]
        if "experts" in axes:
            axes["experts"] = self.architecture.moe.experts
        if "page_size" in axes:
            width = -(-self._tokens // PAGE)
            axes |= {"table_width": width, "table_stride": width, "pages": 1 + rows * width}
        return workload.model_copy(update={"axes": axes})

    @property
    def _tokens(self) -> int:
        """Tokens that a row sees, its own included."""
        return 1 + (self.spec.context or 0)

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        """By node."""
        return {node.name: self.workload(node, self.spec.rows) for node in self.nodes}

    @cached_property
    def _drawn(self) -> dict[str, tuple[TensorSpec, str]]:
        """"place.tensor" -> (its spec, the key that it shares memory with): what no node of the layer hands on."""
        found: dict[str, tuple[TensorSpec, str]] = {}
        first: dict[object, str] = {}
        for node in self.nodes:
            for spec in self.contracts[node.op].tensors(self.workloads[node.name]):
                key, sources = f"{node.name}.{spec.name}", node.reads.get(spec.name)
                if spec.role is TensorRole.OUTPUT or (sources and spec.name != "blocks" and self._inner(sources)):
                    continue
                same = (spec.name == "blocks", sources) if sources else key
                found[key] = (spec, first.setdefault(same, key))
        return found

    def _inner(self, sources: Iterable[Source]) -> bool:
        return all(s.value in self.written and s.via in (Via.HERE, Via.COLUMNS) for s in sources)

    def draw(self, seed: int, device: str) -> Values:
        """See `Shard`."""
        return self.drawn(seed, device, {}, lambda key: key)

    def drawn(self, seed: int, device: str, weights: Values, label: Callable[[str], str]) -> Values:
        """As `draw`, with weights that share a label shared: `weights` holds those there are, and takes new ones up."""
        made: Values = {}
        for key, (spec, shared) in self._drawn.items():
            name = label(key)
            if spec.role is TensorRole.STATIC and name in weights:
                made[key] = weights[name]
                continue
            if key == shared:
                random = Generator(device).manual_seed(seed ^ zlib.crc32(name.encode()))
                storage = torch.zeros(max(spec.storage_elements, 1), dtype=torch_dtype(spec.dtype), device=device)
                made[key] = storage.as_strided(spec.shape, spec.strides)
                self._fill(spec, made[key], random)
            made[key] = made[shared]
            if spec.role is TensorRole.STATIC:
                weights[name] = made[key]
        return made

    def _fill(self, spec: TensorSpec, to: Tensor, random: Generator) -> None:
        if spec.name == "lengths":
            to.fill_(self._tokens)
        elif spec.name in ("page_table", "slots"):
            to.copy_((1 + torch.randperm(to.numel(), generator=random, device=to.device)).view(to.shape))
        elif spec.dtype is DType.U8 and spec.name.endswith("scale"):
            to.random_(*_scales(32 * spec.shape[-1]), generator=random)
        elif spec.dtype is DType.U8:
            to.random_(0, 256, generator=random)
        elif spec.name in _UNIFORM:
            to.uniform_(*_UNIFORM[spec.name], generator=random)
        else:
            fan_in = spec.shape[-1] if spec.role is TensorRole.STATIC and len(spec.shape) > 1 else 1
            to.normal_(0, _SCALES.get(spec.name, fan_in**-0.5), generator=random)
        if spec.name == "a_log":
            to.log_()

    def volatile(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Shard`."""
        own = [(key, spec) for key, (spec, shared) in self._drawn.items() if key == shared]
        inputs = tuple(key for key, spec in own if spec.role is TensorRole.INPUT)
        return inputs, tuple(key for key, spec in own if spec.role is TensorRole.STATE)

    @property
    def slot_bytes(self) -> int:
        """See `Shard`."""
        return self.bytes_of(TensorRole.STATIC, TensorRole.INPUT, TensorRole.STATE)

    @property
    def path_bytes(self) -> tuple[int, int]:
        """See `Shard`: both paths hold weights a second time, repacked."""
        whole = self.slot_bytes + self.bytes_of(TensorRole.STATIC)
        return whole, whole

    @property
    def copies(self) -> int | None:
        """See `Shard`."""
        return None

    def bytes_of(self, *roles: TensorRole) -> int:
        """Memory of the tensors drawn for these roles."""
        return sum(_bytes(spec) for key, (spec, shared) in self._drawn.items() if key == shared and spec.role in roles)

    def weight_sizes(self) -> dict[str, int]:
        """Bytes of each weight, by its key among those drawn."""
        static = ((key, spec) for key, (spec, _) in self._drawn.items() if spec.role is TensorRole.STATIC)
        return {key: _bytes(spec) for key, spec in static}

    @property
    def cost(self) -> Cost:
        """As the ops' contracts count, without what stays inside; experts: as many as even choices meet on average.

        A cache that one op of the layer writes a row of and another reads is not inside: its rows are there before.
        """
        name = self.spec.key
        cost = self.part.cost(self.part.joined(name, [self.workloads[node.name] for node in self.nodes]))
        for node in self.nodes:
            for spec in self.contracts[node.op].tensors(self.workloads[node.name]):
                if node.op == "mla_core" and spec.name == "cache":
                    pages, size, width = spec.shape
                    counted = spec.dtype.bytes * pages * size * width
                    padding = (pages - 1) * size - self.spec.rows * self._tokens
                    read = cost.bytes_read + counted - spec.dtype.bytes * width * padding
                    cost = cost.model_copy(update={"bytes_read": read})
        return cost

    def stock(self, tensors: Mapping[str, Tensor]) -> StockRun:
        """See stock/parts.py."""
        from . import stock

        device = str(next(iter(tensors.values())).device)
        return stock.part(self.graph, self.names, self.contracts, tensors, self.workloads, device=device)

    def examined(self, tensors: Mapping[str, Tensor]) -> "RowsExamined":
        """Of up to four rows, first and last among them. Raises Ambiguous."""
        rows = self.spec.rows
        chosen = sorted({0, rows - 1, rows // 3, 2 * rows // 3})[:EXAMINED]
        sample = _Sample(self, tensors, chosen)
        exact = sample.walk(lambda contract: contract.oracle)
        plain = sample.walk(lambda contract: contract.plain)
        clear = [row for row in range(len(chosen)) if sample.clear(exact, plain, row)]
        if not clear:
            raise Ambiguous(f"{self.spec.key}: rows {chosen} choose experts by less than {MARGIN}")
        return RowsExamined(self, sample, exact, plain, clear)


_UNIFORM = {
    "res_norm": (0.5, 1.5), "out_norm": (0.5, 1.5), "o_norm": (0.5, 1.5), "q_a_norm": (0.5, 1.5),
    "kv_a_norm": (0.5, 1.5), "latent_norm": (0.5, 1.5), "dt_bias": (-0.75, 0.5), "a_log": (1.0, 16.0),
}  # fmt: skip
_SCALES = {
    "conv_weight": 0.5, "recurrent_state": 0.1, "correction_bias": 0.001, "res_proj": 0.01, "peers": 0.25, "shared": 0.25,
}  # fmt: skip
"""Standard deviations. Other weights: one over the root of their inputs; other inputs: one. The bias is too small to
choose experts: choices are even, as the bytes of a layer are counted."""


def _bytes(spec: TensorSpec) -> int:
    return spec.storage_elements * spec.dtype.bytes


def _scales(width: int) -> tuple[int, int]:
    """The range of scale bytes with which a product of `width` elements is of order one: an element's is near 3."""
    exponent = 127 - round(torch.tensor(3.0 * width**0.5).log2().item())
    return exponent - 1, exponent + 2


class _Sample:
    """Some rows of a shard's tensors, with pools that hold their pages alone."""

    def __init__(self, shard: RankShard, tensors: Mapping[str, Tensor], rows: Sequence[int]) -> None:
        self.shard, self.rows = shard, tuple(rows)
        self.workloads = {node.name: shard.workload(node, len(rows)) for node in shard.nodes}
        self.pages: dict[str, Tensor] = {}
        self.tensors: Values = {}
        for node in shard.nodes:
            axes = getattr(shard.contracts[node.op], "row_axes", _KDA_ROWS)
            for spec in shard.contracts[node.op].tensors(shard.workloads[node.name]):
                key = f"{node.name}.{spec.name}"
                if key in tensors:
                    self.tensors[key] = self._cut(tensors[key], spec, axes)
        self._renumber(tensors)

    def _cut(self, tensor: Tensor, spec: TensorSpec, axes: Mapping[str, int]) -> Tensor:
        if spec.role is TensorRole.STATIC or spec.name in _POOLS:
            return tensor
        axis = 0 if spec.name in ("slots", "page_table", "lengths") else axes[spec.name]
        return tensor.index_select(axis, torch.tensor(self.rows))

    def _renumber(self, tensors: Mapping[str, Tensor]) -> None:
        """Pools of the rows' own pages behind the null page, and tables that point there."""
        for node in self.shard.nodes:
            for pool in _POOLS:
                key, table = f"{node.name}.{pool}", f"{node.name}.{'page_table' if pool == 'cache' else 'slots'}"
                if key not in tensors:
                    continue
                used = tensors[table].index_select(0, torch.tensor(self.rows)).flatten().long()
                self.pages[key] = used
                whole = torch.cat([torch.zeros(1, dtype=torch.long), used])
                self.tensors[key] = tensors[key].index_select(0, whole)
        for key, tensor in self.tensors.items():
            if key.rpartition(".")[2] in ("slots", "page_table"):
                self.tensors[key] = (1 + torch.arange(tensor.numel(), dtype=torch.int32)).view(tensor.shape)

    def walk(self, path: Callable[[OpContract], Callable]) -> Values:
        """Every value of the layer by the ops' own paths, each in the type that the path gives it."""
        values: Values = {}
        for node in self.shard.nodes:
            contract, workload = self.shard.contracts[node.op], self.workloads[node.name]
            inputs: Values = {}
            for spec in contract.tensors(workload):
                if spec.role is not TensorRole.OUTPUT:
                    given = self._given(node, spec.name, values)
                    inputs[spec.name] = given.clone() if spec.role is TensorRole.STATE else given
            result = path(contract)(inputs, workload)
            values |= {value: result[tensor] for tensor, value in node.writes.items()}
        return values

    def _given(self, node: Node, name: str, values: Values) -> Tensor:
        sources = node.reads.get(name)
        if name == "blocks" or not sources or not self.shard._inner(sources):
            return self.tensors[f"{node.name}.{name}"]
        (source,) = sources
        value = values[source.value]
        return value if source.via is Via.HERE else value.chunk(self.shard.spec.tp, 1)[0]

    def clear(self, exact: Values, plain: Values, row: int) -> bool:
        """Whether any honest arithmetic gives the row the same experts."""
        for node in self.shard.nodes:
            if node.op != "routing":
                continue
            moe = self.shard.architecture.moe
            logits = exact[node.reads["logits"][0].value][row].double()
            score = logits.sigmoid() + self.tensors[f"{node.name}.correction_bias"].double()
            best = score.topk(moe.top_k + 1).values if moe.top_k < moe.experts else score
            same = set(exact[node.writes["ids"]][row].tolist()) == set(plain[node.writes["ids"]][row].tolist())
            if moe.top_k < moe.experts and (not same or float(best[-2] - best[-1]) < MARGIN):
                return False
        return True


_POOLS = ("conv_state", "recurrent_state", "cache")
_KDA_ROWS = {"projected": 0, "slots": 0}


@dataclass(frozen=True)
class _Wanted:
    """A produced tensor: its value in the step, and which of its leading indices belong to examined rows."""

    comparison: Comparison
    value: str
    indices: Tensor
    own: Tensor
    """The same among the sample's"""


class RowsExamined(Examined):
    """See `RankShard.examined`."""

    def __init__(self, shard: RankShard, sample: _Sample, exact: Values, plain: Values, clear: Sequence[int]) -> None:
        self.rows = tuple(sample.rows[row] for row in clear)
        self._exact, self._plain = exact, plain
        leaving = set(shard.graph.interface(shard.names).outputs)
        found = [self._of(shard, sample, comparison, clear) for comparison in shard.part.comparisons]
        # What the layer alone reads of itself, a path need not have.
        self._wanted = [wanted for wanted in found if wanted.value in leaving]
        self.comparisons = tuple(wanted.comparison for wanted in self._wanted)
        self._types = {
            value: torch_dtype(spec.dtype)
            for node in shard.nodes
            for spec in shard.contracts[node.op].tensors(sample.workloads[node.name])
            for tensor, value in node.writes.items() if tensor == spec.name
        }  # fmt: skip

    def _of(self, shard: RankShard, sample: _Sample, comparison: Comparison, clear: Sequence[int]) -> _Wanted:
        member, tensor = next(
            (index, name) for index, member in enumerate(shard.part.members) for name, outer in member.outer.items()
            if outer == comparison.tensor and name in member.contract.produced
        )  # fmt: skip
        node = shard.nodes[member]
        rows, own = torch.tensor([sample.rows[row] for row in clear]), torch.tensor(list(clear))
        if tensor in _POOLS:
            pages = sample.pages[f"{node.name}.{tensor}"].view(len(sample.rows), -1)
            numbers = 1 + torch.arange(pages.numel()).view(pages.shape)
            rows, own = pages[own].flatten(), numbers[own].flatten()
        return _Wanted(comparison, node.writes[tensor], rows, own)

    @property
    def selection(self) -> dict[str, Tensor]:
        """Value -> leading indices of it that `results` is given, in order."""
        return {wanted.value: wanted.indices for wanted in self._wanted}

    def results(self, produced: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """See `Examined`; `produced` holds the indices of `selection` alone."""
        found = {}
        for wanted in self._wanted:
            exact, plain = (values[wanted.value].index_select(0, wanted.own) for values in (self._exact, self._plain))
            dtype = self._types[wanted.value]
            found[wanted.comparison.tensor] = (exact, plain.to(dtype), produced[wanted.value].to(dtype))
        return found
