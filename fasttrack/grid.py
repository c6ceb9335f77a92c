"""The performance grid of a model directory: what is kept of it, what of that is stale, and keeping what is new."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from fasttrack_validation.claims import grids
from fasttrack_validation.contracts.subgraph import SEPARATOR
from fasttrack_validation.errors import UserError
from fasttrack_validation.performance import harness
from fasttrack_validation.performance.records import Failed, Measured, NotRun, Record, Subject
from fasttrack_validation.records import canonical_json, digest_files, sha256

from . import storage
from .model_dir import ModelDirectory

if TYPE_CHECKING:
    from fasttrack_validation.claims.claim import Claim
    from fasttrack_validation.contracts import ModelContract
    from fasttrack_validation.contracts.grid import CellSpec

DIRECTORY = "evidence/grid"


class Standing(StrEnum):
    """What is known of a cell."""

    MEASURED = "measured"
    FAILED = "failed"
    STALE = "stale"
    """Kept figures are about other sources"""
    MISSING = "missing"
    """Nothing is kept"""
    EXCLUDED = "excluded"
    """Cannot be run whatever the machine"""
    APART = "apart"
    """Measured with another driver, other versions or another clock state than the other cells"""


Spec = TypeVar("Spec")
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Cell(Generic[Spec, Kept]):
    """One cell as the model directory has it: `Kept` is the record of a rank's share, or of servers."""

    spec: Spec
    standing: Standing
    record: Kept | None
    reason: str
    """Why there is no figure; empty where there is one"""

    @property
    def outcome(self):
        """What may be shown, of the record's outcome: a figure of other sources, or of another machine than the others, is
        none."""
        if self.standing in (Standing.MEASURED, Standing.FAILED):
            return self.record.outcome
        return NotRun(reason=self.reason)


def records_of(files: Mapping[str, bytes], where: str) -> dict[str, Record]:
    """Cell -> record, of the JSON files of a grid's directory (name -> contents). Raises UserError for any other file."""
    found = {}
    for name, text in sorted(files.items()):
        try:
            record = Record.model_validate_json(text)
        except ValidationError as error:
            raise UserError(
                f"cannot read {where}/{name}: {str(error).splitlines()[0]}", "name a directory that `grid run` wrote"
            ) from error
        found[record.spec.key] = record
    return found


