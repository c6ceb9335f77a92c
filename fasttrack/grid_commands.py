"""The commands under `fasttrack grid`."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import typer

from fasttrack_validation.claims import grids, readers
from fasttrack_validation.performance.records import Failed, Measured, NotRun, Record

from . import grid, grid_text, model_dir, services, storage
from .git import Repository
from .grid import Cell, Grid, Standing
from .voice import Voice

Outcome = Measured | Failed | NotRun


def plan(model: str, hardware: str, patterns: Sequence[str], *, records: Path | None, as_json: bool) -> None:
    """Lists cells with what is known of each."""
    cells = _grid(model, hardware, records).cells(patterns)
    if as_json:
        shown = [{"cell": c.spec.key, "standing": c.standing, "reason": c.reason} for c in cells]
        print(json.dumps({"model": model, "hardware": hardware, "cells": shown}))
        return
    print("\n".join(grid_text.plan(cells)))


def run(
    model: str, hardware: str, patterns: Sequence[str], *, fresh: bool, quads: int, records: Path | None, as_json: bool
) -> NoReturn:  # fmt: skip
    """Measures the cells that have no fresh figure. Exit: 0 all measured, 1 one failed, 3 one did not run."""
    one, voice = _grid(model, hardware, records), Voice(quiet=as_json)
    cells = one.cells(patterns)
    todo = [c for c in cells if c.standing is not Standing.EXCLUDED and (fresh or c.standing is not Standing.MEASURED)]
    done: dict[str, Outcome] = {c.spec.key: c.outcome for c in cells}
    voice.say(f"{len(cells)} cells: {len(cells) - len(todo)} kept or excluded, {len(todo)} to run")
    if todo:
        kept = [c for c in cells if c.standing is Standing.MEASURED and c not in todo]
        done |= _measure(model, one, todo, kept, voice, quads)
    if as_json:
        outcomes = {key: outcome.model_dump(mode="json") for key, outcome in done.items()}
        print(json.dumps({"model": model, "hardware": hardware, "cells": outcomes}))
    else:
        print("\n".join(grid_text.ran([(c, done[c.spec.key]) for c in cells])))
    wanted = [done[c.spec.key] for c in cells if c.standing is not Standing.EXCLUDED]
    if any(isinstance(outcome, Failed) for outcome in wanted):
        raise typer.Exit(1)
    raise typer.Exit(3 if any(isinstance(outcome, NotRun) for outcome in wanted) else 0 if wanted else 4)


def show(
    model: str, hardware: str, patterns: Sequence[str], *, plot: Path | None, records: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Prints the grid from what is kept."""
    cells = _grid(model, hardware, records).cells(patterns)
    if plot is not None:
        from . import grid_plot

        grid_plot.draw(cells, f"{model} on {hardware}", plot)
    if as_json:
        shown = [
            {"cell": c.spec.key, "standing": c.standing, "outcome": c.outcome.model_dump(mode="json"),
             "machine": c.record.machine if c.record and c.standing is Standing.MEASURED else None}
            for c in cells
        ]  # fmt: skip
        totals = grid.summary(c.outcome for c in cells)
        print(json.dumps({"model": model, "hardware": hardware, "summary": totals, "cells": shown}))
        return
    print("\n".join(grid_text.shown(cells)))
    if plot is not None:
        print(f"drawn: {plot}")


def compare(model: str, hardware: str, other: str, *, records: Path | None, as_json: bool) -> NoReturn:
    """What is kept against a directory or a revision. Exit: 1 where a cell got slower, 4 where none can be compared."""
    one = _grid(model, hardware, records)
    found = grids.compare(_earlier(one, other), one.kept())
    slower = [cell.cell for cell in found if cell.change is grids.Change.SLOWER]
    if as_json:
        cells = [cell.model_dump(mode="json") for cell in found]
        print(json.dumps({"model": model, "hardware": hardware, "slower": slower, "cells": cells}))
    else:
        print("\n".join(grid_text.compared(found)))
    comparable = any(cell.change is not grids.Change.APART for cell in found)
    raise typer.Exit(1 if slower else 0 if comparable else 4)


