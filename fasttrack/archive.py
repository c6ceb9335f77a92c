"""The archive of a run: every candidate, every verdict and what each one cost.

An evaluation is claimed in the ledger before it starts and closed after it. Both records are on the disk before the
run goes on, so a kill at any moment loses no finished verdict, and a resumed run repeats none.
"""

import datetime
import fcntl
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fasttrack_validation.durable import sync_directory
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Verdict
from fasttrack_validation.records import Frozen

from .agents.protocol import Proposal
from .agents.settings import ChatSettings
from .storage import AppendOnly, write_file, writing


class Request(Frozen):
    """What a run was asked to do. A resumed run takes all of it from here."""

    run: str
    model: str
    op: str
    agent: str
    why_agent: str
    rounds: int = Field(ge=1)
    budget_minutes: float = Field(gt=0)
    seed: int = Field(ge=0)
    hardware: tuple[str, ...] = Field(min_length=1)
    workloads: tuple[str, ...] = Field(default=(), description="declared workloads to search at; empty: all")
    branch: str
    base: str = Field(description="commit that the run starts from")
    scripted: bool = Field(default=False, description="proposals come from proposals.jsonl in the run directory")
    unsafe_no_sandbox: bool = False
    device: str = Field(default="auto", description="what runs the plans: auto, cpu or gpu")
    packed: bool = Field(default=False, description="candidates were recorded before; their packs lie in packs/")
    chat: ChatSettings | None = Field(default=None, description="endpoint, model, price and caps of agent chat")


class Claim(Frozen):
    """An evaluation that is about to start."""

    event: Literal["claim"] = "claim"
    number: int
    stage: Literal["screen", "confirm"]
    candidate: str = Field(description="digest; the candidate lies in candidates/")
    workloads: tuple[str, ...] = ()
    note: str = ""
    parents: tuple[str, ...] = Field(default=(), description="digests of the candidates that it was made from")
    island: int = 0


class Close(Frozen):
    """The verdict of the claim of the same number, and the seconds it took."""

    event: Literal["close"] = "close"
    number: int
    verdict: Verdict
    seconds: float


class Repeat(Frozen):
    """A screened candidate was proposed once more; its verdict stands and nothing was run."""

    event: Literal["repeat"] = "repeat"
    candidate: str
    note: str
    parents: tuple[str, ...] = ()
    island: int = 0


class Finish(Frozen):
    """The run is over."""

    event: Literal["finish"] = "finish"
    exit_code: int
    message: str


Event = Annotated[Claim | Close | Repeat | Finish, Field(discriminator="event")]
_EVENT = TypeAdapter(Event)


class Archive:
    """One run directory, held by one process. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        """Opens the run in `directory`. Raises UserError when another process holds it or it is damaged."""
        self.directory = directory
        self._lock = _hold(directory)
        try:
            self.request = _request(directory)
            self._ledger = AppendOnly(directory / "ledger.jsonl")
        except BaseException:
            os.close(self._lock)
            raise
        try:
            self._events = self._read()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, runs: Path, request: Request, proposals: str | None = None) -> "Archive":
        """A new run directory under `runs`, named after the run. `proposals` are a scripted agent's, as JSON lines."""
        directory = runs / request.run
        with writing(directory):
            runs.mkdir(parents=True, exist_ok=True)
            directory.mkdir()
            (directory / "candidates").mkdir()
            sync_directory(runs)
        if proposals is not None:
            write_file(directory / "proposals.jsonl", proposals.encode())
        # Last: a directory without it is no run, and --resume passes it over.
        write_file(directory / "run.json", (request.canonical_json() + "\n").encode())
        return cls(directory)

    @property
    def torn(self) -> int:
        """Bytes of an unfinished record that were cut off the ledger when it was opened."""
        return self._ledger.torn

    @property
    def finished(self) -> Finish | None:
        """The record that ended the run, if it has ended."""
        return next((event for event in self._events if isinstance(event, Finish)), None)

    @property
    def seconds(self) -> float:
        """Seconds spent on finished evaluations, over all sittings."""
        return sum(event.seconds for event in self._events if isinstance(event, Close))

    def screened(self) -> list[tuple[Proposal, Verdict]]:
        """Every screened proposal with its verdict, in order, repeats included."""
        verdicts = {event.number: event.verdict for event in self._events if isinstance(event, Close)}
        known: dict[str, Verdict] = {}
        result = []
        for event in self._events:
            if isinstance(event, Claim) and event.stage == "screen" and event.number in verdicts:
                known[event.candidate] = verdicts[event.number]
            elif not isinstance(event, Repeat):
                continue
            proposal = Proposal(self.candidate(event.candidate), event.note, event.parents, event.island)
            result.append((proposal, known[event.candidate]))
        return result

    def confirmed(self) -> list[tuple[Claim, Verdict]]:
        """Every finished confirmation, in order."""
        verdicts = {event.number: event.verdict for event in self._events if isinstance(event, Close)}
        claims = [event for event in self._events if isinstance(event, Claim) and event.stage == "confirm"]
        return [(claim, verdicts[claim.number]) for claim in claims if claim.number in verdicts]

    def evaluate(
        self, stage: Literal["screen", "confirm"], proposal: Proposal, workloads: tuple[str, ...],
        work: Callable[[], Verdict],
    ) -> Verdict:  # fmt: skip
        """The verdict of `work`, or the one already in the ledger for the same question.

        A screening asks about the candidate alone; a confirmation about the candidate and the workloads.
        """
        digest = proposal.candidate.digest()
        known = self._known(stage, digest, workloads)
        if known is not None:
            if stage == "screen":
                self._add(Repeat(candidate=digest, note=proposal.note, parents=proposal.parents, island=proposal.island))
            return known
        self._keep(digest, proposal.candidate)
        number = sum(isinstance(event, Claim) for event in self._events)
        claim = Claim(
            number=number, stage=stage, candidate=digest, workloads=workloads, note=proposal.note,
            parents=proposal.parents, island=proposal.island,
        )  # fmt: skip
        self._add(claim)
        start = time.monotonic()
        verdict = work()
        self._add(Close(number=number, verdict=verdict, seconds=time.monotonic() - start))
        return verdict

    def finish(self, exit_code: int, message: str) -> None:
        """Records that the run is over."""
        self._add(Finish(exit_code=exit_code, message=message))

    def candidate(self, digest: str) -> Candidate:
        """The stored candidate with this digest. Raises UserError when the file is missing or altered."""
        return read_candidate(self.directory, digest)

    def close(self) -> None:
        """Lets go of the run."""
        self._ledger.close()
        os.close(self._lock)

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known(self, stage: str, digest: str, workloads: tuple[str, ...]) -> Verdict | None:
        verdicts = {event.number: event.verdict for event in self._events if isinstance(event, Close)}
        for event in self._events:
            if not isinstance(event, Claim) or (event.stage, event.candidate) != (stage, digest):
                continue
            same = stage == "screen" or event.workloads == workloads
            if same and event.number in verdicts:
                return verdicts[event.number]
        return None

    def _keep(self, digest: str, candidate: Candidate) -> None:
        path = self.directory / "candidates" / f"{digest}.json"
        if not path.exists():
            write_file(path, candidate.canonical_json().encode())

    def _add(self, event: Event) -> None:
        self._ledger.append(event.canonical_json())
        self._events.append(event)

    def _read(self) -> list[Event]:
        return _parse(self._ledger.lines, self._ledger.path)


