"""A whole decode step on one rank: every layer at its real shape, few sets of weights in turn.

Ranks' exchange is given memory, as in a layer: what other ranks finish of a layer is what the next one reads, so layers
do not depend on each other here, and those that are examined are examined one by one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from torch import Tensor

from ..base import Cost, TensorRole
from ..grid import Ambiguous, CellSpec, Examined, Shard
from ..stock import Packs, StockRun
from .architecture import Architecture
from .compared_shard import ComparedShard
from .graph import Via
from .rows_examined import RowsExamined, Values

SETS = 4
"""Sets of weights that layers take in turn: each is several times the L2, so that a layer finds none of its own there"""

TRIED = 6
"""Layers of a kind, before another step is drawn"""


class StepShard(Shard):
    """All nodes of the step."""

    copies = 1

    def __init__(
        self, architecture: Architecture, spec: CellSpec, part: Callable[[Sequence[str]], ComparedShard],
        names: Sequence[str], examined: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        """`part` makes the shard of some of the nodes `names`. Of each group of layers that are `examined` the first is looked at whose
        choice of experts does not hang on a rounding, of `TRIED`: drawing a step takes too long to draw another for it. A layer that
        reads on its own rank what another one left is not: it has another input than the one that was drawn for it."""
        self.spec, self.names = spec, tuple(names)
        self.scope = f"{ComparedShard.scope}; {SETS} sets of weights in turn over {architecture.layers} layers"
        layers: dict[str, list[str]] = {}
        for name in self.names:
            number = name.partition(".")[0]
            layers.setdefault(number if number.isdigit() else "end", []).append(name)
        self.parts = [part(found) for found in layers.values()]
        written = {value for part in self.parts for value in part.own.written}
        alone = [number for number, part in enumerate(self.parts) if not _read_here(part) & written - part.own.written]
        self.groups = [[number for number in numbers if number in alone][:TRIED] for numbers in examined]
        """Numbers of the layers that are examined, of each group the first whose choice is clear"""

    def draw(self, seed: int, device: str) -> Values:
        """See `Shard`."""
        weights: Values = {}
        return {name: t for part in self.parts for name, t in part.drawn(seed, device, weights, _label).items()}

    def volatile(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Shard`."""
        each = [part.volatile() for part in self.parts]
        return tuple(n for inputs, _ in each for n in inputs), tuple(n for _, states in each for n in states)

    def stock(self, tensors: Mapping[str, Tensor]) -> StockRun:
        """See stock/parts.py."""
        packs: Packs = {}
        runs = [part.stock(tensors, packs) for part in self.parts]

        def run() -> None:
            for each in runs:
                each.run()

        return StockRun(run, {value: tensor for each in runs for value, tensor in each.outputs.items()})

    @cached_property
    def cost(self) -> Cost:
        """Every layer's and the end's: nothing stays in a cache from one to the next."""
        return _added(part.cost for part in self.parts)

    @cached_property
    def stock_cost(self) -> Cost:
        """See `Shard`."""
        return _added(part.stock_cost for part in self.parts)

    @property
    def slot_bytes(self) -> int:
        """See `Shard`: weights once a set."""
        return self._volatile_bytes + self._weight_bytes()

    @property
    def path_bytes(self) -> tuple[int, int]:
        """See `Shard`: both repack experts once a set."""
        own = self.slot_bytes + self._weight_bytes()
        return own, own

    @property
    def _volatile_bytes(self) -> int:
        return sum(part.bytes_of(TensorRole.INPUT, TensorRole.STATE) for part in self.parts)

    def _weight_bytes(self) -> int:
        """Of what layers share once."""
        return sum({_label(key): size for part in self.parts for key, size in part.weight_sizes().items()}.values())

    def examined(self, tensors: Mapping[str, Tensor]) -> "dict[str, StepExamined]":
        """A layer of each group and the end. Raises Ambiguous."""
        groups = [[self.parts[number] for number in numbers] for numbers in self.groups]
        found = [_first_clear(parts, tensors) for parts in (*groups, self.parts[-1:])]
        return {path: StepExamined([each[path] for each in found]) for path in found[0]}


def _read_here(part: ComparedShard) -> set[str]:
    """Values that a layer takes as its rank has them. Banked streams are given to every layer, as what ranks send is."""
    reads = (item for node in part.own.nodes for item in node.reads.items())
    return {
        source.value for tensor, sources in reads if tensor != "blocks"
        for source in sources if source.via in (Via.HERE, Via.COLUMNS)
    }  # fmt: skip


def _first_clear(parts: Sequence[ComparedShard], tensors: Mapping[str, Tensor]) -> dict[str, RowsExamined]:
    for part in parts[:-1]:
        try:
            return part.examined(tensors)
        except Ambiguous:
            continue
    return parts[-1].examined(tensors)


def _added(costs: Iterable[Cost]) -> Cost:
    found = list(costs)
    names = ("bytes_read", "bytes_written", "flops")
    return Cost(**{name: sum(getattr(cost, name) for cost in found) for name in names})


def _label(key: str) -> str:
    """Layers of a set share their weights' names."""
    number, _, rest = key.partition(".")
    return f"{int(number) % SETS}.{rest}" if number.isdigit() else key


class StepExamined(Examined):
    """The examined rows of several layers, each by its own comparisons."""

    def __init__(self, parts: Sequence[RowsExamined]) -> None:
        self._parts = parts
        self.rows = tuple(sorted({row for part in parts for row in part.rows}))
        self.comparisons = tuple(
            comparison.model_copy(update={"tensor": _named(number, comparison.tensor)})
            for number, part in enumerate(parts) for comparison in part.comparisons
        )  # fmt: skip

    @property
    def selection(self) -> dict[str, Tensor]:
        """See `Examined`."""
        return {value: indices for part in self._parts for value, indices in part.selection.items()}

    def results(self, produced: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """See `Examined`."""
        return {
            _named(number, tensor): found
            for number, part in enumerate(self._parts) for tensor, found in part.results(produced).items()
        }  # fmt: skip


def _named(number: int, tensor: str) -> str:
    return f"{tensor} ({number + 1})"