class Grid:
    """The grid of `directory` on one kind of hardware.

    `folder`: where records lie, by default in the model directory. `validation`: the exams and the harness of a commit
    (path relative to `validation/` -> contents), by default those that are installed.
    """

    def __init__(
        self, directory: ModelDirectory, contract: "ModelContract", hardware: str, folder: Path | None = None,
        validation: Mapping[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        from fasttrack_validation.performance.hardware import profile

        self.hardware = profile(hardware).name
        self._directory, self._contract, self._validation = directory, contract, validation
        claims = [claim for claim in directory.manifest.envelope if claim.hardware == hardware]
        if not claims:
            known = sorted({claim.hardware for claim in directory.manifest.envelope})
            raise UserError(f"{directory.path.name} claims nothing for {hardware!r}", f"it claims {', '.join(known)}")
        self._widths = {claim.tp: claim.verify_width for claim in claims}
        self.directory_path = directory.path
        self.folder = folder or directory.path / DIRECTORY / self.hardware
        self._cells = contract.grid  # says so where the model has none
        self._harness = harness.digest(contract.model, validation)

    def cells(self, patterns: Sequence[str] = ()) -> "tuple[Cell[CellSpec, Record], ...]":
        """All cells whose names match one of `patterns`. Raises UserError where a pattern matches none."""
        specs = self._cells.cells(self.hardware)
        for pattern in patterns:
            if not any(fnmatchcase(spec.key, pattern) for spec in specs):
                raise UserError(
                    f"no cell is called {pattern!r}", f"cells are called {specs[0].key}, ..., {specs[-1].key}"
                )
        found = {spec.key: self._cell(spec) for spec in specs}
        fresh = {key: cell.record for key, cell in found.items() if cell.standing is Standing.MEASURED}
        for key, why in grids.apart(fresh).items():
            found[key] = replace(found[key], standing=Standing.APART, reason=why)
        return tuple(c for key, c in found.items() if not patterns or any(fnmatchcase(key, p) for p in patterns))

    def excluded(self, spec: "CellSpec") -> str | None:
        """Why a cell cannot be run whatever the machine, or None."""
        width = self._widths.get(spec.tp)
        return f"nothing is claimed for TP {spec.tp}" if width is None else self._cells.excluded(spec, width)

    def _cell(self, spec: "CellSpec") -> "Cell[CellSpec, Record]":
        if why := self.excluded(spec):
            return Cell(spec, Standing.EXCLUDED, None, why)
        record = self._read(spec)
        if record is None:
            return Cell(spec, Standing.MISSING, None, "nothing is kept: run `fasttrack grid run` on such a machine")
        if stale := self.stale(record):
            return Cell(spec, Standing.STALE, record, f"what is kept is about other sources ({stale})")
        failed = isinstance(record.outcome, Failed)
        return Cell(
            spec, Standing.FAILED if failed else Standing.MEASURED, record, record.outcome.reason if failed else ""
        )

    def stale(self, record: Record) -> str:
        """What of a record's subject is another by now; empty where its figures still count."""
        now, then = self.subject(record.spec).model_dump(), record.subject.model_dump()
        return ", ".join(name for name in now if now[name] != then[name])

    def subject(self, spec: "CellSpec") -> Subject:
        """Digests of all that a cell's figures are about."""
        return self._subject(self._cells.ops(spec), spec.tp, spec.rows)

    @cache  # noqa: B019 - a grid lives as long as a command
    def _subject(self, ops: tuple[str, ...], tp: int, rows: int) -> Subject:
        manifest = self._directory.manifest
        fused = [op for op in manifest.ops if SEPARATOR in op and set(op.split(SEPARATOR)) <= set(ops)]
        chosen = {}
        for op in (*ops, *fused):
            entry = self._directory.table(op).at(self.hardware, tp, rows)
            chosen[op] = [entry.kernel, entry.config] if entry else None
        kernels = {name: text for op in (*ops, *fused) for name, text in self._directory.sources(op).items()}
        return Subject(
            decode=digest_files(self._directory.decode_sources()),
            kernels=digest_files({name: text.encode() for name, text in kernels.items()}),
            dispatch=sha256(canonical_json(chosen).encode()),
            contract=sha256(canonical_json({op: self._exam(op) for op in ops}).encode()),
            harness=self._harness,
        )

    def _exam(self, op: str) -> str:
        from fasttrack_validation.contracts import contract_digest

        return contract_digest(self._contract.model, op, self._validation)

    def kept(self) -> dict[str, Record]:
        """Cell -> record of all that is kept, stale or not."""
        return records_of({path.name: path.read_bytes() for path in self.folder.glob("*.json")}, str(self.folder))

    def keep(self, record: Record) -> Path:
        """Writes a record into the model directory, in full or not at all."""
        path = self._path(record.spec)
        storage.write_file(path, (record.model_dump_json(indent=1) + "\n").encode())
        return path

    def _path(self, spec: "CellSpec") -> Path:
        return self.folder / f"{spec.key}.json"

    def _read(self, spec: "CellSpec") -> Record | None:
        path = self._path(spec)
        try:
            record = Record.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise UserError(
                f"cannot read {path}: {str(error).splitlines()[0]}", "restore it from git, or delete it and run again"
            ) from error
        if (record.spec, record.hardware) != (spec, self.hardware):
            raise UserError(f"{path} is about {record.hardware} {record.spec.key}", "restore it from git, or delete it")
        return record


def claim(
    model: str, hardware: str, contract: str, measured: Sequence[Record], stated: Mapping[str, Any]
) -> "Claim":  # fmt: skip
    """The claim about measured cells, with what is `stated` of both arms beside them."""
    from fasttrack_validation.claims import shards

    claim_id = f"{model}-{hardware}-rank".replace("_", "-")
    return shards.claim(claim_id, f"One rank's share of {model} on {hardware}", contract, measured, stated)


def summary(outcomes: Iterable[Measured | Failed | NotRun]) -> Mapping[str, float | int]:
    """Counts, and of the ratios the best, the worst and the geometric mean: none of them stands alone."""
    from math import exp, log

    found = list(outcomes)
    ratios = [outcome.comparison.ratio for outcome in found if isinstance(outcome, Measured)]
    counts: dict[str, float | int] = {
        "measured": len(ratios), "failed": sum(isinstance(outcome, Failed) for outcome in found),
        "not_run": sum(isinstance(outcome, NotRun) for outcome in found),
    }  # fmt: skip
    if ratios:
        counts |= {
            "worst": min(ratios), "best": max(ratios),
            "geometric_mean": exp(sum(map(log, ratios)) / len(ratios)),
        }  # fmt: skip
    return counts
