"""What `fasttrack validate --stage numerics` prints: verdicts rung by rung, figures with their noise, worst tokens."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fasttrack_validation.numerics.whole_model.faulted import FaultTable
from fasttrack_validation.numerics.whole_model.checks import Check, Result, RungVerdict, Spread, Where
from fasttrack_validation.numerics.whole_model.verdict import StageVerdict, Worst
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, STOCK

_METRICS = {"logits": "logits, relative", "log_prob": "log-prob of what follows", "divergence": "KL, nats"}
"""Those of the long rung say themselves what they are"""
_QUANTILES = ("median", "p999", "maximum")
_SHOWN, _WIDTH = 8, 180


def verdict(of: StageVerdict, worst: Sequence[Worst], out: Path, drawn: Sequence[Path]) -> None:
    """The whole stage."""
    console = _console()
    settings = of.subject.settings
    console.print(
        f"numerics of {of.subject.model}: candidate {settings.candidate}, {weights(of.subject.checkpoint)}, "
        f"{settings.replicas} runs of the stock path again as noise"
    )
    console.print(_rungs(of))
    for rung in of.rungs:
        _failed(console, rung)
    for rung in of.rungs:
        if rung.spreads:
            console.print(_spreads(rung))
    if worst:
        console.print(_worst(worst))
    for path in drawn:
        console.print(f"drawn: {path}")
    console.print(f"{of.result.upper()}  verdict {of.digest()[:16]}, {len(of.evidence)} files of records in {out}")


def weights(name: str) -> str:
    """For people: a checkpoint by the beginning of its digest, drawn weights by the layers of the published model."""
    if not name.startswith("{"):
        return f"checkpoint {name[:12]}"
    return f"layers {', '.join(map(str, json.loads(name)['layers']))} with drawn weights"


def where(place: Where | None) -> str:
    """For people: layer 4, position 57, recurrent_state (unit)."""
    if place is None:
        return ""
    parts = [f"layer {place.layer}" if place.layer is not None else ""]
    parts += [f"position {place.position}" if place.position is not None else "", place.pool or ""]
    return ", ".join(filter(None, parts)) + f" ({place.unit})"


def faults(of: FaultTable) -> None:
    """Which rung catches which fault, and where it says that it is."""
    console = _console()
    head, *rows = fault_rows(of)
    table = Table(title="Planted faults, and the rungs that catch them", title_justify="left")
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    console.print("every fault is caught, the honest twin by no rung" if of.holds else "NOT every fault is caught")


def fault_rows(of: FaultTable) -> Iterator[tuple[str, ...]]:
    """A head, then a row for each fault: what it is, where it is planted, what each rung says, where it is found first. The op rung
    names a place only where no other one does."""
    columns = list(dict.fromkeys(cell.rung for row in of.rows for cell in row.cells))
    yield ("fault", "planted in", *columns, "found at")
    for row in of.rows:
        by_rung = {cell.rung: cell for cell in row.cells}
        marks = [_mark(by_rung[rung].result) if rung in by_rung else "-" for rung in columns]
        first = next((cell.first for cell in row.cells if cell.rung != "op" and cell.first), None)
        first = first or next((cell.first for cell in row.cells if cell.first), None)
        planted = f"layer {row.layer}" if row.layer is not None else ""
        yield (f"{row.fault}: {row.title}", planted, *marks, where(first))


def _console() -> Console:
    """As wide as the terminal, or wide enough for a table in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_WIDTH)


def _mark(result: Result) -> str:
    return {Result.FAIL: "caught", Result.PASS: ".", Result.INCONCLUSIVE: "?"}[result]


def _rungs(of: StageVerdict) -> Table:
    table = Table(title="Rungs", title_justify="left")
    for name in ("rung", "TP", "result", "tokens", "checks", "flips: ties", "bugs", "stock's own", "what"):
        table.add_column(name)
    for rung in of.rungs:
        flips = rung.flips
        table.add_row(
            rung.rung, str(rung.tp), rung.result.upper(), str(rung.tokens or ""),
            f"{sum(c.result is Result.PASS for c in rung.checks)}/{len(rung.checks)}",
            str(flips.ties) if flips else "", str(flips.bugs) if flips else "",
            str(flips.flips[STOCK]) if flips else "",
            escape(f"{where(rung.first)}: {rung.text}" if rung.first else rung.text),
        )  # fmt: skip
    for missing in of.not_run:
        table.add_row(missing.rung, str(missing.tp or ""), "NOT RUN", "", "", "", "", "", escape(missing.reason))
    return table


def _failed(console: Console, rung: RungVerdict) -> None:
    bad = [check for check in rung.checks if check.result is not Result.PASS]
    if not bad:
        return
    table = Table(title=f"{rung.rung} TP {rung.tp}: {len(bad)} checks that do not pass", title_justify="left")
    for name in ("check", "positions", "result", "candidate", "noise", "limit", "where"):
        table.add_column(name)
    for check in bad[:_SHOWN]:
        table.add_row(*_row(check))
    console.print(table)
    if len(bad) > _SHOWN:
        console.print(f"  and {len(bad) - _SHOWN} more: --json lists all")


def _row(check: Check) -> tuple[str, ...]:
    figures = (f"{value:.3g}" for value in (check.candidate, check.noise, check.limit))
    return escape(check.name), check.band, check.result, *figures, escape(where(check.where))


def _spreads(rung: RungVerdict) -> Table:
    """Median / p99.9 / maximum of each metric, with the range of the stock path's repetitions."""
    table = Table(title=f"{rung.rung} TP {rung.tp}: median / p99.9 / maximum against the oracle", title_justify="left")
    for name in ("metric", "positions", "values", "candidate", "stock", "noise (A/A), up to"):
        table.add_column(name)
    for metric, band in dict.fromkeys((spread.metric, spread.band) for spread in rung.spreads):
        here = {s.path: s for s in rung.spreads if (s.metric, s.band) == (metric, band)}
        again = [spread for path, spread in here.items() if path not in (CANDIDATE, STOCK)]
        most = (max(getattr(spread, name) for spread in again) for name in _QUANTILES)
        table.add_row(
            _METRICS.get(metric, metric), band, str(here[STOCK].values), _three(here[CANDIDATE]), _three(here[STOCK]),
            " / ".join(f"{value:.2g}" for value in most),
        )  # fmt: skip
    return table


def _three(spread: Spread) -> str:
    return " / ".join(f"{getattr(spread, name):.2g}" for name in _QUANTILES)


def _worst(worst: Sequence[Worst]) -> Table:
    table = Table(title="Tokens that the candidate changes most", title_justify="left")
    for name in ("unit", "position", "change", "noise there", "margin", "before", "follows", "oracle", "candidate"):
        table.add_column(name)
    for one in worst:
        shown = (repr(text)[1:-1] for text in (one.context, one.follows, one.oracle, one.candidate))
        figures = (f"{value:.3g}" for value in (one.change, one.noise, one.margin))
        table.add_row(one.unit, str(one.position), *figures, *map(escape, shown))
    return table
