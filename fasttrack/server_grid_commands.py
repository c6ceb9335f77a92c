"""The commands under `fasttrack grid` with `--scope server`."""

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import typer

from fasttrack_validation import strict
from fasttrack_validation.claims import grids
from fasttrack_validation.errors import UserError
from fasttrack_validation.load import claim as claiming
from fasttrack_validation.load import compare as comparing
from fasttrack_validation.load import servers as named
from fasttrack_validation.load.answers import Run
from fasttrack_validation.load.records import Failed, NotRun
from fasttrack_validation.load.runner import Runner
from fasttrack_validation.load.servers import Arm
from fasttrack_validation.load.tools import Tool
from fasttrack_validation.performance.serving_grid import ServingCell, ServingGrid, serving_grid

from . import grid_text, model_dir, server_grid_text, services, storage
from .git import Repository
from .grid import Standing
from .server_grid import FOLDER, ServerCell, ServerGrid, records_of
from .voice import Voice


class Where(NamedTuple):
    """Which grid, and where its records lie."""

    model: str
    hardware: str
    gpus: int | None = None
    grid: Path | None = None
    records: Path | None = None

    def open(self) -> ServerGrid:
        """The grid. UserError for an unknown model, hardware or file."""
        directory = model_dir.load(self.model)
        contract = directory.manifest.model.contract
        grid = serving_grid(contract) if self.grid is None else strict.read(self.grid, ServingGrid)
        return ServerGrid(directory, grid, self.hardware, self.gpus, self.records)

    def told(self, **more: object) -> str:
        """As JSON."""
        return json.dumps({"model": self.model, "hardware": self.hardware, "scope": FOLDER, **more})


def plan(where: Where, patterns: Sequence[str], *, as_json: bool) -> None:
    """Lists cells with what is known of each."""
    cells = where.open().cells(patterns)
    if as_json:
        shown = [{"cell": c.spec.key, "standing": c.standing, "reason": c.reason} for c in cells]
        print(where.told(cells=shown))
        return
    for cell in cells:
        print(f"{cell.spec.key:<38} {cell.standing:<9} {cell.reason.splitlines()[0] if cell.reason else ''}".rstrip())


def run(
    where: Where, patterns: Sequence[str], *, servers: Path, tool: str, rate: float | None, raw: Path | None,
    fresh: bool, as_json: bool,
) -> NoReturn:  # fmt: skip
    """Loads the servers. Exit: 0 all measured, 1 one failed, 3 one did not run, 4 where there is no such cell."""
    if tool not in ("auto", *Tool):
        raise UserError(f"no tool {tool!r}", f"known: auto, {', '.join(Tool)}")
    voice, one, file = Voice(quiet=as_json), where.open(), named.read(servers)
    if file.hardware != where.hardware:
        raise UserError(
            f"{servers} is about {file.hardware}, the grid is asked for on {where.hardware}", "name one hardware"
        )
    runner = Runner(
        one.grid, file, servers.parent, subject=one.subject, tool=None if tool == "auto" else Tool(tool), rate=rate,
        floor=lambda cell: _floor(where, cell), raw=_keeper(raw), say=lambda line: voice.say(f"    {line}"),
    )  # fmt: skip
    cells = one.cells(patterns)
    todo = [cell for cell in cells if fresh or _again(cell, runner)]
    records = {cell.spec.key: cell.record for cell in cells}
    done = {cell.spec.key: cell.outcome for cell in cells}
    voice.say(f"{len(cells)} cells: {len(cells) - len(todo)} kept or excluded, {len(todo)} to run")
    for number, cell in enumerate(todo, 1):
        voice.say(f"[{number}/{len(todo)}] {cell.spec.key}")
        record = runner.run(cell.spec)
        if not isinstance(record.outcome, NotRun):
            one.keep(record)
        done[cell.spec.key], records[cell.spec.key] = record.outcome, record
        voice.say("    " + server_grid_text.line(record.outcome))
    if as_json:
        print(where.told(cells={key: outcome.model_dump(mode="json") for key, outcome in done.items()}))
    else:
        told = [(ServerCell(c.spec, c.standing, records[c.spec.key], c.reason), done[c.spec.key]) for c in cells]
        print("\n".join(server_grid_text.table(told)))
    wanted = [done[c.spec.key] for c in cells if c.standing is not Standing.EXCLUDED]
    if any(isinstance(outcome, Failed) for outcome in wanted):
        raise typer.Exit(1)
    raise typer.Exit(3 if any(isinstance(outcome, NotRun) for outcome in wanted) else 0 if wanted else 4)


