"""What follows from the records of a run, and what they are about. Runs nothing."""

import fnmatch
import gzip
import json
import tomllib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ...errors import UserError
from ...records import Frozen, canonical_json, digest_files, sha256
from . import changed, complete, findings, long_rung, op_rung, tokens
from .changed import Worst
from .checks import Result, RungVerdict
from .lines import replace_file
from .plan import Settings, Work, works
from .scenario import RungName
from .tokens import LONG, OP

MANIFEST, VERDICT = "run.json", "verdict.json"
WRITTEN = (MANIFEST, VERDICT, "faults.json", "*.jsonl", "*.jsonl.gz", "*.states", "*.new", "*.svg")
"""Names of all that a run leaves in its directory"""
LONG_TP = 48
"""Ranks of the group whose one rank the long rung looks at: two heads of true shape"""
NO_LONG = "many decode steps of the kernels need a GPU; an interpreter does a few a second"
STOPPED = "the run was stopped before: the same command goes on"


Kept = TypeVar("Kept", bound=Frozen)


class NotRun(Frozen):
    """A rung that did not run, and why."""

    rung: str
    tp: int
    reason: str


class Subject(Frozen):
    """What the records are about."""

    model: str
    checkpoint: str
    """Digest of its files, or how its weights were drawn"""
    candidate: str
    """Digest of the candidate's sources: of the model directory, or of the PyTorch paths"""
    harness: str
    """Digest of what runs and judges"""
    settings: Settings
    machine: dict[str, str] = {}
    """What the specialised path ran on, beside sources: device, torch, triton"""


class StageVerdict(Frozen):
    """The verdict of the whole stage: a function of the records alone."""

    subject: Subject
    result: Result
    rungs: tuple[RungVerdict, ...]
    not_run: tuple[NotRun, ...]
    evidence: dict[str, str]
    """File -> SHA-256"""


def judge(out: Path) -> StageVerdict:
    """The verdict of what lies in `out`, computed anew from the records."""
    from .pieces import plan_material

    subject = subject_of(out)
    planned = {work.unit.key: work for work in works(subject.settings, plan_material())}
    groups: dict[tuple[str, int], list[tokens.UnitRecords]] = {}
    for file in tokens.units(out):
        if file.name in (OP, LONG):
            continue
        records = tokens.read(file)
        work = planned.get(records.header.unit)
        if wrong := complete.of_unit(file, records) or complete.of_plan(work, records):
            raise UserError(f"{file} is damaged: {wrong}", "remove the file; the same command runs that unit again")
        if records.header.subject != subject.digest():
            raise UserError(f"{file} is about another subject than {out / MANIFEST}", "give each run a directory of its own")
        groups.setdefault((records.header.rung, records.header.tp), []).append(records)
    verdicts: list[RungVerdict] = []
    if (out / OP).exists():
        exams = _exams(out / OP, subject)
        for tp in sorted({exam.tp for exam in exams}):
            verdicts.append(op_rung.judged([exam for exam in exams if exam.tp == tp]))
    verdicts += [findings.judged(units) for _, units in sorted(groups.items(), key=lambda item: _order(*item[0]))]
    if (out / LONG).exists():
        verdicts.append(long_rung.judged(long_points(out), LONG_TP))
    kept = {unit.header.unit for units in groups.values() for unit in units}
    not_run = tuple(_missing(subject, verdicts, kept, planned.values()))
    results = {verdict.result for verdict in verdicts}
    if Result.FAIL in results:
        result = Result.FAIL
    elif Result.INCONCLUSIVE in results or not_run or not verdicts:
        result = Result.INCONCLUSIVE
    else:
        result = Result.PASS
    evidence = {file.name: sha256(file.read_bytes()) for file in tokens.units(out)}
    return StageVerdict(subject=subject, result=result, rungs=tuple(verdicts), not_run=not_run, evidence=evidence)


def _exams(file: Path, subject: Subject) -> list[op_rung.Exam]:
    exams = _validated(file, op_rung.Exam, subject)
    if wrong := complete.of_exams(exams, subject.settings):
        raise _damaged(file, wrong)
    return exams


def long_points(out: Path) -> list[long_rung.Point]:
    """What is kept of the long rung in `out`. UserError where that is not all of it."""
    subject, file = subject_of(out), out / LONG
    points = _validated(file, long_rung.Point, subject)
    if wrong := complete.of_points(points, subject.settings):
        raise _damaged(file, wrong)
    return points


def _validated(file: Path, kind: type[Kept], subject: Subject) -> list[Kept]:
    try:
        return [kind.model_validate(item) for item in read_lines(file, subject)]
    except ValidationError as error:
        raise _damaged(file, f"a line is no record ({error.error_count()} faults)") from error


def _damaged(file: Path, why: str) -> UserError:
    return UserError(f"{file} is damaged: {why}", "remove the file; the same command runs that rung again")


def worst(out: Path, count: int = 5) -> list[Worst]:
    """The tokens whose log-prob the candidate changes most, of all units that lie in `out`."""
    return changed.worst((tokens.read(file) for file in tokens.units(out) if file.name not in (OP, LONG)), count)


