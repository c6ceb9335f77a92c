"""Candidates that were recorded elsewhere, for a lane on a machine that cannot record: the GPU's, with another Triton."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.recorded import Recorded, require_whole
from fasttrack_validation.judge.verdict import Verdict
from fasttrack_validation.records import canonical_json, sha256

from .dispatch import Config
from .storage import write_file

if TYPE_CHECKING:
    from fasttrack_validation.contracts.base import OpContract
    from fasttrack_validation.judge.judge import Judge

FOLDER = "packs"
"""Where a run keeps them, so that it can be resumed."""


def candidates(paths: Sequence[Path], op: str) -> tuple[Candidate, ...]:
    """The candidates of pack files, each once, in order. Raises UserError for a pack of another op."""
    found: dict[str, Candidate] = {}
    for path in paths:
        candidate = pack_file.read(path).candidate
        if candidate.op != op:
            raise UserError(f"{path} is a record of {candidate.op}, not of {op}", "name packs of one op")
        found.setdefault(candidate.digest(), candidate)
    return tuple(found.values())


def check(
    paths: Sequence[Path], contract: "OpContract", asked: Collection[str], everywhere: Collection[str],
    table: Collection[Config],
) -> None:  # fmt: skip
    """Raises UserError for a record that lacks a workload that it will be ruled on at: those `asked` for, and with a
    configuration of the `table`, which may have to stand in it again, those of all its places."""
    for path in paths:
        recorded = pack_file.read(path)
        require_whole(recorded, contract, {*asked, *(everywhere if recorded.candidate.config in table else ())})


def keep(paths: Sequence[Path], run: Path) -> None:
    """Copies pack files into the directory of a run, under the digests of their candidates."""
    for path in paths:
        write_file(run / FOLDER / f"{pack_file.read(path).candidate.digest()}.pack", path.read_bytes())


def kept(run: Path, op: str) -> tuple[Candidate, ...]:
    """The candidates whose records lie in the directory of a run."""
    return candidates(sorted((run / FOLDER).glob("*.pack")), op)


def by_candidate(paths: Sequence[Path]) -> dict[str, Path]:
    """Digest of a candidate -> the pack file that is a record of it; of several the last."""
    return {pack_file.read(path).candidate.digest(): path for path in paths}


def of_run(run: Path) -> dict[str, Path]:
    """The records that lie in the directory of a run, as `keep` left them."""
    return {path.stem: path for path in (run / FOLDER).glob("*.pack")}


class Packed:
    """A judge that rules on records in place of recording. As `rounds.Judging`. `files`: candidate's digest -> pack file."""

    def __init__(self, judge: "Judge", files: Mapping[str, Path]) -> None:
        self._judge = judge
        self._files = files

    def identity(self, op: str) -> dict[str, object]:
        """Who rules on `op`, where, and on which records: the same candidate compiled by another toolchain is another record."""
        return self._judge.identity(op) | {"records": sorted(sha256(path.read_bytes()) for path in self._files.values())}

    def screen(self, candidate: Candidate, workloads: Sequence[str]) -> Verdict:
        """As `rounds.Judging`, on the part of the record that the workloads need."""
        return self._judge.rule(self._part(candidate, workloads), thorough=False)

    def confirm(self, candidate: Candidate, workloads: Sequence[str], timed: Collection[str]) -> Verdict:
        """As `rounds.Judging`, on the part of the record that the workloads need."""
        return self._judge.rule(self._part(candidate, workloads), timed=timed)

    def _part(self, candidate: Candidate, workloads: Sequence[str]) -> Recorded:
        contract, recorded = self._judge.model.op(candidate.op), self._record(candidate)
        require_whole(recorded, contract, workloads)
        return recorded.only(contract, tuple(workloads))

    def _record(self, candidate: Candidate) -> Recorded:
        path = self._files.get(candidate.digest())
        if path is None:
            raise UserError(
                f"there is no record of {candidate.op} with the configuration {canonical_json(candidate.config)}",
                "record it with `fasttrack record --config`, and name its pack as well",
            )
        return pack_file.read(path)
