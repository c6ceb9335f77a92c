"""Asks an endpoint within a budget: claims, retries, learns, books."""

import math
import random
import time
from collections.abc import Callable, Sequence

from fasttrack_validation.errors import UserError

from .answer import Answer, Usage
from .capabilities import Capabilities, Memory, learn
from .endpoint import Endpoint, Failure, Kind
from .ledger import Place, Requests
from .settings import ChatSettings

GO_ON = "go on later with `fasttrack propose --resume`; nothing finished is lost"
# An answer of fewer tokens holds no kernel: what is left of a budget is not worth a request.
_LEAST = 64


class BudgetGone(Exception):
    """No further request may be sent; the text says which cap is reached."""


class PromptTooLong(Exception):
    """The model's context is smaller than the prompt."""


class NoTools(Exception):
    """The endpoint has just refused function tools: the prompt must say how to do without."""


def estimate(messages: Sequence[dict]) -> int:
    """Tokens of messages at three bytes each, and a few for every message. Source code and prose take more bytes."""
    size = sum(len(str(part).encode()) for message in messages for part in _parts(message))
    return math.ceil(size / 3) + 8 * len(messages)


class Metered:
    """Requests of one run. Overshoots a cap by one answer at most: the last one begins below the cap."""

    def __init__(
        self, endpoint: Endpoint, requests: Requests, memory: Memory, settings: ChatSettings,
        elsewhere: Callable[[], float] = lambda: 0.0, say: Callable[[str], None] = lambda line: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """`elsewhere`: seconds of the run's wall time that judging has taken."""
        self.requests, self.settings = requests, settings
        self._endpoint, self._memory, self._elsewhere, self._say, self._sleep = endpoint, memory, elsewhere, say, sleep
        self.known = self._kept = memory.read()
        if requests.recovered:
            say(
                f"note: requests cut off when the run stopped: {requests.recovered}; booked at their caps and asked once more"
            )

    @property
    def tools(self) -> bool:
        """Whether the endpoint takes function tools, as far as is known."""
        return self.known.allows("tools")

    def left(self) -> str:
        """What is left of the budget, in words."""
        bill = self.requests.bill
        minutes = self.settings.wall_minutes - (bill.seconds + self._elsewhere()) / 60
        return (
            f"${max(0.0, self.settings.usd - bill.usd):.4f}, {max(0, self.settings.tokens - bill.tokens)} tokens, "
            f"{max(0.0, minutes):.0f} minutes"
        )

    def ask(self, place: Place, messages: list[dict], tools: list[dict]) -> Answer:
        """The answer at `place`: from the ledger, or from the endpoint.

        Raises BudgetGone, PromptTooLong, NoTools or UserError.
        """
        if (known := self.requests.answer_at(place)) is not None:
            return known
        self._find_model()
        trial, tries, cuts = self.known, 0, 0
        while True:
            cap = self._cap(messages, trial)
            body = self._endpoint.body(trial, messages, tools if trial.allows("tools") else (), cap.completion)
            number = self.requests.claim(place, messages, cap)
            started = time.monotonic()
            try:
                answer = self._endpoint.send(body, cap.completion)
            except Failure as failure:
                seconds = time.monotonic() - started
                if failure.kind is Kind.CUT:
                    self.requests.cut(number, failure.message, seconds, failure.partial)
                    cuts += 1
                    if cuts > 1:
                        raise UserError(f"cut off twice in a row: {failure.message}", GO_ON) from None
                    self._say(f"  request {number}: {failure.message}; booked at its cap, asked once more")
                    continue
                self.requests.refused(number, failure.message, seconds)
                if failure.kind is Kind.BUSY:
                    self._wait(failure, tries, number)
                    tries += 1
                elif failure.kind is Kind.PARAMETER:
                    trial = learn(trial, body, failure.message, failure.parameter)
                    if trial is None:
                        how = "see the endpoint's own log; every optional parameter was left out"
                        raise UserError(failure.message, how) from None
                    if self.tools and not trial.allows("tools"):
                        self.known = trial
                        raise NoTools from None
                elif failure.kind is Kind.TOO_LONG:
                    raise PromptTooLong(failure.message) from None
                else:
                    raise UserError(failure.message, self._models_hint(failure)) from None
                continue
            return self._keep(number, answer, time.monotonic() - started, trial)

    def _keep(self, number: int, answer: Answer, seconds: float, learned: Capabilities) -> Answer:
        """Books an answer, and what it has shown of the endpoint."""
        if not self.requests.answered(number, answer, seconds):
            self._say(f"  request {number}: the server counted no tokens; booked at its cap")
            # Servers that leave the count out of a stream mostly have it in a whole answer.
            learned = learned.model_copy(update={"usage_in_streams": False})
        self.known = learned
        if learned != self._kept:
            self._kept = learned
            self._memory.write(learned)
        return answer

    def _cap(self, messages: list[dict], known: Capabilities) -> Usage:
        settings, bill = self.settings, self.requests.bill
        if bill.usd >= settings.usd:
            raise BudgetGone(f"the budget of ${settings.usd:g} is used")
        if (bill.seconds + self._elsewhere()) >= settings.wall_minutes * 60:
            raise BudgetGone(f"the {settings.wall_minutes:g} minutes of wall time are used")
        prompt = estimate(messages)
        room = settings.tokens - bill.tokens - prompt
        if room < _LEAST:
            raise BudgetGone(f"the budget of {settings.tokens} tokens is used")
        return Usage(prompt=prompt, completion=min(settings.output_tokens, known.output_limit or room, room))

    def _wait(self, failure: Failure, tries: int, number: int) -> None:
        if tries >= self.settings.retries:
            raise UserError(f"{failure.message} ({tries + 1} times in a row)", GO_ON)
        wait = failure.wait
        if wait is None:
            # Jitter keeps several runs on one endpoint from asking in step.
            wait = min(60.0, 2.0**tries) * random.uniform(0.75, 1.25)
        if wait > self.settings.longest_wait:
            raise UserError(f"{failure.message}; it asks to wait {wait:.0f} seconds", GO_ON)
        self._say(f"  request {number}: {failure.message}; asking again in {wait:.1f} s")
        self._sleep(wait)

    def _find_model(self) -> None:
        if self.settings.model or self.known.served_model:
            return
        try:
            models = self._endpoint.models()
        except Failure as failure:
            raise UserError(
                f"no model was named, and the endpoint lists none: {failure.message}", "name one: --llm MODEL"
            ) from None
        if len(models) != 1:
            raise UserError(
                f"no model was named, and the endpoint lists {len(models)}: {', '.join(models[:8])}",
                "name one: --llm MODEL",
            )
        self.known = self.known.model_copy(update={"served_model": models[0]})

    def _models_hint(self, failure: Failure) -> str:
        if failure.parameter != "model":
            return failure.how or GO_ON
        try:
            models = self._endpoint.models()
        except Failure:
            return failure.how
        return f"models there: {', '.join(models[:8]) or 'none'}; name one with --llm"


def _parts(message: dict):
    yield message.get("content") or ""
    for call in message.get("tool_calls") or ():
        yield call["function"]["name"] + call["function"]["arguments"]