def show(where: Where, patterns: Sequence[str], *, plot: Path | None, as_json: bool) -> None:
    """Prints the grid from what is kept."""
    cells = where.open().cells(patterns)
    if plot is not None:
        raise UserError("a server's grid is drawn from its claims", "`fasttrack grid claim`, then `fasttrack claims plot`")
    if as_json:
        shown = [
            {"cell": c.spec.key, "standing": c.standing, "outcome": c.outcome.model_dump(mode="json")} for c in cells
        ]
        print(where.told(cells=shown))
        return
    print("\n".join(server_grid_text.shown(cells)))


def compare(where: Where, other: str, *, as_json: bool) -> NoReturn:
    """What is kept against a directory or a revision. Exit: 1 where a cell got slower, 4 where none can be compared."""
    one = where.open()
    path = Path(other)
    if path.is_dir():
        before = records_of({file.name: file.read_bytes() for file in path.glob("*.json")}, other)
    else:
        repository = Repository.open(one.directory.path)
        folder = f"models/{one.directory.path.name}/evidence/grid/{where.hardware}/{FOLDER}"
        files = repository.files(repository.resolve(other), folder)
        before = records_of({n: data for n, data in files.items() if n.endswith(".json")}, f"{other}:{folder}")
    found = comparing.compare(before, one.kept())
    slower = [cell.cell for cell in found if cell.change is grids.Change.SLOWER]
    if as_json:
        cells = [cell.model_dump(mode="json") for cell in found]
        print(where.told(slower=slower, cells=cells))
    else:
        print("\n".join(grid_text.compared(found)))
    comparable = any(cell.change is not grids.Change.APART for cell in found)
    raise typer.Exit(1 if slower else 0 if comparable else 4)


def claims(where: Where, patterns: Sequence[str], options: Sequence[str]) -> list[str]:
    """The grid's claims as JSON, one a load."""
    records = [cell.record for cell in where.open().cells(patterns) if cell.standing is Standing.MEASURED]
    title = f"Specialised decode of {where.model} on {where.hardware}"
    claim_id = f"{where.model}-{where.hardware}-server".replace("_", "-")
    return [one.model_dump_json(exclude_none=True) for one in claiming.claims(claim_id, title, records, options)]


def _again(cell: ServerCell, runner: Runner) -> bool:
    """Whether a cell is to be run: not where nothing can run it, nor where these very servers gave its figure."""
    if cell.standing is Standing.EXCLUDED:
        return False
    if cell.standing is not Standing.MEASURED:
        return True
    # Without such servers here the kept figure stands: nothing measures it again.
    return runner.why_not(cell.spec) is None and cell.record.conditions != runner.conditions(cell.spec)


def _floor(where: Where, cell: ServingCell) -> tuple[int, int] | None:
    """Bytes and flops that one GPU cannot do without in a step with one token a request (a verify step moves no less).
    None for a grid of one's own, which is of another model."""
    from fasttrack_validation.contracts.grid import CellSpec, Span

    if where.grid is not None:
        return None
    contract = services.contract(model_dir.load(where.model).manifest.model.contract)
    spec = CellSpec(span=Span.STEP, kind="step", tp=cell.tp, rows=cell.concurrency, context=cell.isl or 1)
    cost = contract.grid.shard(spec, where.hardware).cost
    return cost.bytes, cost.flops


def _keeper(folder: Path | None):
    """Keeps every load as it was seen: FOLDER/<cell>.jsonl.gz, a line for each."""
    if folder is None:
        return lambda *_: None

    def keep(cell: ServingCell, number: int, arm: Arm, run: Run) -> None:
        path = folder / f"{cell.key}.jsonl.gz"
        with storage.writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"round": number, "arm": arm, "run": run.model_dump(mode="json", exclude_none=True)})
            # A cell that is run again starts its file anew; members of a gzip file read as one.
            first = number == 0 and arm is Arm.STOCK
            with open(path, "wb" if first else "ab") as file:
                file.write(gzip.compress((line + "\n").encode(), mtime=0))
                file.flush()
                os.fsync(file.fileno())

    return keep
