"""A layer on one rank at its real shapes: tensors for both paths, and the right results for a few of its rows."""

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Generator, Tensor

from ...tensors import DType, torch_dtype
from ..base import Cost, OpContract, TensorRole, TensorSpec, Workload
from ..grid import CellSpec
from ..stock import Packs, StockRun
from ..subgraph import Subgraph
from . import part
from .architecture import Architecture
from .graph import Node, OpGraph, Source, Via
from .kda_decode import layout
from .kda_verify import layout as verify_layout
from .op import Layout
from .rows_examined import Values

PAGE = 64
"""Tokens of a page of the latent cache"""


class _Layer(Subgraph):
    """A whole layer as a part: for its bytes and comparisons. Its workloads are given, so declared ones need not fit."""

    def _check(self) -> None:
        pass


class RankShard:
    """Some nodes of the step, by default those of one layer, in one arrangement of `graph.step`.

    What other ranks send is given: exchange bytes are read, nothing is communicated. `compared_shard.py` draws two.
    """

    scope = "one rank, exchange bytes local, no communication"

    def __init__(
        self, architecture: Architecture, ops: Mapping[str, OpContract], spec: CellSpec, graph: OpGraph,
        names: Sequence[str],
    ) -> None:
        self.spec, self.architecture, self.graph, self.names = spec, architecture, graph, tuple(names)
        self.nodes = [self.graph.nodes[name] for name in self.names]
        self.contracts = {node.op: ops[node.op] for node in self.nodes}
        self.part = _Layer("kimi_k3", self.names[0], part.members_of(self.graph, self.nodes, ops))
        self.written = {value for node in self.nodes for value in node.writes.values()}

    def workload(self, node: Node, rows: int) -> Workload:
        """The workload of a node for `rows` rows: as declared, with this place's axes, all experts, this context."""
        contract, tp = self.contracts[node.op], self.spec.tp
        if node.op == "kda_decode":
            return layout.workload(self.architecture.kda_shard(tp), node.name, rows)
        if node.op == "kda_verify":
            tokens = self.spec.width
            return verify_layout.workload(self.architecture.kda_shard(tp), node.name, rows // tokens, tokens)
        workload = contract.at(tp, rows, Layout(), node.name)
        axes = workload.axes | node.axes
        if node.op == "attn_res_norm":
            axes["block_stride"] = rows * axes["block_row_stride"]
        if node.op == "latent_up":
            axes["shared_stride"] = rows * axes["shared_row_stride"]
        if "experts" in axes:
            axes["experts"] = self.architecture.moe.experts
        if "page_size" in axes:
            width = -(-self._tokens // PAGE)
            axes |= {"table_width": width, "table_stride": width, "pages": 1 + rows // self.spec.width * width}
        return workload.model_copy(update={"axes": axes})

    @property
    def _tokens(self) -> int:
        """Tokens that the last row of a request sees, its own included."""
        return self.spec.width + (self.spec.context or 0)

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
                if spec.role is TensorRole.OUTPUT or (sources and spec.name != "blocks" and self.inner(sources)):
                    continue
                same = (spec.name == "blocks", sources) if sources else key
                found[key] = (spec, first.setdefault(same, key))
        return found

    def inner(self, sources: Iterable[Source]) -> bool:
        """Whether nodes of the shard hand all of them on within the rank."""
        return all(s.value in self.written and s.via in (Via.HERE, Via.COLUMNS) for s in sources)

    @cached_property
    def drawn_specs(self) -> dict[str, TensorSpec]:
        """Of all that is drawn."""
        return {key: spec for key, (spec, _) in self._drawn.items()}

    def drawn(self, seed: int, device: str, weights: Values, label: Callable[[str], str]) -> Values:
        """As `Shard.draw`; weights that share a label are shared: `weights` holds those there are, and takes new ones up."""
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
        width = self.spec.width
        if spec.name == "lengths":
            # One more for each token of a request.
            to.copy_(self._tokens + 1 - width + torch.arange(len(to), device=to.device) % width)
        elif spec.name == "slots":
            to.copy_((1 + torch.randperm(to.numel(), generator=random, device=to.device)).view(to.shape))
        elif spec.name == "page_table":
            # Rows of a request share its pages.
            entries = 1 + torch.randperm(to.numel() // width, generator=random, device=to.device)
            to.copy_(entries.view(-1, to.shape[1]).repeat_interleave(width, 0))
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

    def bytes_of(self, *roles: TensorRole) -> int:
        """Memory of the tensors drawn for these roles."""
        return sum(_bytes(spec) for key, (spec, shared) in self._drawn.items() if key == shared and spec.role in roles)

    def inputs_beside(self, apart: Collection[str]) -> int:
        """Memory of inputs that another arrangement lacks, or lays out in its own way (`apart`)."""
        own = [spec for key, spec in self.drawn_specs.items() if spec.role is TensorRole.INPUT and key in apart]
        nodes = ((node, tensor, sources) for node in self.nodes for tensor, sources in node.reads.items())
        gathered = [
            self.drawn_specs[f"{node.name}.{tensor}"] for node, tensor, (source, *_) in nodes
            if source.via is Via.GATHERED and source.value in self.written
        ]  # fmt: skip
        return sum(map(_bytes, (*own, *gathered)))

    def weight_sizes(self) -> dict[str, int]:
        """Bytes of each weight, by its key among those drawn."""
        static = ((key, spec) for key, (spec, _) in self._drawn.items() if spec.role is TensorRole.STATIC)
        return {key: _bytes(spec) for key, spec in static}

    @property
    def cost(self) -> Cost:
        """As the ops' contracts count, without what stays inside; experts: as many as even choices meet on average.

        A cache that one op of the layer writes a row of and another reads is not inside: its rows are there before. Those
        of a request count once, however many of its tokens see them.
        """
        name = self.spec.key
        cost = self.part.cost(self.part.joined(name, [self.workloads[node.name] for node in self.nodes]))
        for node in self.nodes:
            for spec in self.contracts[node.op].tensors(self.workloads[node.name]):
                read = cost.bytes_read
                if node.op in ("mla_core", "mla_verify") and spec.name == "cache":
                    pages, size, width = spec.shape
                    counted = spec.dtype.bytes * pages * size * width
                    padding = (pages - 1) * size - self.spec.rows // self.spec.width * self._tokens
                    read += counted - spec.dtype.bytes * width * padding
                if node.op == "mla_verify" and spec.name == "page_table":
                    # Taken off as a whole, and counted once a request.
                    rows, width = spec.shape
                    read += spec.dtype.bytes * (rows - rows // self.spec.width) * width
                cost = cost.model_copy(update={"bytes_read": read})
        return cost

    def stock(self, tensors: Mapping[str, Tensor], packs: Packs | None = None) -> StockRun:
        """See stock/parts.py."""
        from . import stock

        device = str(next(iter(tensors.values())).device)
        return stock.part(self.graph, self.names, self.contracts, tensors, self.workloads, device=device, packs=packs)


_UNIFORM = {
    "res_norm": (0.5, 1.5), "out_norm": (0.5, 1.5), "o_norm": (0.5, 1.5), "q_a_norm": (0.5, 1.5),
    "kv_a_norm": (0.5, 1.5), "latent_norm": (0.5, 1.5), "dt_bias": (-0.75, 0.5), "a_log": (1.0, 16.0),
}  # fmt: skip
_SCALES = {
    "conv_weight": 0.5, "recurrent_state": 0.1, "correction_bias": 0.001, "res_proj": 0.01, "peers": 0.25,
    "shared": 0.25,
}  # fmt: skip
"""Standard deviations. Other weights: one over the root of their inputs; other inputs: one. The bias is too small to
choose experts: choices are even, as the bytes of a layer are counted."""


def _bytes(spec: TensorSpec) -> int:
    return spec.storage_elements * spec.dtype.bytes


def _scales(width: int) -> tuple[int, int]:
    """The range of scale bytes with which a product of `width` elements is of order one: an element's is near 3."""
    exponent = 127 - round(torch.tensor(3.0 * width**0.5).log2().item())
    return exponent - 1, exponent + 2