def decide(model: str, hardware: str, *, write: bool, records: Path | None, as_json: bool) -> NoReturn:
    """Which steps the records show to be faster, beside the table. Exit: 1 where the two differ and nothing is written."""
    from fasttrack_validation.timing.comparison import SMALLEST_EFFECT

    from . import faster

    directory, one = model_dir.load(model, need_checkout=write), _grid(model, hardware, records)
    steps = faster.steps(one.cells(), services.contract(directory.manifest.model.contract).grid.layers)
    table = directory.faster()
    found = faster.replaced(table, one.hardware, faster.drawn(one.hardware, steps, SMALLEST_EFFECT))
    same = faster.render(found) == faster.render(table)
    if as_json:
        entries = [entry.model_dump() for entry in found.entry if entry.hardware == one.hardware]
        print(json.dumps({"model": model, "hardware": one.hardware, "steps": [asdict(step) for step in steps], "entries": entries, "same": same}))
    else:
        print("\n".join(grid_text.decided(steps, [entry for entry in found.entry if entry.hardware == one.hardware])))
    if write and not same:
        path = directory.path / directory.manifest.decode.faster
        storage.write_file(path, faster.render(found).encode())
        print(f"written: {path}", file=sys.stderr if as_json else sys.stdout)
    elif not same and not as_json:
        print(f"{directory.manifest.decode.faster} says otherwise; --write replaces it")
    raise typer.Exit(0 if same or write else 1)


def claims(
    model: str, hardware: str, patterns: Sequence[str], conditions: Path | None, records: Path | None
) -> list[str]:  # fmt: skip
    """The claim about every measured cell, as JSON."""
    directory = model_dir.load(model)
    cells = _grid(model, hardware, records).cells(patterns)
    measured = [cell.record for cell in cells if cell.standing is Standing.MEASURED]
    stated = readers.conditions(conditions)
    found = grid.claim(model, hardware, directory.manifest.model.contract, measured, stated)
    return [found.model_dump_json(exclude_none=True)]


def write_claims(texts: Sequence[str], out: Path | None) -> None:
    """Claims as one JSON list, into a file or on the screen."""
    text = "[\n" + ",\n".join(texts) + "\n]\n"
    if out is None:
        print(text, end="")
        return
    storage.write_file(out, text.encode())
    print(f"{len(texts)} claims: {out}; now `fasttrack claims check {out}`")


def _earlier(one: Grid, other: str) -> dict[str, Record]:
    path = Path(other)
    if path.is_dir():
        return grid.records_of({file.name: file.read_bytes() for file in path.glob("*.json")}, other)
    repository = Repository.open(one.directory_path)
    folder = f"models/{one.directory_path.name}/{grid.DIRECTORY}/{one.hardware}"
    files = repository.files(repository.resolve(other), folder)
    # Signatures lie beside records, and the server's grid below them.
    files = {name: data for name, data in files.items() if name.endswith(".json") and "/" not in name}
    return grid.records_of(files, f"{other}:{folder}")


def _grid(model: str, hardware: str, records: Path | None) -> Grid:
    directory = model_dir.load(model)
    return Grid(directory, services.contract(directory.manifest.model.contract), hardware, records)


def _measure(
    model: str, one: Grid, cells: Sequence[Cell], kept: Sequence[Cell], voice: Voice, quads: int
) -> dict[str, Outcome]:  # fmt: skip
    """Runs cell after cell, keeping each as soon as it is known. Kept cells that another driver or other versions measured
    are run again: they are not mixed in with those of this run."""
    done: dict[str, Outcome] = {}

    phases: list[tuple[str, float]] = []

    def say(line: str) -> None:
        phases.append((line, time.monotonic()))
        if not voice.quiet and sys.stderr.isatty():
            print(f"    {line}", file=sys.stderr, flush=True)

    contract = services.contract(model_dir.load(model).manifest.model.contract)
    if why := services.no_grid_card(one.hardware):
        return {cell.spec.key: NotRun(reason=why) for cell in cells}
    with services.grid_runner(contract, one.directory_path, one.hardware, quads, say) as runner:
        other = [c for c in kept if c.record.machine != runner.machine]
        if other:
            voice.say(f"{len(other)} kept cells were measured on a machine in another state: they are run again")
        cells = [*cells, *other]
        for number, cell in enumerate(cells, 1):
            voice.say(f"[{number}/{len(cells)}] {cell.spec.title}")
            phases.clear()
            done[cell.spec.key] = outcome = runner.run(cell.spec)
            took = grid_text.phases(phases, time.monotonic())
            if not isinstance(outcome, NotRun):
                one.keep(
                    Record(
                        spec=cell.spec, hardware=one.hardware, scope=contract.grid.shard(cell.spec, one.hardware).scope,
                        subject=one.subject(cell.spec), machine=runner.machine, outcome=outcome,
                    )
                )  # fmt: skip
            voice.say("    " + grid_text.line(outcome))
            if took:
                voice.say("    " + took)
    return done


