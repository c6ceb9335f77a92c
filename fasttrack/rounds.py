"""The rounds of a run: propose, judge, keep, until there is a reason to stop."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status, Verdict

from .agents.protocol import Done, Evaluation, Proposal, Proposer
from .archive import Archive, Request
from .model_dir import Bucket
from .selection import objective, times
from .voice import Voice

PLATEAU_ROUNDS = 16
PLATEAU_GAIN = 0.005
NEAR_FLOOR = 1.1
SICK_ROUNDS = 3

# (hardware, workload) -> microseconds at datasheet bandwidth, None without datasheet figures.
Floors = Mapping[tuple[str, str], float | None]


class Judging(Protocol):
    """What the lane needs of a judge. Its inputs are its own secret: no seed of the run reaches it."""

    def screen(self, candidate: Candidate, workloads: Sequence[str]) -> Verdict:
        """Rules on `candidate` at small workloads of true shape; times the named declared ones."""

    def confirm(self, candidate: Candidate, workloads: Sequence[str], timed: Collection[str]) -> Verdict:
        """Rules on `candidate` at the named workloads and held-out ones, with fresh inputs; times those in `timed`."""


def run(
    archive: Archive, proposer: Proposer, judge: Judging, buckets: Sequence[Bucket], floors: Floors, voice: Voice
) -> tuple[list[Evaluation], str]:
    """Goes on from what the archive holds; every evaluation in order, and why the rounds ended."""
    request, workloads = archive.request, tuple(dict.fromkeys(bucket.workload for bucket in buckets))
    history = [_evaluation(proposal, verdict, buckets) for proposal, verdict in archive.screened()]
    with voice.progress(request.rounds, len(history)) as progress:
        while True:
            if reason := stop(request, history, archive.seconds, floors):
                return history, reason
            proposal = proposer.propose(history)
            if isinstance(proposal, Done):
                return history, proposal.reason
            progress.start(proposal.note)
            verdict = archive.evaluate("screen", proposal, (), lambda p=proposal: judge.screen(p.candidate, workloads))
            history.append(_evaluation(proposal, verdict, buckets))
            progress.ruled(history[-1])
            voice.say(f"  round {len(history)}: {_told(history[-1])}")


def stop(request: Request, history: Sequence[Evaluation], seconds: float, floors: Floors) -> str | None:
    """Why no further round should start, or None."""
    if len(history) >= request.rounds:
        return f"all {request.rounds} rounds are used"
    if seconds >= request.budget_minutes * 60:
        return f"the budget of {request.budget_minutes:g} minutes is used"
    recent = history[-SICK_ROUNDS:]
    if len(recent) == SICK_ROUNDS and not any(_ruled(evaluation.verdict) for evaluation in recent):
        return f"the judge could not rule {SICK_ROUNDS} times in a row: {recent[-1].verdict.message}"
    best = _best(history)
    if best is None:
        return None
    bounds = [floors.get(place) for place in times(best.verdict) if place in floors]
    if None not in bounds and best.objective <= NEAR_FLOOR * sum(bounds):
        return f"the best candidate is within {NEAR_FLOOR - 1:.0%} of the floor"
    before = _best(history[:-PLATEAU_ROUNDS])
    if before is not None and best.objective > before.objective * (1 - PLATEAU_GAIN):
        return f"the last {PLATEAU_ROUNDS} rounds gained less than {PLATEAU_GAIN:.1%}"
    return None


def _ruled(verdict: Verdict) -> bool:
    return verdict.status in (Status.ACCEPTED, Status.REJECTED)


def _best(history: Sequence[Evaluation]) -> Evaluation | None:
    return min((e for e in history if e.objective is not None), key=lambda e: e.objective, default=None)


def _evaluation(proposal: Proposal, verdict: Verdict, buckets: Sequence[Bucket]) -> Evaluation:
    return Evaluation(proposal, verdict, objective(verdict, buckets))


def _told(evaluation: Evaluation) -> str:
    verdict = evaluation.verdict
    config = " ".join(f"{key}={value}" for key, value in sorted(evaluation.proposal.candidate.config.items()))
    if verdict.status is Status.ACCEPTED:
        total = "" if evaluation.objective is None else f", {evaluation.objective:.1f} us over all places (modelled or measured)"
        return f"accepted {config}{total}"
    return f"{verdict.status} {config}: {verdict.reason}: {verdict.message}"
