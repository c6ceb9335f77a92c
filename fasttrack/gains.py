"""What a search gained: its trace in one file, and the configuration it found beside the one that people had picked.

Both were confirmed by the same run, each in a session of its own beside the stock path, on fresh inputs. What is compared
is each one's advantage over the stock path, quad by quad, so that what differs between the sessions alone (clocks,
temperature) is in both sides of it. Pure but for `keep` and `read`.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from functools import cache
from math import comb, exp, inf, log
from pathlib import Path
from statistics import median

from pydantic import Field, TypeAdapter

from fasttrack_validation.claims.cells import Measured
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status, TimedCell, Verdict
from fasttrack_validation.records import Frozen
from fasttrack_validation.timing.comparison import SMALLEST_EFFECT
from fasttrack_validation.timing.result import Timing
from fasttrack_validation.timing.session import STOCK

from .agents.choice import OF_THE_TABLE
from .archive import Claim, Close, Event, Request, read_candidate, read_events, read_request
from .storage import write_file

_EVENT = TypeAdapter(Event)
ALPHA = 0.025
"""Error of each end of an interval: both ends hold with a probability of 0.95."""


class Trace(Frozen):
    """A run as it is kept: what was asked, the sources that all its candidates share, and its ledger."""

    request: Request
    entry: str
    files: Mapping[str, str]
    events: tuple[Event, ...]

    def verdicts(self, stage: str) -> list[tuple[Claim, Verdict]]:
        """Every closed claim of a stage with its verdict, in order."""
        closed = {event.number: event.verdict for event in self.events if isinstance(event, Close)}
        claims = [event for event in self.events if isinstance(event, Claim) and event.stage == stage]
        return [(claim, closed[claim.number]) for claim in claims if claim.number in closed]


class Gain(Frozen):
    """A found configuration beside the hand-picked one at one place, times in microseconds of one call."""

    op: str
    hardware: str
    workload: str
    tried: int = Field(description="configurations judged")
    hand: dict
    found: dict
    hand_time: Measured
    found_time: Measured
    stock_microseconds: float = Field(description="of the session of the found one")
    ratio: float = Field(description="hand-picked over found: above one where the search gained")
    low: float
    high: float

    @property
    def outcome(self) -> str:
        """In a word; less than the smallest effect of a timing session is no difference."""
        if self.low > 1 + SMALLEST_EFFECT:
            return "improved"
        if self.low > 1 / (1 + SMALLEST_EFFECT):
            return "matched"
        return "worse" if self.high < 1 / (1 + SMALLEST_EFFECT) else "unclear"


def keep(run: Path, path: Path) -> None:
    """Writes the trace of the run in directory `run`: gzip, a JSON line for the request, one for the sources, the ledger.

    Raises UserError where the candidates do not share their sources, as those of a search do.
    """
    request, events = read_request(run), read_events(run)
    candidates = [read_candidate(run, digest) for digest in {e.candidate for e in events if isinstance(e, Claim)}]
    sources = {json.dumps([one.entry, one.files], sort_keys=True) for one in candidates}
    if len(sources) != 1:
        raise UserError(f"{run} has candidates of {len(sources)} sources", "keep the trace of a search")
    first = candidates[0]
    lines = [request.canonical_json(), json.dumps({"entry": first.entry, "files": first.files}, sort_keys=True)]
    text = "\n".join([*lines, *(event.canonical_json() for event in events)]) + "\n"
    write_file(path, gzip.compress(text.encode(), 9, mtime=0))


def read(path: Path) -> Trace:
    """The trace in a file. Raises UserError where it is none, or names a candidate that is not of its sources."""
    try:
        request, sources, *events = gzip.decompress(path.read_bytes()).decode().splitlines()
        found = Trace(
            request=Request.model_validate_json(request), **json.loads(sources),
            events=tuple(_EVENT.validate_json(event) for event in events),
        )  # fmt: skip
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no trace of a search: {error}", "keep it anew from the run's directory") from error
    for stage in ("screen", "confirm"):
        for claim, verdict in found.verdicts(stage):
            made = Candidate(op=found.request.op, entry=found.entry, files=found.files, config=verdict.config)
            if not claim.candidate == verdict.candidate_digest == made.digest():
                raise UserError(f"{path}: {claim.candidate[:12]} is not of the sources there", "the file was altered")
    return found


def gain(trace: Trace, hardware: str, workload: str) -> Gain:
    """What the search gained at a place. Raises UserError where one of the two was not confirmed there with a time."""
    screened, confirmed = trace.verdicts("screen"), trace.verdicts("confirm")
    hand = next((claim.candidate for claim, _ in screened if claim.note == OF_THE_TABLE), None)
    looks = {claim.candidate: _cell(verdict, hardware, workload) for claim, verdict in screened}
    times = {
        claim.candidate: (verdict, cell) for claim, verdict in confirmed
        if verdict.status is Status.ACCEPTED and (cell := _cell(verdict, hardware, workload)) is not None
    }  # fmt: skip
    ranked = [digest for digest in times if looks.get(digest) is not None]
    if hand not in ranked:
        raise UserError(
            f"run {trace.request.run} has no confirmed time of the table's configuration at {hardware} {workload}",
            "a run with --at for one workload confirms it wherever another place keeps it",
        )
    # As the lane picks: by the looks, among what the confirmation then let stand.
    found = min(ranked, key=lambda digest: looks[digest].cell.microseconds)
    (theirs, old), (ours, new) = times[hand], times[found]
    low, ratio, high = shift(_advantages(new.timing), _advantages(old.timing))
    return Gain(
        op=trace.request.op, hardware=hardware, workload=workload, tried=len(screened), hand=dict(theirs.config),
        found=dict(ours.config), hand_time=old.cell, found_time=new.cell, ratio=exp(ratio), low=exp(low), high=exp(high),
        stock_microseconds=new.timing.stock.microseconds,
    )  # fmt: skip


def shift(ours: Sequence[float], theirs: Sequence[float], alpha: float = ALPHA) -> tuple[float, float, float]:
    """(low, estimate, high) of how far `ours` lie above `theirs`: Hodges and Lehmann's estimate (1963), with the bounds
    that invert the exact rank-sum test, `alpha` each. Infinite where there are too few samples for a bound."""
    differences = sorted(one - other for one in ours for other in theirs)
    total, tail, rank = comb(len(ours) + len(theirs), len(ours)), 0, 0
    while rank < len(differences) and (tail := tail + _orders(len(ours), len(theirs), rank)) <= alpha * total:
        rank += 1
    if not rank:
        return -inf, median(differences), inf
    return differences[rank - 1], median(differences), differences[-rank]


@cache
def _orders(ours: int, theirs: int, above: int) -> int:
    """Orders of so many samples of each in which `above` of all pairs have ours above theirs."""
    if above < 0:
        return 0
    if not ours or not theirs:
        return int(not above)
    return _orders(ours - 1, theirs, above - theirs) + _orders(ours, theirs - 1, above)


def _cell(verdict: Verdict, hardware: str, workload: str) -> TimedCell | None:
    cells = (cell for cell in verdict.cells if (cell.hardware, cell.workload) == (hardware, workload))
    return next((cell for cell in cells if cell.timing is not None), None)


def _advantages(timing: Timing) -> list[float]:
    """Log of the stock path's time over the candidate's, for each quad of the session."""
    (ours,) = [samples for name, samples in timing.samples.items() if name != STOCK]
    stock = timing.samples[STOCK]
    quads = zip(ours[::2], ours[1::2], stock[::2], stock[1::2], strict=True)
    return [(log(b1) + log(b2) - log(a1) - log(a2)) / 2 for a1, a2, b1, b2 in quads]
