"""Up to how many rows a step takes less time on a model's own path than on the stock path: drawn from the grid's records.

The table is read by the decode path, which leaves all other steps to the stock path on hardware that the table names. It is
no subject of the grid's records, so that what they decide does not make them stale.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from fasttrack_validation.contracts.grid import Span
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from . import strict_toml

if TYPE_CHECKING:
    from fasttrack_validation.contracts.grid import CellSpec
    from fasttrack_validation.performance.records import Record

    from .grid import Cell

HEAD = """# Rows up to which a step was measured to take less time here than on the stock path, by hardware, TP and tokens of a request.
# `fasttrack grid decide` draws it from evidence/grid/. A step that is not listed is the stock path's
# on hardware that is.
"""


class Entry(Frozen):
    """`rows`: from the smallest batch up to here; 0 where none was measured to be faster."""

    hardware: str
    tp: int = Field(ge=1)
    tokens: int = Field(ge=1, description="that each request brings: above one a verify step")
    rows: int = Field(ge=0)


class Table(Frozen):
    """The whole file."""

    entry: tuple[Entry, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> "Table":
        places = [(entry.hardware, entry.tp, entry.tokens) for entry in self.entry]
        if len(set(places)) < len(places):
            raise ValueError("a hardware, TP and number of tokens is listed twice")
        return self


@dataclass(frozen=True)
class Step:
    """What the cells of one size say of a step: its layers' times added up."""

    tp: int
    tokens: int
    rows: int
    ratio: float | None
    """The stock path's time over this path's at the context where that is least, at the unfavourable ends of all intervals;
    None where a cell has no figure"""
    why: str
    """Which cells have none; or the context"""


def steps(cells: "Sequence[Cell[CellSpec, Record]]", layers: Mapping[str, int]) -> tuple[Step, ...]:
    """Every size of the grid's layer cells, small batches first. `layers`: of a step, by kind.

    Layers of a kind that caches nothing count at every context. A kind whose cells of a size are excluded is unknown there.
    """
    sizes: dict[tuple[int, int, int], list] = {}
    for cell in cells:
        if cell.spec.span is Span.LAYER:
            sizes.setdefault((cell.spec.tp, cell.spec.width, cell.spec.rows), []).append(cell)
    return tuple(_step(*size, found, layers) for size, found in sorted(sizes.items()))


def _step(tp: int, tokens: int, rows: int, cells: "Sequence[Cell[CellSpec, Record]]", layers: Mapping[str, int]) -> Step:
    without = [cell.spec.key for cell in cells if cell.outcome.kind != "measured"]
    absent = sorted(layers.keys() - {cell.spec.kind for cell in cells})
    if without or absent:
        return Step(tp, tokens, rows, None, f"no figure for {', '.join(without or absent)}")
    contexts = sorted({cell.spec.context for cell in cells} - {None}) or [None]
    found = []
    for context in contexts:
        here = [cell for cell in cells if cell.spec.context in (None, context)]
        stock = sum(layers[cell.spec.kind] * cell.outcome.stock.microseconds.low for cell in here)
        own = sum(layers[cell.spec.kind] * cell.outcome.specialised.microseconds.high for cell in here)
        found.append((stock / own, "" if context is None else f"at {context} tokens cached"))
    return Step(tp, tokens, rows, *min(found))


def drawn(hardware: str, found: Iterable[Step], smallest_effect: float) -> tuple[Entry, ...]:
    """Rows up to which every size is faster by more than the smallest effect (a fraction), without a gap from the first on."""
    entries: dict[tuple[int, int], int] = {}
    closed = set()
    for step in sorted(found, key=lambda step: (step.tp, step.tokens, step.rows)):
        kind = step.tp, step.tokens
        entries.setdefault(kind, 0)
        if step.ratio is None or step.ratio <= 1 + smallest_effect:
            closed.add(kind)
        if kind not in closed:
            entries[kind] = step.rows
    return tuple(Entry(hardware=hardware, tp=tp, tokens=tokens, rows=rows) for (tp, tokens), rows in entries.items())


def parse(text: str, path: Path) -> Table:
    """The table in `text`. Raises UserError naming `path`, the key and the line."""
    return strict_toml.parse(text, Table, path)


def render(table: Table) -> str:
    """TOML text of `table`; equal tables give equal bytes, and `parse` gives the table back."""
    order = sorted(table.entry, key=lambda entry: (entry.hardware, entry.tp, entry.tokens))
    return HEAD + "".join(
        f'\n[[entry]]\nhardware = "{entry.hardware}"\ntp = {entry.tp}\ntokens = {entry.tokens}\nrows = {entry.rows}\n'
        for entry in order
    )


def check_within(table: Table, envelope: Iterable[tuple[str, int, tuple[int, int], int]], path: Path) -> None:
    """Raises UserError for an entry beyond the `envelope`: hardware, TP, rows, most tokens of a request."""
    claimed = {(hardware, tp): (rows[1], tokens) for hardware, tp, rows, tokens in envelope}
    for entry in table.entry:
        rows, tokens = claimed.get((entry.hardware, entry.tp), (-1, -1))
        if entry.rows > rows or entry.tokens > tokens:
            place = f"{entry.hardware} tp={entry.tp} tokens={entry.tokens} rows={entry.rows}"
            raise UserError(f"{path}: {place} lies outside the envelope", "`fasttrack grid decide --write` draws the table")


def replaced(table: Table, hardware: str, entries: Sequence[Entry]) -> Table:
    """`table` with these entries for `hardware`, and those of other hardware as they are."""
    return Table(entry=(*(entry for entry in table.entry if entry.hardware != hardware), *entries))
