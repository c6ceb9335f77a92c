"""Proposers that follow a list fixed beforehand: `replay` of a transcript, and `single` for one submitted candidate."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.records import Frozen

from .protocol import Done, Evaluation, Proposal


class Line(Frozen):
    """One line of a transcript: a proposal in full."""

    candidate: Candidate
    note: str
    parents: tuple[str, ...] = ()
    island: int = 0

    @property
    def proposal(self) -> Proposal:
        """The proposal that the line records."""
        return Proposal(self.candidate, self.note, self.parents, self.island)


class Scripted:
    """Proposes what it was given, in order."""

    def __init__(self, name: str, proposals: Sequence[Proposal]) -> None:
        self.name = name
        self.proposals = proposals

    def propose(self, history: Sequence[Evaluation]) -> Proposal | Done:
        """The proposal of this round."""
        if len(history) < len(self.proposals):
            return self.proposals[len(history)]
        return Done(f"all {len(self.proposals)} proposals have been judged")


def render_transcript(proposals: Iterable[Proposal]) -> str:
    """JSON lines, one proposal each, in order."""
    lines = (Line(candidate=p.candidate, note=p.note, parents=p.parents, island=p.island) for p in proposals)
    return "".join(line.canonical_json() + "\n" for line in lines)


def read_transcript(path: Path, op: str) -> list[Proposal]:
    """The proposals in a transcript. Raises UserError naming the line that is not one, or is for another op."""
    how = "give the transcript.jsonl of a run directory"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the transcript {path}: {error}", how) from error
    proposals = []
    # Not splitlines(): JSON leaves U+2028 and its like unescaped inside strings.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        try:
            entry = Line.model_validate_json(line)
        except ValidationError as error:
            raise UserError(f"{path}:{number}: not a proposal: {error.errors()[0]['msg']}", how) from error
        if entry.candidate.op != op:
            raise UserError(f"{path}:{number}: the proposal is for op {entry.candidate.op!r}, not {op!r}", how)
        proposals.append(entry.proposal)
    return proposals
