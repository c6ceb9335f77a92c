"""The performance grid as lines of text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from fasttrack_validation.claims import grids
from fasttrack_validation.performance.records import Failed, Measured, NotRun

from . import grid
from .faster import Entry, Step
from .grid import Cell

AnyCell = TypeVar("AnyCell", bound=Cell)
_HEADER = (
    f"{'cell':<26} {'stock us':>9} {'fast us':>9} {'ratio':>6}  {'interval':<13} {'x floor':>7} {'floor':>7} "
    f"{'physical':>8} {'bytes x speed':>13} {'launches':>9}  rows"
)


def plan(cells: Sequence[Cell]) -> Iterator[str]:
    """A line for each cell: its name, what is known of it, and why nothing more."""
    for cell in cells:
        yield f"{cell.spec.key:<26} {cell.standing:<9} {_short(cell.reason)}".rstrip()


def phases(begun: Sequence[tuple[str, float]], end: float) -> str:
    """What a cell's time went into: (phase, when it began), seconds of any clock. Empty for none."""
    ends = [*(when for _, when in begun), end][1:]
    each = [f"{name} {until - when:.1f} s" for (name, when), until in zip(begun, ends, strict=True)]
    return "; ".join(each)


def line(outcome: Measured | Failed | NotRun) -> str:
    """One outcome on one line."""
    match outcome:
        case Failed():
            return f"failed ({outcome.stage}): {_short(outcome.reason)}"
        case NotRun():
            return f"not run: {_short(outcome.reason)}"
    c = outcome.comparison
    return (
        f"stock {outcome.stock.microseconds.median:.1f} us, "
        f"specialised {outcome.specialised.microseconds.median:.1f} us, "
        f"ratio {c.ratio:.2f} ({c.low:.2f} to {c.high:.2f}), {c.standing}"
    )


def ran(outcomes: Sequence[tuple[Cell, Measured | Failed | NotRun]]) -> Iterator[str]:
    """What a run left, cells without a figure gathered by their reasons."""
    yield from _table((cell, outcome) for cell, outcome in outcomes)


def shown(cells: Sequence[Cell]) -> Iterator[str]:
    """The whole grid with the conditions that all its figures share, and how they spread."""
    yield from _table((cell, cell.outcome) for cell in cells)
    measured = [cell for cell in cells if isinstance(cell.outcome, Measured)]
    if not measured:
        return
    totals = grid.summary(cell.outcome for cell in cells)
    yield ""
    yield (
        f"ratio stock over specialised: worst {totals['worst']:.2f}, geometric mean {totals['geometric_mean']:.2f}, "
        f"best {totals['best']:.2f} of {totals['measured']} cells; {totals['not_run']} not run, "
        f"{totals['failed']} failed"
    )
    yield from dict.fromkeys(f"scope: {cell.record.scope}" for cell in measured)
    yield from dict.fromkeys(
        "machine: " + ", ".join(f"{name} {value}" for name, value in cell.record.machine.items()) for cell in measured
    )
    clocks = [cell.outcome.conditions for cell in measured]
    lowest = [c.sm_mhz_lowest for c in clocks if c.sm_mhz_lowest is not None]
    if lowest:
        reasons = sorted({name for c in clocks for name in c.throttles})
        yield f"SM clock {min(lowest)} MHz at the lowest; throttling: {', '.join(reasons) or 'none seen'}"
    else:
        yield f"clocks: {clocks[0].unavailable}"


def compared(cells: Sequence[grids.Compared]) -> Iterator[str]:
    """A line for each cell that can be compared, the others by their reasons, and what got slower."""
    apart: dict[str, list[str]] = {}
    told = [cell for cell in cells if cell.change is not grids.Change.APART]
    if told:
        yield f"{'cell':<26} {'before/after':>12}  {'interval':<13} {'stock':>6}  change"
    for cell in cells:
        if cell.change is grids.Change.APART:
            apart.setdefault(cell.reason, []).append(cell.cell)
            continue
        ratio, stock = cell.ratio, cell.stock
        spread = f"{ratio.low:.3f}-{ratio.high:.3f}"
        yield f"{cell.cell:<26} {ratio.value:>12.3f}  {spread:<13} {stock.value:>6.3f}  {cell.change}"
    for reason, keys in apart.items():
        yield f"not compared: {reason}"
        yield f"    {len(keys)}: {', '.join(keys)}"
    slower = [cell.cell for cell in told if cell.change is grids.Change.SLOWER]
    yield f"slower: {', '.join(slower) or 'no cell'} of {len(told)} compared"


def table(
    outcomes: Iterable[tuple[AnyCell, Any]], header: str, row: Callable[[AnyCell, Any], str], line: Callable[[Any], str]
) -> Iterator[str]:  # fmt: skip
    """Measured cells as rows under a header, the others gathered by the line that says why they have no figure."""
    without: dict[str, list[str]] = {}
    begun = False
    for cell, outcome in outcomes:
        if outcome.kind != "measured":
            without.setdefault(line(outcome), []).append(cell.spec.key)
            continue
        if not begun:
            yield header
            begun = True
        yield row(cell, outcome)
    for why, keys in without.items():
        yield why
        yield f"    {len(keys)}: {', '.join(keys)}"


def _table(outcomes: Iterable[tuple[Cell, Measured | Failed | NotRun]]) -> Iterator[str]:
    return table(outcomes, _HEADER, _row, line)


def _row(cell: Cell, outcome: Measured) -> str:
    c, fast = outcome.comparison, outcome.specialised
    return (
        f"{cell.spec.key:<26} {outcome.stock.microseconds.median:>9.1f} {fast.microseconds.median:>9.1f} "
        f"{c.ratio:>6.2f}  "
        f"{f'{c.low:.2f}-{c.high:.2f}':<13} {fast.microseconds.median / outcome.target_floor_us:>7.2f} "
        f"{outcome.target_floor_us:>7.1f} {outcome.physical_floor_us:>8.1f} "
        f"{f'{outcome.by_bytes:.2f} x {outcome.by_speed:.2f}':>13} "
        f"{f'{outcome.stock.launches}/{fast.launches}':>9}  {len(outcome.examined_rows)} examined"
    )


def _short(reason: str) -> str:
    """The first line of a reason."""
    return reason.splitlines()[0] if reason else ""


def decided(steps: Sequence[Step], entries: Sequence[Entry]) -> list[str]:
    """What each size of the grid says of a step, and what follows."""
    lines = [
        f"TP{step.tp} rows {step.rows}{'' if step.tokens == 1 else f', {step.tokens} a request'}: "
        + (step.why if step.ratio is None else f"{step.ratio:.3f} {step.why}".rstrip())
        for step in steps
    ]
    return [*lines, *(_up_to(entry, steps) for entry in entries)]


def _up_to(entry: Entry, steps: Sequence[Step]) -> str:
    what = f"TP{entry.tp}{'' if entry.tokens == 1 else f', {entry.tokens} tokens a request'}"
    if entry.rows:
        return f"faster up to {entry.rows} rows: {what}"
    smallest = next((step for step in steps if (step.tp, step.tokens) == (entry.tp, entry.tokens)), None)
    unknown = smallest is None or smallest.ratio is None
    return f"{'the smallest steps have cells without a figure, so left' if unknown else 'left'} to the stock path: {what}"
