"""A run as it can be told: from its ledgers to data, and from data to lines. Reads; holds and changes nothing."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from fasttrack_validation.judge.verdict import Status, Verdict
from fasttrack_validation.records import Frozen

from .agents import ledger
from .archive import Claim, Close, Finish, Repeat, Request, is_held, read_candidate, read_events, read_request
from .selection import times

GAIN = 0.005
"""A best that is better by less is no turning point."""


class Attempt(Frozen):
    """One judged candidate. `microseconds`: summed over all cells that have a time, modelled ones included."""

    number: int
    candidate: str
    note: str
    parents: tuple[str, ...]
    island: int
    config: dict[str, bool | int | float | str]
    status: str
    reason: str | None
    message: str
    microseconds: float | None
    measured: bool
    repeated: bool = Field(default=False, description="proposed before; nothing was run")
    same_kernels_as: int | None = Field(default=None, description="an earlier attempt with the same kernel pack")
    seconds: float
    requests: ledger.Bill


class Confirmation(Frozen):
    """One confirmation of a pick."""

    candidate: str
    workloads: tuple[str, ...]
    status: str
    message: str


class Story(Frozen):
    """A run."""

    directory: str
    request: Request
    state: Literal["running", "stopped", "over"]
    doing: str
    attempts: tuple[Attempt, ...]
    confirmations: tuple[Confirmation, ...]
    turning_points: tuple[str, ...]
    cut_requests: tuple[str, ...]
    bill: ledger.Bill
    seconds: float
    outcome: str | None
    exit_code: int | None


def read(directory: Path) -> Story:
    """The run in `directory`, as far as it has come. Raises UserError for one that is damaged."""
    from .agents.lineage import pack_digest

    request, events, asked = read_request(directory), read_events(directory), ledger.read(directory)
    closed = {event.number: event for event in events if isinstance(event, Close)}
    attempts: list[Attempt] = []
    ruled: dict[str, Verdict] = {}
    packs: dict[str, int] = {}
    for event in events:
        if isinstance(event, Claim) and (event.stage != "screen" or event.number not in closed):
            continue
        if not isinstance(event, Claim | Repeat):
            continue
        close = closed[event.number] if isinstance(event, Claim) else None
        verdict = ruled.setdefault(event.candidate, close.verdict) if close else ruled[event.candidate]
        candidate = read_candidate(directory, event.candidate)
        known = list(times(verdict).values()) if verdict.status is Status.ACCEPTED else []
        pack = pack_digest(candidate, verdict)
        first = packs.setdefault(pack, len(attempts)) if pack else len(attempts)
        attempts.append(
            Attempt(
                number=len(attempts) + 1,
                candidate=event.candidate,
                note=event.note,
                parents=event.parents,
                island=event.island,
                config=candidate.config,
                status=verdict.status,
                reason=verdict.reason,
                message=verdict.message,
                microseconds=sum(t.microseconds for t in known) if known else None,
                measured=bool(known) and all(t.measured for t in known),
                repeated=close is None,
                same_kernels_as=first + 1 if first < len(attempts) else None,
                seconds=close.seconds if close else 0.0,
                requests=_of_round(asked, len(attempts)),
            )  # fmt: skip
        )
    finish = next((event for event in events if isinstance(event, Finish)), None)
    held = finish is None and is_held(directory)
    return Story(
        directory=str(directory), request=request, state="over" if finish else "running" if held else "stopped",
        doing=_doing(events, closed, asked, held) if finish is None else "", attempts=tuple(attempts),
        confirmations=tuple(
            Confirmation(candidate=e.candidate, workloads=e.workloads, status=v.status, message=v.message)
            for e in events
            if isinstance(e, Claim) and e.stage == "confirm" and e.number in closed and (v := closed[e.number].verdict)
        ),
        turning_points=tuple(_turning_points(attempts)),
        cut_requests=tuple(f"request {e.number}: {e.why}; booked {e.usage.total} tokens" for e in asked if isinstance(e, ledger.Cut)),
        bill=ledger.bill(asked), seconds=sum(event.seconds for event in closed.values()),
        outcome=finish and finish.message, exit_code=finish and finish.exit_code,
    )  # fmt: skip


def _of_round(events: list[ledger.Event], number: int) -> ledger.Bill:
    numbers = {e.number for e in events if isinstance(e, ledger.Asked) and e.place[0] == number}
    return ledger.bill([event for event in events if event.number in numbers])


def _doing(events: list, closed: dict[int, Close], asked: list[ledger.Event], held: bool) -> str:
    """What is under way, or was when the run stopped."""
    when = "is" if held else "was"
    open_requests = {e.number for e in asked if isinstance(e, ledger.Asked)} - {
        e.number for e in asked if not isinstance(e, ledger.Asked)
    }
    if open_requests:
        return f"request {max(open_requests)} {when} under way"
    for event in events:
        if isinstance(event, Claim) and event.number not in closed:
            return f"{'screening' if event.stage == 'screen' else 'confirmation'} of {event.candidate[:12]} {when} under way"
    return "between two steps"


def _turning_points(attempts: list[Attempt]):
    best: Attempt | None = None
    failures = 0
    for attempt in attempts:
        if attempt.status != Status.ACCEPTED:
            failures += 1
            continue
        where = f"attempt {attempt.number} ({attempt.candidate[:12]})"
        if best is None:
            yield f"{where} is the first that the judge accepts" + (
                f", after {failures} that it did not" if failures else ""
            )
        elif attempt.microseconds is not None and best.microseconds is not None:
            if attempt.microseconds < best.microseconds * (1 - GAIN):
                gain = 1 - attempt.microseconds / best.microseconds
                basis = "measured" if attempt.measured and best.measured else "modelled"
                yield f"{where} takes {gain:.1%} less time than the best before it, attempt {best.number} ({basis})"
        if best is None or (
            attempt.microseconds is not None and attempt.microseconds < (best.microseconds or float("inf"))
        ):
            best = attempt


def status_lines(story: Story) -> list[str]:
    """What a run is doing now."""
    request, accepted = story.request, [a for a in story.attempts if a.status == Status.ACCEPTED]
    lines = [
        f"run {request.run}: {request.model}/{request.op}, agent {request.agent}; {story.state}"
        + (f", {story.doing}" if story.doing else ""),
        f"  {len(story.attempts)} of {request.rounds} rounds, {len(accepted)} accepted; "
        f"{story.seconds / 60:.1f} of {request.budget_minutes:g} minutes of judging",
    ]
    timed = [a for a in accepted if a.microseconds is not None]
    if timed:
        best = min(timed, key=lambda a: a.microseconds)
        basis = "measured" if best.measured else "modelled, not measured"
        lines.append(
            f"  best: {best.candidate[:12]}, {best.microseconds:.1f} us over all places ({basis}): {best.note}"
        )
    if request.chat is not None:
        chat = request.chat
        lines.append(f"  model {chat.model or '(the only one there)'} at {chat.base_url}: {story.bill}")
        lines.append(f"  caps: ${chat.usd:g}, {chat.tokens} tokens, {chat.wall_minutes:g} minutes of wall time")
    if story.attempts and story.attempts[-1].status != Status.ACCEPTED:
        lines.append(f"  last: {story.attempts[-1].status}: {story.attempts[-1].reason}: {story.attempts[-1].message}")
    if story.outcome:
        lines.append(f"  outcome: {story.outcome}")
    return lines


def history_lines(story: Story) -> list[str]:
    """One line for each attempt."""
    if not story.attempts:
        return ["nothing has been judged yet"]
    return [_attempt(attempt) for attempt in story.attempts]


def _attempt(attempt: Attempt) -> str:
    came = "accepted" if attempt.status == Status.ACCEPTED else f"{attempt.status}: {attempt.reason}: {attempt.message}"
    if attempt.microseconds is not None:
        came += f", {attempt.microseconds:.1f} us ({'measured' if attempt.measured else 'modelled'})"
    if attempt.same_kernels_as:
        came += f", the same kernels as attempt {attempt.same_kernels_as}"
    return f"{attempt.number}. {attempt.candidate[:12]} ({attempt.note}): {came}"


def explain(story: Story) -> str:
    """The run as Markdown. What an agent wrote stands in code spans or escaped: it formats nothing and links nowhere."""
    from .report.render import environment

    return environment().get_template("story.md.j2").render(s=story).strip() + "\n"
