"""Statements about digests of sources, in the in-toto Statement v1 form, and whether they still hold.

A statement's subjects are the kernel files that the result exercised (with all that they import), the contract and the
judge. It holds while every one of them is unchanged; otherwise it is stale and does not count.
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

import ast
import json
import os
import posixpath
import re
import tempfile
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from fasttrack_validation.claims.cells import Cell
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import Verdict
from fasttrack_validation.records import Frozen, canonical_json, sha256

from . import strict_json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://fasttrack.dev/evidence/{stage}/v1"
STATEMENTS = "evidence/statements"
CONTRACT, JUDGE = "contract", "judge"
MAX_BYTES = 4 << 20

Name = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
OpName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*([+:][a-z][a-z0-9_]*)*$", description="or several, joined by +")]
SourcePath = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\.(py|cuh?)$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_AGAIN = "run `fasttrack propose` or `fasttrack evaluate` again; evidence is written by the tool, never by hand"
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


class Stage(StrEnum):
    """What kind of result a statement holds."""

    JUDGE = "judge"
    NUMERICS = "numerics"
    ACCURACY = "accuracy"
    PERFORMANCE = "performance"


class Digest(Frozen):
    """A digest set with the one algorithm in use."""

    sha256: Sha256


class Subject(Frozen):
    """One thing that the result is about: a file (path relative to the model directory), `contract` or `judge`."""

    name: str = Field(min_length=1)
    checksum: Digest = Field(alias="digest")


class PerformanceCell(Frozen):
    """One cell of the performance grid, for the candidate and for the stock path."""

    hardware: str
    tp: int = Field(ge=1)
    bucket: str = Field(description="batch bucket, such as 1-4")
    candidate: Cell
    stock: Cell


class RawFile(Frozen):
    """A file with the samples behind a result; the path is relative to the model directory."""

    path: str
    sha256: Sha256


class Predicate(Frozen):
    """A result with everything needed to read it."""

    stage: Stage
    model: Name
    op: OpName | None = Field(description="None for results about the whole model")
    kernels: tuple[SourcePath, ...] = Field(
        min_length=1, description="entry files; subjects are these and their imports"
    )
    verdict: Verdict
    toolchain: dict[str, str]
    hardware: dict[str, str]
    software: dict[str, str]
    configuration: dict[str, bool | int | float | str]
    grade: Literal["self-reported"] = Field(description="a statement cannot attest to itself: a signature does, apart")
    performance: tuple[PerformanceCell, ...] = ()
    raw: tuple[RawFile, ...] = ()


class Statement(Frozen):
    """An in-toto Statement v1."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, ...]
    predicateType: str
    predicate: Predicate

    @model_validator(mode="after")
    def _consistent(self) -> "Statement":
        predicate, verdict, digests = self.predicate, self.predicate.verdict, self.digests
        if len(digests) != len(self.subject):
            raise ValueError("a subject is named twice")
        if self.predicateType != PREDICATE_TYPE.format(stage=predicate.stage):
            raise ValueError(f"predicateType {self.predicateType!r} is not that of stage {predicate.stage}")
        if missing := {CONTRACT, JUDGE, *predicate.kernels} - set(digests):
            raise ValueError(f"subject {sorted(missing)[0]!r} is missing")
        for name, one, other in (
            ("model", predicate.model, verdict.model), ("op", predicate.op, verdict.op),
            ("contract digest", digests[CONTRACT], verdict.contract_digest),
            ("judge digest", digests[JUDGE], verdict.judge_digest),
        ):  # fmt: skip
            if one != other:
                raise ValueError(f"the {name} of the statement is {one!r}, that of its verdict {other!r}")
        return self

    @property
    def digests(self) -> dict[str, str]:
        """Subject name -> SHA-256."""
        return {subject.name: subject.checksum.sha256 for subject in self.subject}

    def canonical_json(self) -> str:
        """Canonical JSON with in-toto's own key names."""
        return canonical_json(self.model_dump(mode="json", by_alias=True))


class Fresh(Frozen):
    """Every subject is unchanged."""

    kind: Literal["fresh"] = "fresh"


class Change(Frozen):
    """One subject that is not what it was; None where it did not exist, or no longer does."""

    subject: str
    old: str | None
    new: str | None


class Stale(Frozen):
    """The statement is about something else than what is there now: it does not count."""

    kind: Literal["stale"] = "stale"
    changes: tuple[Change, ...] = Field(min_length=1)

    def __str__(self) -> str:
        return ", ".join(f"{c.subject} {(c.old or 'absent')[:12]} -> {(c.new or 'absent')[:12]}" for c in self.changes)


