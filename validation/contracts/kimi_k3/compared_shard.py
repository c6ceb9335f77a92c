"""A stretch of the step in two arrangements, drawn as one: rows of the mixture's weights divided over the ranks, and not.

The specialised path is given what every rank would have gathered; the stock path computes it all, as stock engines do.
So that both choose the same experts and meet the same latent rows, what other ranks finished of router and latent
down-projection is what the plain path makes of this rank's own inputs with all rows of these weights.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from operator import attrgetter

import torch
from torch import Tensor

from ..base import Cost, OpContract, TensorRole, TensorSpec
from ..grid import Ambiguous, CellSpec, Shard
from ..stock import Packs, StockRun
from .graph import Via
from .rank_shard import RankShard
from .rows_examined import MARGIN, RowsExamined, Sample, Values, examined_rows

STOCK = "stock:"
"""Begins the names of tensors that the stock path alone is given"""
_EXACT, _PLAIN = attrgetter("oracle"), attrgetter("plain")
_AT_ONCE = 2**19
"""Cached rows that the plain path of attention has in float32 at a time: with the copies that it makes, a few GB"""


class ComparedShard(Shard):
    """`own` and `stock`: the same nodes in the two arrangements, see `graph.step`. This rank is the first one."""

    scope = RankShard.scope
    copies = None

    def __init__(self, own: RankShard, stock: RankShard) -> None:
        self.own, self.replicated = own, stock
        self.spec: CellSpec = own.spec
        self.names = own.names
        self._theirs = {key: key if self._same(key) else f"{STOCK}{key}" for key in stock.drawn_specs}

    def _same(self, key: str) -> bool:
        mine, theirs = (shard.drawn_specs.get(key) for shard in (self.own, self.replicated))
        return mine is not None and (mine.shape, mine.strides) == (theirs.shape, theirs.strides)

    def draw(self, seed: int, device: str) -> Values:
        """See `Shard`."""
        return self.drawn(seed, device, {}, lambda key: key)

    def drawn(self, seed: int, device: str, weights: Values, label: Callable[[str], str]) -> Values:
        """See `RankShard.drawn`."""
        theirs = self.replicated.drawn(seed, device, weights, label)
        found = {self._theirs[key]: tensor for key, tensor in theirs.items()}
        with torch.device(device):
            gathered = self._gathered(theirs)
            for key, spec in self.own.drawn_specs.items():
                if key not in found:
                    found[key] = self._part(spec, theirs[key], weights, label(key)) if key in theirs else gathered[key]
        return found

    @staticmethod
    def _part(spec: TensorSpec, whole: Tensor, weights: Values, name: str) -> Tensor:
        """The first rows of a weight; of an input the first channels, in memory of their own."""
        mine = whole[tuple(slice(size) for size in spec.shape)]
        if spec.role is not TensorRole.STATIC:
            return mine.clone(memory_format=torch.contiguous_format)
        return weights.setdefault(f"own {name}", mine)

    def _gathered(self, theirs: Values) -> Values:
        """"place.tensor" -> all columns of what nodes of this shard leave in parts."""
        wanted = [
            (node, tensor, source.value)
            for node in self.own.nodes for tensor, (source, *_) in node.reads.items()
            if source.via is Via.GATHERED and source.value in self.own.written and f"{node.name}.{tensor}" not in theirs
        ]  # fmt: skip
        if not wanted:
            return {}
        until, rows, width = {value for *_, value in wanted}, self.spec.rows, self.spec.width
        # Requests are taken whole.
        at_once = max(1, min(rows, _AT_ONCE // (width + (self.spec.context or 0))) // width) * width
        parts = [
            Sample(self.replicated, theirs, range(first, min(first + at_once, rows))).walk(
                _PLAIN, until=until
            )
            for first in range(0, rows, at_once)
        ]
        return {f"{node.name}.{tensor}": torch.cat([part[value] for part in parts]) for node, tensor, value in wanted}

    def _of_stock(self, tensors: Mapping[str, Tensor]) -> Values:
        return {key: tensors[name] for key, name in self._theirs.items()}

    def volatile(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Shard`."""
        inputs, states = self.own.volatile()
        theirs = (self._theirs[key] for key in self.replicated.volatile()[0])
        return (*inputs, *(key for key in theirs if key.startswith(STOCK))), states

    def stock(self, tensors: Mapping[str, Tensor], packs: Packs | None = None) -> StockRun:
        """See stock/parts.py."""
        return self.replicated.stock(self._of_stock(tensors), packs)

    @cached_property
    def cost(self) -> Cost:
        """Of the arrangement in which rows are divided; what was gathered is read."""
        return self.own.cost

    @cached_property
    def stock_cost(self) -> Cost:
        """See `Shard`."""
        return self.replicated.cost

    @property
    def slot_bytes(self) -> int:
        """See `Shard`."""
        return self.bytes_of(TensorRole.STATIC, TensorRole.INPUT, TensorRole.STATE)

    @property
    def path_bytes(self) -> tuple[int, int]:
        """See `Shard`."""
        weights = [shard.bytes_of(TensorRole.STATIC) for shard in (self.own, self.replicated)]
        return self.slot_bytes + weights[0], self.slot_bytes + weights[1]

    def bytes_of(self, *roles: TensorRole) -> int:
        """See `RankShard`: parts of weights lie in the whole ones."""
        apart = {key for key, name in self._theirs.items() if name != key}
        new = self.own.inputs_beside(apart) if TensorRole.INPUT in roles else 0
        return self.replicated.bytes_of(*roles) + new

    def weight_sizes(self) -> dict[str, int]:
        """See `RankShard`: by key of the stock path's."""
        return self.replicated.weight_sizes()

    def examined(self, tensors: Mapping[str, Tensor]) -> dict[str, RowsExamined]:
        """See `Shard`: each path against the arrangement that it runs, worked out where `tensors` are. Raises Ambiguous."""
        with torch.device(next(iter(tensors.values())).device):
            return self._examined(tensors)

    def _examined(self, tensors: Mapping[str, Tensor]) -> dict[str, RowsExamined]:
        chosen = examined_rows(self.spec.rows, self.spec.width)
        theirs, mine = Sample(self.replicated, self._of_stock(tensors), chosen), Sample(self.own, tensors, chosen)
        # Whether the choice is clear is known before an expert is looked at, which takes longer than all else.
        choices = {value for node in self.own.nodes if node.op == "routing" for value in node.writes.values()}
        (exact, exact_whole), (plain, plain_whole) = begun = [
            self._walked(theirs, mine, path, ({}, {}), choices) for path in (_EXACT, _PLAIN)
        ]
        clear = [
            row for row in range(len(chosen))
            if theirs.clear(exact_whole, plain_whole, row) and mine.clear(exact, plain, row)
        ]  # fmt: skip
        if not clear:
            raise Ambiguous(f"{self.spec.key}: rows {chosen} choose experts by less than {MARGIN}")
        (exact, exact_whole), (plain, plain_whole) = (
            self._walked(theirs, mine, path, so_far, ()) for path, so_far in zip((_EXACT, _PLAIN), begun, strict=True)
        )
        return {
            "specialised": RowsExamined(self.own, mine, exact, plain, clear),
            "stock": RowsExamined(self.replicated, theirs, exact_whole, plain_whole, clear),
        }

    def _walked(
        self, theirs: Sample, mine: Sample, path: Callable[[OpContract], Callable], so_far: tuple[Values, Values], until: Collection[str]
    ) -> tuple[Values, Values]:  # fmt: skip
        """Values of this rank's arrangement and of the whole one, from those there are `so_far`."""
        own, whole = so_far
        whole = theirs.walk(path, known=whole, until=until)
        return mine.walk(path, known=self._known(whole) | own, until=until), whole

    def _known(self, whole: Values) -> Values:
        """What both arrangements have alike, and this rank's columns of what only one of them divides."""
        divided = {
            source.value for node in self.own.nodes for source in node.sources if source.via is Via.GATHERED
        } & self.own.written
        return {
            value: whole[value].chunk(self.spec.tp, 1)[0] if value in divided else whole[value]
            for node in self.own.nodes if node.op not in _BEHIND for value in node.writes.values()
        }  # fmt: skip


_BEHIND = ("routing", "experts", "shared_down", "latent_up")
"""Ops behind the gathering, whose inputs differ between the arrangements"""
