"""Records of several ranks at work, communication included, as a report shows them: `evidence/exchange/*.json`.

Read as data. A record names the sources that it is about by digest; which of them are others by now is told beside its
figures, which stay, marked, wherever the page shows them: renewing them takes several GPUs of one host, and hiding them would
hide what speaks against the design. No ratio is drawn from them.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

DIRECTORY = "evidence/exchange"
_TIMED = ("latency", "layer", "step")


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Figure(_Read):
    """Microseconds: a median, and the quartiles of the rounds."""

    median: float
    low: float = Field(alias="quarter")
    high: float = Field(alias="three quarters")


class Cell(_Read):
    """One thing that was asked, and what came of it."""

    what: str
    tp: int
    outcome: Literal["measured", "passed", "failed", "not_run"]
    reason: str = ""
    reasons: tuple[str, ...] = ()
    rows: int | None = None
    span: str | None = None
    path: str | None = None
    context: int | None = None
    gpus: int | None = None
    memory: str | None = None
    transport: str | None = None
    scenario: str | None = None
    bound_seconds: float | None = None
    largest_mix_error: float | None = None
    microseconds: Figure | dict[str, Figure] | None = None


class _Record(_Read):
    hardware: str
    scope: str
    method: str
    conditions: dict[str, object]
    subject: dict[str, str]
    cells: tuple[Cell, ...]


class Exchange(Frozen):
    """One record, with the file that it was read from (relative to the model directory)."""

    source: str
    hardware: str
    scope: str
    method: str
    conditions: str
    changed: tuple[str, ...] = Field(description="folders of the model directory whose sources are others by now")
    cells: tuple[Cell, ...]

    @property
    def latencies(self) -> tuple["Latency", ...]:
        """One line a TP and operation: the mailbox's time and the library's, by rows."""
        found: dict[tuple[int, str], dict[int, list[tuple[str, Figure]]]] = {}
        for cell in self.cells:
            if cell.what == "latency" and isinstance(cell.microseconds, dict) and cell.rows is not None:
                for name, figure in cell.microseconds.items():
                    operation, _, way = name.partition(": ")
                    found.setdefault((cell.tp, operation), {}).setdefault(cell.rows, []).append((way, figure))
        made = []
        for (tp, operation), by_rows in found.items():
            ways = list(dict.fromkeys(way for held in by_rows.values() for way, _ in held))
            mine = next((way for way in ways if not way.startswith("NCCL")), None)
            theirs = next((way for way in ways if way.startswith("NCCL")), None)
            times = {rows: (dict(held).get(mine), dict(held).get(theirs)) for rows, held in sorted(by_rows.items())}
            made.append(Latency(tp=tp, operation=operation, mine=mine, theirs=theirs, times=times))
        return tuple(made)

    @property
    def spans(self) -> tuple["Span", ...]:
        """Layers and steps, one a TP and row count, with the cell of each path."""
        found: dict[tuple, dict[str, Cell]] = {}
        for cell in self.cells:
            if cell.what in ("layer", "step") and cell.path:
                found.setdefault((cell.span or cell.what, cell.tp, cell.rows, cell.context), {})[cell.path] = cell
        return tuple(Span(name=key[0], tp=key[1], rows=key[2] or 0, context=key[3], paths=paths) for key, paths in found.items())


class Latency(Frozen):
    """One operation at one TP. `times`: rows -> (mailbox, communication library), None where not measured."""

    tp: int
    operation: str
    mine: str | None
    theirs: str | None
    times: dict[int, tuple[Figure | None, Figure | None]]


class Span(Frozen):
    """A layer or a step. `paths`: name of the path -> its cell."""

    name: str
    tp: int
    rows: int
    context: int | None
    paths: dict[str, Cell]

    @property
    def standing(self) -> str:
        """The fastest other path against the stock path: faster or slower where their quartiles lie apart."""
        stock = next((c.microseconds for n, c in self.paths.items() if n.startswith("stock") and _figure(c)), None)
        mine = [c.microseconds for n, c in self.paths.items() if not n.startswith("stock") and _figure(c)]
        if stock is None or not mine:
            return "not compared"
        best = min(mine, key=lambda figure: figure.median)
        return "faster" if best.high < stock.low else "slower" if best.low > stock.high else "not told apart"


def _figure(cell: Cell) -> bool:
    return cell.outcome == "measured" and isinstance(cell.microseconds, Figure)


class Finding(Frozen):
    """Cells of one kind that ended alike."""

    what: str
    outcome: str
    reason: str
    cells: tuple[Cell, ...]

    @property
    def details(self) -> tuple[tuple[str, str], ...]:
        """(name, values) of what tells the cells apart, TP first."""
        rows = [("TP", [one.tp for one in self.cells]), ("said", [said for one in self.cells for said in one.reasons])]
        rows += [(name, [getattr(one, name) for one in self.cells]) for name in ("memory", "transport", "scenario")]
        return tuple((name, ", ".join(map(str, dict.fromkeys(v for v in held if v is not None)))) for name, held in rows
                     if any(v is not None for v in held))  # fmt: skip

    @property
    def gpus(self) -> int | None:
        """On how many GPUs, where that is told: ranks may share one."""
        return next((one.gpus for one in self.cells if one.gpus is not None), None)

    @property
    def bound_seconds(self) -> float | None:
        """The longest that a wait was allowed."""
        return max((one.bound_seconds for one in self.cells if one.bound_seconds is not None), default=None)

    @property
    def largest_mix_error(self) -> float | None:
        """Of a mixed row, relative."""
        return max((one.largest_mix_error for one in self.cells if one.largest_mix_error is not None), default=None)


def findings(records: Iterable[Exchange]) -> tuple[tuple[Finding, tuple[str, ...]], ...]:
    """Everything without a time of its own, failures first, with the files: cells of one kind, outcome and reason
    together.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, Cell]]] = {}
    for record in records:
        for cell in record.cells:
            if (cell.what in _TIMED and (cell.path or cell.outcome == "measured")) or cell.what == "trace":
                continue
            what, reason = cell.what, cell.reason
            if cell.outcome == "not_run" and cell.what in _TIMED:
                what, reason = "latency, layers and steps", re.sub(r"\b\d+ GPUs", "as many GPUs", reason)
            groups.setdefault((what, cell.outcome, reason), []).append((record.source, cell))
    order = ("failed", "not_run", "passed", "measured")
    made = [
        (Finding(what=what, outcome=outcome, reason=reason, cells=tuple(cell for _, cell in held)),
         tuple(dict.fromkeys(source for source, _ in held)))
        for (what, outcome, reason), held in groups.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda one: order.index(one[0].outcome)))


