"""The right results for a few rows of a shard, by the ops' own oracles and plain paths, and what they are held against."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...tensors import torch_dtype
from ..base import Comparison, OpContract, TensorRole, TensorSpec, Workload
from ..grid import Examined
from .graph import Node, Via

if TYPE_CHECKING:
    from .rank_shard import RankShard

Values = dict[str, Tensor]

EXAMINED = 4
"""Rows that are held against the oracle: rows do not depend on each other, and float64 takes its time"""
MARGIN = 5e-4
"""Scores of the last expert chosen and the first one left must be this far apart for a row to be examined: roundings
before the router move a score by about a tenth of it, and another expert is another result"""


def examined_rows(rows: int, width: int = 1) -> list[int]:
    """Up to four of a batch, first and last among them; of a verify step all `width` rows of the first and last request."""
    if width > 1:
        return sorted({*range(width), *range(rows - width, rows)})
    return sorted({0, rows - 1, rows // 3, 2 * rows // 3})[:EXAMINED]


class Sample:
    """Some rows of a shard's tensors, whole requests of a verify step, with pools that hold their pages alone."""

    def __init__(self, shard: "RankShard", tensors: Mapping[str, Tensor], rows: Sequence[int]) -> None:
        """On the device of `tensors`, which has to be the one where tensors are made (`torch.device` as a context), here and later."""
        self.shard, self.rows = shard, tuple(rows)
        self.workloads = {node.name: shard.workload(node, len(rows)) for node in shard.nodes}
        self.pages: dict[str, Tensor] = {}
        self.tensors: Values = {}
        for node in shard.nodes:
            axes = getattr(shard.contracts[node.op], "row_axes", _KDA_ROWS)
            for spec in shard.contracts[node.op].tensors(shard.workloads[node.name]):
                key = f"{node.name}.{spec.name}"
                if key in tensors and spec.name not in _POOLS:
                    self.tensors[key] = self._cut(tensors[key], spec, axes)
        self._renumber(tensors)

    def _cut(self, tensor: Tensor, spec: TensorSpec, axes: Mapping[str, int]) -> Tensor:
        if spec.role is TensorRole.STATIC:
            return tensor
        axis = 0 if spec.name in ("slots", "page_table", "lengths") else axes[spec.name]
        return self._rows_of(tensor, axis, self.requests if spec.name == "slots" else self.rows)

    def _rows_of(self, tensor: Tensor, axis: int, indices: Sequence[int] | Tensor) -> Tensor:
        return tensor.index_select(axis, torch.as_tensor(indices))

    @property
    def requests(self) -> tuple[int, ...]:
        """Those of the rows, each once: rows where requests have one token each."""
        return tuple(dict.fromkeys(row // self.shard.spec.width for row in self.rows))

    def _renumber(self, tensors: Mapping[str, Tensor]) -> None:
        """Pools of the rows' own pages behind the null page, and tables that point there."""
        for node in self.shard.nodes:
            for pool in _POOLS:
                key, table = f"{node.name}.{pool}", f"{node.name}.{'page_table' if pool == 'cache' else 'slots'}"
                if key not in tensors:
                    continue
                # Of page tables there is one a row, which rows of a request share.
                each = len(tensors[table]) // (self.shard.spec.rows // self.shard.spec.width)
                chosen = [request * each for request in self.requests]
                used = self._rows_of(tensors[table], 0, chosen).flatten().long()
                self.pages[key] = used
                self.tensors[key] = self._rows_of(tensors[key], 0, torch.cat([used.new_zeros(1), used]))
        for key, tensor in self.tensors.items():
            if key.rpartition(".")[2] in ("slots", "page_table"):
                requests = len(self.requests)
                numbers = 1 + torch.arange(tensor.numel() * requests // len(tensor), dtype=torch.int32)
                self.tensors[key] = numbers.view(requests, -1).repeat_interleave(len(tensor) // requests, 0).view_as(tensor)

    def walk(
        self, path: Callable[[OpContract], Callable], *, known: Mapping[str, Tensor] = {}, until: Collection[str] = ()
    ) -> Values:
        """Every value of the layer by the ops' own paths, each in the type that the path gives it.

        Values that are `known` are taken as they are. Ends, if it is given, as soon as all of `until` are there.
        """
        values: Values = {}
        for node in self.shard.nodes:
            if until and values.keys() >= set(until):
                break
            if known.keys() >= set(node.writes.values()):
                values |= {value: known[value] for value in node.writes.values()}
                continue
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
        if name == "blocks" or not sources or not self.shard.inner(sources):
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
            logits = self._given(node, "logits", exact)[row].double()
            score = logits.sigmoid() + self._given(node, "correction_bias", exact).double()
            best = score.topk(moe.top_k + 1).values if moe.top_k < moe.experts else score
            same = set(exact[node.writes["ids"]][row].tolist()) == set(plain[node.writes["ids"]][row].tolist())
            if moe.top_k < moe.experts and (not same or float(best[-2] - best[-1]) < MARGIN):
                return False
        return True


_POOLS = ("conv_state", "recurrent_state", "cache")
_KDA_ROWS = {"projected": 0, "slots": 0}


@dataclass(frozen=True)
class _Wanted:
    """A produced tensor on the CPU: its value in the step, which of its leading indices belong to examined rows, what is right there."""

    comparison: Comparison
    value: str
    indices: Tensor
    exact: Tensor
    plain: Tensor

    def found(self, got: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Exact, plain and what a path left (`got`, in the tensor's own type)."""
        return self.exact, self.plain, got


@dataclass(frozen=True)
class _Cache(_Wanted):
    """Of a cache `exact` and `plain` are the rows [n, width] that the plain path changes, at `place`: [pages of `indices`, tokens].

    Its pages were as `before`; all other rows keep those bits, and among a hundred thousand of them no median would show the new one.
    """

    before: Tensor
    place: tuple[Tensor, Tensor]

    def found(self, got: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [n, 1, width] that the plain path or `got` changes."""
        astray = (got != self.before).any(-1)
        astray[self.place] = False
        kept = self.before[astray]
        exact, plain = torch.cat([self.exact, kept.double()]), torch.cat([self.plain, kept])
        return exact[:, None], plain[:, None], torch.cat([got[self.place], got[astray]])[:, None]


class RowsExamined(Examined):
    """See `ComparedShard.examined`."""

    def __init__(self, shard: "RankShard", sample: Sample, exact: Values, plain: Values, clear: Sequence[int]) -> None:
        self.rows = tuple(sample.rows[row] for row in clear)
        leaving = set(shard.graph.interface(shard.names).outputs)
        found = (self._of(shard, sample, comparison, exact, plain, clear) for comparison in shard.part.comparisons)
        # What the layer alone reads of itself, a path need not have.
        self._wanted = [wanted for wanted in found if wanted.value in leaving]
        self.comparisons = tuple(wanted.comparison for wanted in self._wanted)

    def _of(
        self, shard: "RankShard", sample: Sample, comparison: Comparison, exact: Values, plain: Values, clear: Sequence[int]
    ) -> _Wanted:  # fmt: skip
        member, tensor = next(
            (index, name) for index, member in enumerate(shard.part.members) for name, outer in member.outer.items()
            if outer == comparison.tensor and name in member.contract.produced
        )  # fmt: skip
        node = shard.nodes[member]
        value, dtype = node.writes[tensor], _type(shard.contracts[node.op], sample.workloads[node.name], tensor)
        rows, own = torch.tensor([sample.rows[row] for row in clear]), torch.tensor(list(clear))
        if tensor in _POOLS:
            owners = sample.requests
            pages = sample.pages[f"{node.name}.{tensor}"].view(len(owners), -1)
            numbers = 1 + torch.arange(pages.numel()).view(pages.shape)
            own = torch.tensor(sorted({owners.index(int(row) // shard.spec.width) for row in rows}))
            rows, own = pages[own].flatten(), numbers[own].flatten()
        right, usual = exact[value].index_select(0, own), plain[value].index_select(0, own).to(dtype)
        if tensor != "cache":
            return _Wanted(comparison, value, rows.cpu(), right.cpu(), usual.cpu())
        before = sample.tensors[f"{node.name}.cache"].index_select(0, own)
        place = (before != usual).any(-1).nonzero(as_tuple=True)
        page, token = (indices.cpu() for indices in place)
        return _Cache(comparison, value, rows.cpu(), right[place].cpu(), usual[place].cpu(), before.cpu(), (page, token))

    @property
    def selection(self) -> dict[str, Tensor]:
        """Value -> leading indices of it that `results` is given, in order."""
        return {wanted.value: wanted.indices for wanted in self._wanted}

    def results(self, produced: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """See `Examined`; `produced` holds the indices of `selection` alone."""
        return {
            wanted.comparison.tensor: wanted.found(produced[wanted.value].to(wanted.plain.dtype)) for wanted in self._wanted
        }


def _type(contract: OpContract, workload: Workload, tensor: str) -> torch.dtype:
    return next(torch_dtype(spec.dtype) for spec in contract.tensors(workload) if spec.name == tensor)
