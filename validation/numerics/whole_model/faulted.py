"""The inverse test of the whole ladder: every planted fault, and which rung says what about it, where."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...records import Frozen
from . import findings, long_rung, long_sections, op_rung, pieces, side_by_side, tokens
from .checks import Result, RungVerdict, Where
from .plan import Material, Settings, works
from .runner import UnitRun
from .scenario import RungName
from .tokens import ORACLE, STOCK, Header
from .verdict import LONG_TP

TWIN = "twin"


class Cell(Frozen):
    """What one rung says about one fault."""

    rung: str
    result: Result
    first: Where | None = None
    text: str = ""


class Row(Frozen):
    """One fault."""

    fault: str
    title: str
    layer: int | None
    """Where it is planted"""
    cells: tuple[Cell, ...]

    @property
    def caught(self) -> tuple[str, ...]:
        """The rungs that fail."""
        return tuple(cell.rung for cell in self.cells if cell.result is Result.FAIL)


class FaultTable(Frozen):
    """All faults, and the honest twin in the first row."""

    settings: Settings
    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """Every fault fails a rung, and the twin none."""
        return all(bool(row.caught) != (row.fault == TWIN) for row in self.rows)


def table(
    settings: Settings, checkpoint: Path, out: Path, *, names: Sequence[str] | None = None,
    say: pieces.Say = lambda unit, done, of: None,
) -> FaultTable:  # fmt: skip
    """Runs the ladder for the faults `names` (all of them) at the TP of each; units that are there are not run again."""
    from ...contracts.kimi_k3.numerics import material
    from ...contracts.kimi_k3.numerics.paths import Paths

    faults = {name: fault for name, fault in material.faults.FAULTS.items() if names is None or name in names}
    paths, of = Paths(checkpoint), Material(material.streams.stream, material.draft_head().propose, material.VOCABULARY)
    cells: dict[str, list[Cell]] = {TWIN: [], **{name: [] for name in faults}}
    if RungName.OP in settings.rungs:
        _ops(settings, paths, faults, cells, say)
    for tp in sorted({1, *(fault.tp for fault in faults.values())}):
        here = [TWIN, *(name for name, fault in faults.items() if fault.tp == tp)]
        # At other TPs the units of TP 1 are too few to say much: they take over its lengths.
        chosen = settings.model_copy(update={"tps": (tp,), "tokens": settings.tokens * (1 if tp == 1 else 8)})
        by_rung: dict[str, list[tokens.UnitRecords]] = {}
        for work in works(chosen, of):
            by_rung.setdefault(work.unit.rung, []).append(_unit(work, settings, paths, here, material, out, say))
        for rung, units in by_rung.items():
            for name in here:
                if name == TWIN and tp != 1:
                    continue
                verdict = findings.judged([side_by_side.only(unit, name) for unit in units])
                cells[name].append(Cell(rung=rung, result=verdict.result, first=verdict.first, text=verdict.text))
    if RungName.LONG_CONTEXT in settings.rungs:
        for name in cells:
            sections = long_sections.plain(settings, faults.get(name), lambda step: say(pieces.LONG_PIECE, step, 0))
            points = [point for compute in sections.values() for point in compute()]
            verdict = long_rung.judged(points, LONG_TP)
            cells[name].append(Cell(rung=verdict.rung, result=verdict.result, first=verdict.first, text=verdict.text))
    titles = {TWIN: "none: the roundings of fused kernels"} | {name: fault.title for name, fault in faults.items()}
    rows = [
        Row(fault=name, title=titles[name], layer=faults[name].layer if name in faults else None, cells=tuple(found))
        for name, found in cells.items()
    ]
    return FaultTable(settings=settings, rows=tuple(rows))


def _ops(settings: Settings, paths, faults: Mapping, cells: dict[str, list[Cell]], say: pieces.Say) -> None:
    """Of every fault the op that it is a mistake in, alone; the twin sits all exams."""
    from ...contracts.kimi_k3.numerics import op_exams

    contracts = op_exams.contracts(paths.architecture)
    exams = op_rung.exams(paths.architecture, 1, settings.seed, op_rung.plainly, lambda n: say("op", n, 0))
    cells[TWIN].append(_cell(op_rung.judged(exams)))
    for name, fault in faults.items():
        if fault.mistake is None:
            continue
        run = op_rung.mistaken(fault.mistake)
        found = [_sit(contracts[fault.op], fault.tp, settings.seed, run, rows) for rows in op_rung.OP_ROWS]
        cells[name].append(_cell(op_rung.judged([exam for each in found for exam in each])))


def _sit(contract, tp: int, seed: int, run: op_rung.Run, rows: int) -> list[op_rung.Exam]:
    from ...contracts.kimi_k3.numerics import op_exams

    at = op_exams.workload(contract, tp, rows, seed + rows)
    return [op_rung.sit(contract, at, name, seed + number, run) for number, name in enumerate(contract.distributions)]


def _cell(verdict: RungVerdict) -> Cell:
    return Cell(rung=verdict.rung, result=verdict.result, first=verdict.first, text=verdict.text)


def _unit(work, settings: Settings, paths, here: Sequence[str], material, out: Path, say) -> tokens.UnitRecords:
    unit = work.unit
    names = ",".join(here)
    finished = out / f"{unit.key}.jsonl.gz"
    replicas = {f"again-{n}": paths.again(unit.tp, n) for n in range(1, settings.replicas + 1)}
    header = Header(
        unit=unit.key, rung=unit.rung, tp=unit.tp, subject=settings.digest(), candidate=names, replicas=tuple(replicas)
    )
    if finished.exists():
        records = tokens.read(finished)
        if records.header == header:
            return records
    candidates = {
        side_by_side.PREFIX + name: material.plain_candidate(paths, name, unit.tp) for name in here
    }
    contestants = {ORACLE: paths.oracle(), STOCK: paths.stock(unit.tp), **replicas, **candidates}
    out.mkdir(parents=True, exist_ok=True)
    run = UnitRun(unit, contestants, pieces.batch, out, header, lambda done: say(unit.key, done, 0))
    return tokens.read(run(work.actions()))


__all__ = ["Cell", "FaultTable", "Row", "table"]