def kernel_closure(entries: Iterable[str], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The entry files with every file that importing or including them reads, package `__init__.py` files too.

    `files` maps paths relative to the model directory to contents; a directory and a git tree give the same result.
    UserError for a missing file or a source that does not parse.
    """
    found: dict[str, bytes] = {}
    waiting = [(name, "the manifest") for name in entries]
    while waiting:
        name, asker = waiting.pop()
        if name in found:
            continue
        if name not in files:
            raise UserError(
                f"{name}, named by {asker}, is not in the model directory", "add the file, or the right name"
            )
        found[name] = files[name]
        parents = [posixpath.join(*name.split("/")[:depth], "__init__.py") if depth else "__init__.py"
                   for depth in range(len(name.split("/")))]  # fmt: skip
        needs = _imports(name, files) + [parent for parent in parents if parent in files] if name.endswith(".py") else [
            posixpath.normpath(posixpath.join(posixpath.dirname(name), os.fsdecode(target)))
            for target in _INCLUDE.findall(files[name])
        ]  # fmt: skip
        waiting += [(need, name) for need in needs]
    return dict(sorted(found.items()))


def _imports(name: str, files: Mapping[str, bytes]) -> list[str]:
    """Files that the relative imports of a Python source resolve to."""
    try:
        tree = ast.parse(files[name])
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{name} does not parse: {error}", "fix the syntax") from error
    needs = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        parts = name.split("/")[: -node.level]
        if node.level > name.count("/") + 1:
            raise UserError(f"{name}:{node.lineno}: a relative import leaves the model directory", "import from inside")
        package = "/".join([*parts, *(node.module or "").split(".")]).strip("/")
        module = [file for file in (f"{package}.py", posixpath.join(package, "__init__.py")) if file in files]
        needs += module
        for alias in node.names:
            inner = posixpath.join(package, alias.name)
            submodule = [file for file in (f"{inner}.py", f"{inner}/__init__.py") if file in files]
            if not module and not submodule:
                raise UserError(f"{name}:{node.lineno}: imports {'.' * node.level}{node.module or ''}.{alias.name}, "
                                "which is not in the model directory", "add the file, or fix the import")  # fmt: skip
            needs += submodule
    return needs


def state(stage: Stage, verdict: Verdict, kernels: Iterable[str], files: Mapping[str, bytes], *,
          toolchain: dict[str, str], hardware: dict[str, str], software: dict[str, str],
          configuration: dict[str, bool | int | float | str], performance: tuple[PerformanceCell, ...] = (),
          raw: tuple[RawFile, ...] = ()) -> Statement:  # fmt: skip
    """The statement for a verdict on `kernels`, whose contract and judge digests are the verdict's own."""
    entries = tuple(sorted(set(kernels)))
    digests = {name: sha256(data) for name, data in kernel_closure(entries, files).items()}
    digests |= {CONTRACT: verdict.contract_digest, JUDGE: verdict.judge_digest}
    return Statement(
        _type=STATEMENT_TYPE,
        subject=tuple(Subject(name=name, digest=Digest(sha256=value)) for name, value in digests.items()),
        predicateType=PREDICATE_TYPE.format(stage=stage),
        predicate=Predicate(
            stage=stage, model=verdict.model, op=verdict.op, kernels=entries, verdict=verdict, toolchain=toolchain,
            hardware=hardware, software=software, configuration=configuration, grade="self-reported",
            performance=performance, raw=raw,
        ),
    )  # fmt: skip


def freshness(statement: Statement, head_files: Mapping[str, bytes], contract_digest: str, judge_digest: str
              ) -> Fresh | Stale:  # fmt: skip
    """Whether the subjects are what they were. `head_files` is relative to the model directory."""
    entries = statement.predicate.kernels
    present = [name for name in entries if name in head_files]
    now = {name: sha256(data) for name, data in kernel_closure(present, head_files).items()}
    now |= {CONTRACT: contract_digest, JUDGE: judge_digest}
    then = statement.digests
    changes = tuple(Change(subject=name, old=then.get(name), new=now.get(name))
                    for name in sorted(set(then) | set(now)) if then.get(name) != now.get(name))  # fmt: skip
    return Stale(changes=changes) if changes else Fresh()


def file_name(statement: Statement) -> str:
    """Where a statement lives, relative to the model directory."""
    return f"{STATEMENTS}/{statement.predicate.op or 'model'}.{statement.predicate.stage}.json"


def write(path: Path, statement: Statement) -> None:
    """Writes a statement so that a reader sees the old file or the new one, never half of either."""
    text = json.dumps(json.loads(statement.canonical_json()), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read(path: Path) -> Statement:
    """Reads a statement from a file. UserError says what is wrong with it, and where."""
    try:
        with path.open("rb") as file:
            return parse(file.read(MAX_BYTES + 1), str(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "name a statement that exists") from error


def parse(data: bytes, name: str) -> Statement:
    """Reads a statement from bytes: strict JSON, known keys only, consistent within itself.

    UserError names `name`, the key and the fault.
    """
    if len(data) > MAX_BYTES:
        raise UserError(f"{name}: more than {MAX_BYTES} bytes", "keep samples in files of their own")
    try:
        value = strict_json.loads(data)
    except ValueError as error:
        raise UserError(f"{name}: not strict JSON: {error}", _AGAIN) from error
    try:
        return Statement.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "statement"
        raise UserError(f"{name}: {where}: {first['msg']}", _AGAIN) from error