_RUNS_OR_JUDGES = ("numerics", "contracts", "judge/interpreter", "tensors.py", "records.py", "durable.py")
_ASKED_BY_NO_RUNG = (
    "numerics/servers/*", "contracts/trace/*", "contracts/grid.py", "contracts/*/grid.py", "contracts/*/compared_shard.py",
    "contracts/*/rank_shard.py", "contracts/*/rows_examined.py", "contracts/*/step_shard.py", "contracts/*/stock/*",
)  # fmt: skip


def harness_digest(root: Path | None = None) -> str:
    """SHA-256 (hex) over what runs the ladder and judges it: rungs, contracts with their nano model, the interpreter's semantics.
    `root`: of the package, by default the one that runs."""
    root = root or Path(__file__).parents[2]
    files = [path for place in _RUNS_OR_JUDGES for path in ((root / place).rglob("*.py") if (root / place).is_dir() else [root / place])]
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
    return digest_files({
        name: data for name, data in found.items() if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _ASKED_BY_NO_RUNG)
    })  # fmt: skip


def directory_digest(directory: Path) -> str:
    """SHA-256 (hex) over what a model directory computes: its sources, and for each row count of its dispatch tables which
    kernel and configuration serves it. Not over times, evidence, and which steps are left to the stock path, since the ladder
    runs the kernels on all; nor over what reports on it."""
    kinds = (".py", ".toml", ".cu", ".cuh")
    found = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory)
        if path.suffix not in kinds or name.parts[0] in ("evidence", "report") or not path.is_file():
            continue
        text = path.read_bytes()
        if name.parts[0] == "dispatch" and path.suffix == ".toml":
            entries = tomllib.loads(text.decode()).get("entry", ())
            text = canonical_json(_served(entry for entry in entries if "kernel" in entry)).encode()
        found[name.as_posix()] = text
    return digest_files(found)


def _served(entries: Iterable[Mapping[str, Any]]) -> list[Any]:
    """(hardware, TP, rows) -> (kernel, configuration), a row count at a time: ranges may be cut without a change."""
    return sorted(
        [entry["hardware"], entry["tp"], rows, entry["kernel"], sorted(entry.get("config", {}).items())]
        for entry in entries for rows in range(entry["rows"][0], entry["rows"][1] + 1)
    )  # fmt: skip


def subject_of(out: Path) -> Subject:
    """What the records in `out` are about. UserError where there are none."""
    try:
        return Subject.model_validate_json((out / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{out} holds no run of the numerics stage", "name the --out of one") from error


def _missing(
    subject: Subject, verdicts: list[RungVerdict], kept: Collection[str], works_of: Iterable[Work]
) -> Iterator[NotRun]:  # fmt: skip
    """What was asked for and is not there: rungs, and single units of rungs of which others are there."""
    ran = {(verdict.rung, verdict.tp) for verdict in verdicts}
    planned = [work.unit for work in works_of]
    for rung in RungName:
        units = [unit for unit in planned if unit.rung == rung]
        if rung not in subject.settings.rungs:
            yield NotRun(rung=rung, tp=0, reason="not asked for")
        elif rung is RungName.LONG_CONTEXT:
            if not any(name == rung for name, _ in ran):
                yield NotRun(
                    rung=rung, tp=0,
                    reason=NO_LONG if _interpreted(subject.settings) else STOPPED,
                )  # fmt: skip
        else:
            for tp in subject.settings.tps if rung is RungName.OP else dict.fromkeys(unit.tp for unit in units):
                if (rung, tp) not in ran:
                    yield NotRun(rung=rung, tp=tp, reason=STOPPED)
                    continue
                for unit in units:
                    if unit.tp == tp and unit.key not in kept:
                        yield NotRun(rung=rung, tp=tp, reason=f"{unit.key} is missing: {STOPPED}")


def _interpreted(settings: Settings) -> bool:
    return settings.candidate == "specialised" and settings.device == "cpu"


def _order(rung: str, tp: int) -> tuple[int, int]:
    return list(RungName).index(RungName(rung)), tp


def write_lines(file: Path, records: list[Frozen], subject: Subject) -> None:
    """What is kept of a rung that has no units, behind a line that says what it is about."""
    head = canonical_json({"records": len(records), "subject": subject.digest()})
    text = "".join(f"{line}\n" for line in (head, *(record.canonical_json() for record in records)))
    replace_file(file, gzip.compress(text.encode(), 9, mtime=0))


def read_lines(file: Path, subject: Subject) -> list[Mapping[str, Any]]:
    """The records of `write_lines`. UserError for those of another subject; older files do not name one."""
    damaged = UserError(f"{file} is damaged", "remove the file; the same command runs that rung again")
    try:
        head, *records = [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise damaged from error
    if "subject" not in head:
        return [head, *records]
    if head["records"] != len(records):
        raise damaged
    if head["subject"] != subject.digest():
        raise UserError(f"{file} is about another subject than {file.parent / MANIFEST}", "give each run a directory of its own")
    return records


def write(file: Path, text: str) -> None:
    replace_file(file, text.encode())
