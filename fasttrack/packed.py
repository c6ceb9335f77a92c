"""Candidates that were recorded elsewhere, for a lane on a machine that cannot record: the GPU's, with another Triton."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.recorded import Recorded, require_whole
from fasttrack_validation.judge.verdict import Verdict
from fasttrack_validation.records import canonical_json

from .storage import write_file

if TYPE_CHECKING:
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


def keep(paths: Sequence[Path], run: Path) -> None:
    """Copies pack files into the directory of a run, under the digests of their candidates."""
    for path in paths:
        write_file(run / FOLDER / f"{pack_file.read(path).candidate.digest()}.pack", path.read_bytes())


class Packed:
    """A judge that rules on records in place of recording. As `rounds.Judging`."""

    def __init__(self, judge: "Judge", run: Path) -> None:
        self._judge = judge
        self._folder = run / FOLDER

    def screen(self, candidate: Candidate) -> Verdict:
        """Rules on the whole record."""
        recorded = self._record(candidate)
        require_whole(recorded, self._judge.model.op(candidate.op))
        return self._judge.rule(recorded)

    def confirm(self, candidate: Candidate, workloads: Sequence[str]) -> Verdict:
        """Rules on the part of the record that the workloads need, with fresh inputs."""
        recorded = self._record(candidate)
        return self._judge.rule(recorded.only(self._judge.model.op(candidate.op), tuple(workloads)))

    def _record(self, candidate: Candidate) -> Recorded:
        path = self._folder / f"{candidate.digest()}.pack"
        if not path.is_file():
            raise UserError(
                f"there is no record of {candidate.op} with the configuration {canonical_json(candidate.config)}",
                "record it with `fasttrack record --config`, and name its pack as well",
            )
        return pack_file.read(path)
