"""Reading and writing files of the format. Errors name file, line and field."""

import json
from pathlib import Path

from ... import strict
from ...errors import UserError
from ...records import Frozen
from .schema import Definition, Trace, Workload


def read_definition(path: Path) -> Definition:
    """A definition. Raises UserError that names file, line and field."""
    return strict.read(path, Definition)


def read_workloads(path: Path, definition: Definition) -> tuple[Workload, ...]:
    """The workloads of `definition` in a JSON Lines file. Raises UserError that names file, line and field."""
    workloads = []
    for number, trace in read_traces(path):
        where = f"{path}:{number}"
        if trace.definition != definition.name:
            what = f"is {trace.definition!r}, not {definition.name!r}"
            raise UserError(f"{where}: definition: {what}", "give the definition's own file")
        workload = trace.workload
        for what, names, wanted in (
            ("axes", workload.axes, definition.variable), ("inputs", workload.inputs, definition.inputs),
        ):  # fmt: skip
            if set(names) != set(wanted):
                odd = sorted(set(names) ^ set(wanted))[0]
                state = "is missing" if odd in wanted else "is not in the definition"
                raise UserError(f"{where}: workload.{what}.{odd}: {state}", f"give exactly {', '.join(sorted(wanted))}")
        if workload.uuid in {other.uuid for other in workloads}:
            raise UserError(f"{where}: workload.uuid: {workload.uuid!r} is there twice", "give each workload its own")
        workloads.append(workload)
    if not workloads:
        raise UserError(f"{path}: has no workload", "give at least one")
    return tuple(workloads)


def read_traces(path: Path) -> list[tuple[int, Trace]]:
    """Every line of a JSON Lines file with its number. Raises UserError that names file, line and field."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}", "check path, permissions and encoding") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append((number, strict.parse(line, Trace, f"{path}.json")))
        except UserError as error:
            # A line was parsed by itself; its number in the file is what helps.
            what = error.what.removeprefix(f"{path}.json:1: ").removeprefix(f"{path}.json: ")
            raise UserError(f"{path}:{number}: {what}", error.how) from error
    return found


def to_json(record: Frozen) -> str:
    """Indented JSON of a record, and a newline. What is not set is null: a scalar's shape has to be."""
    return json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
