"""The grid of a server as lines of text."""

from collections.abc import Iterable, Iterator, Sequence

from fasttrack_validation.load.claim import measurement
from fasttrack_validation.load.records import Failed, Measured, NotRun

from . import grid_text
from .server_grid import ServerCell

_HEADER = (
    f"{'cell':<38} {'stock tok/s/user':>16} {'fast tok/s/user':>16} {'stock ms/tok':>12} {'fast ms/tok':>11} "
    f"{'TTFT ms':>15} {'accepted':>9}"
)


def line(outcome: Measured | Failed | NotRun) -> str:
    """One outcome on one line, absolute values alone: a multiplier takes a claim."""
    match outcome:
        case Failed():
            return f"failed ({outcome.stage}): {outcome.reason.splitlines()[0]}"
        case NotRun():
            return f"not run: {outcome.reason.splitlines()[0]}"
    told = []
    for side in (outcome.stock, outcome.specialised):
        rates = [one.figures.tok_s_user for one in side.rounds]
        told.append(f"{side.arm} {min(rates):.1f} to {max(rates):.1f} tok/s/user")
    return f"{', '.join(told)} in {len(outcome.stock.rounds)} rounds"


def table(cells: Iterable[tuple[ServerCell, Measured | Failed | NotRun]]) -> Iterator[str]:
    """Measured cells with both arms' figures, the others gathered by their reasons."""
    return grid_text.table(cells, _HEADER, _row, line)


def _row(cell: ServerCell, outcome: Measured) -> str:
    stock, fast = (measurement(cell.record, side) for side in (outcome.stock, outcome.specialised))
    accepted = fast.speculation.acceptance_length
    ttft = f"{stock.result.ttft.base * 1e3:.0f} / {fast.result.ttft.base * 1e3:.0f}"
    return (
        f"{cell.spec.key:<38} {stock.result.tok_s_user.base:>16.1f} {fast.result.tok_s_user.base:>16.1f} "
        f"{stock.result.tpot.base * 1e3:>12.3f} {fast.result.tpot.base * 1e3:>11.3f} {ttft:>15} "
        f"{'' if accepted is None else f'{accepted:.2f}':>9}"
    )


def shown(cells: Sequence[ServerCell]) -> Iterator[str]:
    """The whole grid, with how to get at ratios."""
    yield from table((cell, cell.outcome) for cell in cells)
    counts = {name: sum(cell.outcome.kind == name for cell in cells) for name in ("measured", "failed", "not_run")}
    yield ""
    yield f"{counts['measured']} measured, {counts['failed']} failed, {counts['not_run']} not run"
    if counts["measured"]:
        yield "ratios, with all their conditions: `fasttrack grid claim`, then `fasttrack claims check`"
