"""What a proposer is: a function from what is known to the next candidate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Verdict


@dataclass(frozen=True)
class Proposal:
    """A candidate and one line on why it is worth judging.

    `parents` are digests of the candidates that it was made from; `island` is the line of descent that it belongs to.
    """

    candidate: Candidate
    note: str
    parents: tuple[str, ...] = ()
    island: int = 0


@dataclass(frozen=True)
class Done:
    """The proposer has nothing more to propose, and why."""

    reason: str


@dataclass(frozen=True)
class Evaluation:
    """A judged proposal. `objective` is the summed time over the workloads in microseconds, lower is better.

    It is None where the candidate was not accepted, or has no time at some workload.
    """

    proposal: Proposal
    verdict: Verdict
    objective: float | None


class Proposer(Protocol):
    """Writes candidates. Its next proposal depends on `history` and on what it was built with, on nothing else.

    That is what lets a resumed run go on as if it had never stopped: there is no other state to lose.
    """

    name: str

    def propose(self, history: Sequence[Evaluation]) -> Proposal | Done:
        """The next candidate, given every evaluation so far in order."""