def read_request(directory: Path) -> Request:
    """What the run in `directory` was asked to do. Raises UserError where that cannot be read."""
    return _request(directory)


def read_events(directory: Path) -> list[Event]:
    """A run's ledger, for looking at while another process may write it; an unfinished last line is passed over."""
    path = directory / "ledger.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return _parse(data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").split("\n")[:-1], path)


def read_candidate(directory: Path, digest: str) -> Candidate:
    """The stored candidate with this digest. Raises UserError when the file is missing or altered."""
    path = directory / "candidates" / f"{digest}.json"
    how = "the run directory was altered; start a new run"
    try:
        candidate = Candidate.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"cannot read {path}: {error}", how) from error
    if candidate.digest() != digest:
        raise UserError(f"{path} does not have the digest in its name", how)
    return candidate


def is_held(directory: Path) -> bool:
    """Whether a process works on the run in `directory` now."""
    try:
        os.close(_hold(directory, tries=1))
    except UserError:
        return True
    return False


def _parse(lines: list[str], path: Path) -> list[Event]:
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError as error:
            raise UserError(
                f"{path}:{number} is not a ledger record: {error.errors()[0]['msg']}",
                "the run directory was altered, or its disk is failing; start a new run",
            ) from error
    return events


def new_run_id() -> str:
    """A name for a run: the UTC time, which sorts, and four random hex digits."""
    return f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def find_run(runs: Path, run: str | None, *, model: str, op: str | None) -> Path:
    """The directory of `run`, or of the latest unfinished run on `model` (and `op`). Raises UserError if none."""
    directories = sorted(path.parent for path in runs.glob("*/run.json"))
    if run is not None:
        if runs / run not in directories:
            names = ", ".join(path.name for path in directories[-5:]) or "none"
            raise UserError(f"no run {run!r} under {runs}", f"runs there: {names}")
        return runs / run
    for directory in reversed(directories):
        request = _request(directory)
        if request.model == model and op in (None, request.op) and not _ended(directory):
            return directory
    raise UserError(f"no unfinished run on {model} under {runs}", "start one: leave out --resume")


def _ended(directory: Path) -> bool:
    path = directory / "ledger.jsonl"
    return path.exists() and any('"event":"finish"' in line for line in path.read_text("utf-8").splitlines())


def _request(directory: Path) -> Request:
    path = directory / "run.json"
    try:
        return Request.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"cannot read {path}: {error}", "the run cannot be resumed; start a new one") from error


def _hold(directory: Path, tries: int = 5) -> int:
    """The run's lock. Several tries, for whoever looks whether a run is held takes it for a moment."""
    path = directory / "lock"
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for left in reversed(range(tries)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if left:
                time.sleep(0.05)
                continue
            os.close(descriptor)
            raise UserError(
                f"run {directory.name} is held by another process", "wait for it, or stop it; two must not share a run"
            ) from error
        break
    return descriptor
