"""The ledger of paid requests: each is claimed before it is sent and closed after, on the disk both times.

A request that was claimed and never closed was cut off by the end of the process; it is booked at its cap when the
ledger is next opened, for it may have been answered and paid. What was answered is never asked again: the answer is here.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, sha256

from ..storage import AppendOnly, write_file
from .answer import Answer, Usage
from .settings import Price

FILE = "requests.jsonl"
KILLED = "the process ended while the answer was under way"

Place = tuple[int, int, int]
"""Where a request stands: evaluations before it, conversation since then, request within that."""


class Asked(Frozen):
    """A request that is about to be sent, and the most that it can cost."""

    event: Literal["asked"] = "asked"
    number: int
    place: Place
    prompt: str = Field(description="digest; the messages lie in prompts/")
    cap: Usage
    cap_usd: float


class Answered(Frozen):
    """The whole answer to the request of the same number. `estimated`: the server gave no count; booked at the cap."""

    event: Literal["answered"] = "answered"
    number: int
    answer: Answer
    usage: Usage
    usd: float
    seconds: float
    estimated: bool = False


class Cut(Frozen):
    """The answer did not come whole: booked at its cap, or at the server's count where there was one."""

    event: Literal["cut"] = "cut"
    number: int
    why: str
    usage: Usage
    usd: float
    seconds: float
    partial: Answer | None = None


class Refused(Frozen):
    """The endpoint did not take the request: it cost nothing but time."""

    event: Literal["refused"] = "refused"
    number: int
    why: str
    seconds: float


Event = Annotated[Asked | Answered | Cut | Refused, Field(discriminator="event")]
_EVENT = TypeAdapter(Event)


class Bill(Frozen):
    """What requests have cost so far."""

    requests: int = 0
    answered: int = 0
    cut: int = 0
    refused: int = 0
    estimated: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens in and out."""
        return self.prompt + self.completion

    def __str__(self) -> str:
        text = f"{self.answered} answers, {self.prompt} tokens in, {self.completion} out, ${self.usd:.4f}"
        if self.cut:
            text += f"; {self.cut} cut off, each booked at its cap or the server's count"
        if self.estimated:
            text += f"; {self.estimated} without a count, booked at their caps"
        return text


def bill(events: list[Event]) -> Bill:
    """The bill of a ledger. A claim that is still open counts at its cap."""
    open_claims = {event.number: event for event in events if isinstance(event, Asked)}
    total: dict[str, float] = dict.fromkeys(Bill.model_fields, 0)
    total["requests"] = len(open_claims)

    def book(usage: Usage, usd: float) -> None:
        total["prompt"] += usage.prompt
        total["completion"] += usage.completion
        total["cached"] += usage.cached
        total["usd"] += usd

    for event in events:
        if isinstance(event, Asked):
            continue
        open_claims.pop(event.number, None)
        total["seconds"] += event.seconds
        if isinstance(event, Refused):
            total["refused"] += 1
            continue
        total["answered" if isinstance(event, Answered) else "cut"] += 1
        total["estimated"] += isinstance(event, Answered) and event.estimated
        book(event.usage, event.usd)
    for claim in open_claims.values():
        total["cut"] += 1
        book(claim.cap, claim.cap_usd)
    return Bill(**total)


def read(directory: Path) -> list[Event]:
    """The events of a run's ledger, for looking at; an unfinished last line is passed over."""
    path = directory / FILE
    data = path.read_bytes() if path.exists() else b""
    return _parse(data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").split("\n")[:-1], path)


class Requests:
    """The ledger of one run, held by one process (the archive's lock sees to that)."""

    def __init__(self, directory: Path, price: Price) -> None:
        """Opens the ledger; books what an earlier sitting left open. Raises UserError for a damaged one."""
        self._directory, self._price = directory, price
        self._file = AppendOnly(directory / FILE)
        try:
            self.events = _parse(self._file.lines, self._file.path)
            self.recovered = self._recover()
        except BaseException:
            self._file.close()
            raise

    @property
    def bill(self) -> Bill:
        """What was spent, over all sittings."""
        return bill(self.events)

    def answer_at(self, place: Place) -> Answer | None:
        """The answer that was given at a place."""
        numbers = {event.number for event in self.events if isinstance(event, Asked) and event.place == place}
        return next((e.answer for e in self.events if isinstance(e, Answered) and e.number in numbers), None)

    def claim(self, place: Place, messages: list[dict], cap: Usage) -> int:
        """Writes down that a request is about to be sent; its number."""
        text = json.dumps(messages, ensure_ascii=False, indent=1)
        prompt = sha256(text.encode())[:24]
        path = self._directory / "prompts" / f"{prompt}.json"
        if not path.exists():
            write_file(path, text.encode())
        number = sum(isinstance(event, Asked) for event in self.events)
        usd = self._price.usd(cap.prompt, cap.completion)
        self._add(Asked(number=number, place=place, prompt=prompt, cap=cap, cap_usd=usd))
        return number

    def answered(self, number: int, answer: Answer, seconds: float) -> bool:
        """Closes a request with its answer; whether the server had counted its tokens."""
        counted = answer.usage is not None
        usage = answer.usage or self._asked(number).cap
        self._add(
            Answered(
                number=number, answer=answer, usage=usage, usd=self._usd(usage), seconds=seconds, estimated=not counted
            )
        )
        return counted

    def cut(self, number: int, why: str, seconds: float, partial: Answer | None = None) -> None:
        """Closes a request that was cut off."""
        usage = (partial and partial.usage) or self._asked(number).cap
        self._add(Cut(number=number, why=why, usage=usage, usd=self._usd(usage), seconds=seconds, partial=partial))

    def refused(self, number: int, why: str, seconds: float) -> None:
        """Closes a request that was not taken."""
        self._add(Refused(number=number, why=why, seconds=seconds))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _recover(self) -> int:
        closed = {event.number for event in self.events if not isinstance(event, Asked)}
        left = [event.number for event in self.events if isinstance(event, Asked) and event.number not in closed]
        for number in left:
            self.cut(number, KILLED, 0.0)
        return len(left)

    def _asked(self, number: int) -> Asked:
        return next(event for event in self.events if isinstance(event, Asked) and event.number == number)

    def _usd(self, usage: Usage) -> float:
        return self._price.usd(usage.prompt, usage.completion, usage.cached)

    def _add(self, event: Event) -> None:
        self._file.append(event.canonical_json())
        self.events.append(event)


def _parse(lines: list[str], path: Path) -> list[Event]:
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError as error:
            what = f"{path}:{number} is not a record of a request: {error.errors()[0]['msg']}"
            raise UserError(what, "the run directory was altered, or its disk is failing; start a new run") from error
    return events