def exchanges(files: Mapping[str, bytes], directory: str) -> tuple[Exchange, ...]:
    """Every record in a model directory, `directory` from the repository's root. UserError for one that is none."""
    found = []
    for path in sorted(files):
        if not re.fullmatch(rf"{DIRECTORY}/[^/]+\.json", path):
            continue
        try:
            record = _Record.model_validate(json.loads(files[path]))
        except (ValueError, RecursionError, ValidationError) as error:
            raise UserError(f"{path} is no record of ranks at work: {str(error).splitlines()[0]}",
                            "restore it from git, or make it again: `benchmarks/exchange/record.py`") from error  # fmt: skip
        changed = tuple(
            name for name in ("exchange", "kernels") if record.subject.get(name) != sources_digest(files, directory, name)
        )
        found.append(Exchange(
            source=path, hardware=record.hardware, scope=record.scope, method=record.method, cells=record.cells,
            changed=changed, conditions="; ".join(_conditions(record.conditions)),
        ))  # fmt: skip
    return tuple(found)


def _conditions(held: Mapping[str, object]) -> Iterator[str]:
    for name, value in held.items():
        if isinstance(value, str):
            yield f"{name} {value}"
        elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            yield ", ".join(f"{value.count(one)} {one}" for one in dict.fromkeys(value))


def sources_digest(files: Mapping[str, bytes], directory: str, folder: str) -> str:
    """SHA-256 over the sources below a folder, names from the repository's root included, as the benchmark takes it."""
    digest = hashlib.sha256()
    names = (PurePosixPath(name) for name in files if name.startswith(f"{folder}/"))
    for name in sorted(one for one in names if one.suffix in (".py", ".cu", ".cuh")):
        digest.update(f"{directory}/{name}\0".encode() + files[str(name)] + b"\0")
    return digest.hexdigest()
