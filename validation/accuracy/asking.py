"""Getting answers that are wanted: from the journal, or from the model, with retries that cost no answer."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from ..errors import UserError
from .answers import Answer, Sampling
from .draw import Draw
from .frozen import Item, Message
from .generation import Generation, Model, Unanswered
from .journal import Journal
from .plan import Plan

ATTEMPTS = 8
"""Requests for one answer before a run is ended."""
LONGEST_WAIT = 60.0
"""Seconds between two attempts at most, unless the server asks for more."""
TICK = 5.0
"""Seconds after which progress is told again where no answer came."""
GRACE = 2.0
"""Seconds that a run which is told to stop waits for answers under way; what takes longer is asked again."""

Progress = Callable[[int, int], None]
"""(answers that are there, answers in all)."""


@dataclass(frozen=True)
class Pace:
    """How an arm is asked: requests at a time, attempts an answer, and the first wait between two (doubles each time)."""

    workers: int = 8
    attempts: int = ATTEMPTS
    first_wait: float = 0.5


@dataclass(frozen=True)
class Request:
    """One answer that is wanted."""

    item: Item
    prompt_sha256: str
    messages: Sequence[Message]
    sampling: Sampling
    repeat: int


def seed(plan: Plan, arm: str, item: str, repeat: int, run: str = "") -> int:
    """The seed of one answer, 31 bits: another one for every repeat of every item in every arm, the same when resumed.

    `run` tells two runs of one arm apart, as an A/A run needs them.
    """
    return Draw("seed", plan.digest(), arm, run, item, repeat).below(2**31)


class Asking:
    """Gets the answers that the engine asks for: from the journal, or from the model."""

    def __init__(
        self, plan: Plan, model: Model, arm: str, journal: Journal, pace: Pace, progress: Progress, run: str = ""
    ) -> None:
        self._plan, self._model, self._arm, self._run, self._journal = plan, model, arm, run, journal
        self._pace, self._progress = pace, progress
        self._stopping = threading.Event()
        self.stop_sent: tuple[str, ...] = ()

    def answer(self, requests: Sequence[Request]) -> list[str]:
        """The texts of `requests`, in their order."""
        if any(one.sampling != self._plan.sampling for one in requests):
            raise UserError("the engine hands on another sampling than the planned one", "report it: nothing was asked")
        self.stop_sent = requests[0].sampling.stop if requests else ()
        missing = [one for one in requests if (one.item.id, one.repeat) not in self._journal.answers]
        self._progress(len(requests) - len(missing), len(requests))
        self._journal.session("begin", self._model.counters())
        try:
            self._fetch(missing, len(requests))
        finally:
            self._journal.session("end", self._model.counters())
        held = [self._journal.answers[one.item.id, one.repeat] for one in requests]
        odd = next((one for one, kept in zip(requests, held, strict=True) if kept.prompt_sha256 != one.prompt_sha256), None)
        if odd is not None:
            raise UserError(f"{odd.item.id} was asked otherwise before", "begin in a new directory")
        return [answer.text or "" for answer in held]

    def _fetch(self, missing: Sequence[Request], of: int) -> None:
        done, waiting = of - len(missing), iter(missing)
        running: set[Future[Answer]] = set()
        try:
            while True:
                while len(running) < self._pace.workers and (one := next(waiting, None)) is not None:
                    running.add(self._start(one))
                if not running:
                    return
                finished, running = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
                done = self._keep(finished, done, of)
                if not finished:
                    self._progress(done, of)
        except BaseException as error:
            # What is on its way has been paid for: it is kept as well, where it comes whole; but who stops a run does
            # not wait for a server, which may take hours over an answer.
            self._stopping.set()
            try:
                wait(running, timeout=None if isinstance(error, Exception) else GRACE)
            finally:
                self._keep([one for one in running if one.done() and one.exception() is None], done, of)
            raise

    def _start(self, one: Request) -> Future[Answer]:
        """Asks in a thread that ends with the process: a pool would be waited for, however long a server is silent."""
        future: Future[Answer] = Future()

        def work() -> None:
            try:
                future.set_result(self._ask(one))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, name=f"{one.item.id} {one.repeat}", daemon=True).start()
        return future

    def _keep(self, finished: Iterable[Future[Answer]], done: int, of: int) -> int:
        failed: BaseException | None = None
        for future in finished:
            if (error := future.exception()) is not None:
                failed = failed or error
                continue
            self._journal.add(future.result())
            done += 1
            self._progress(done, of)
        if failed is not None:
            raise failed
        return done

    def _ask(self, one: Request) -> Answer:
        chosen = seed(self._plan, self._arm, one.item.id, one.repeat, self._run)
        started, why = time.monotonic(), ""
        for attempt in range(1, self._pace.attempts + 1):
            try:
                found = self._model.generate(one.messages, one.sampling, chosen)
                problem = _unusable(found, self._model.name)
                if problem is None:
                    return _record(one, found, chosen, time.monotonic() - started, attempt)
                why, asked_for = problem, None
            except Unanswered as error:
                why, asked_for = str(error), error.wait
            if self._stopping.is_set():
                break
            if attempt < self._pace.attempts:
                longest = min(LONGEST_WAIT, self._pace.first_wait * 2 ** (attempt - 1))
                self._stopping.wait(asked_for if asked_for is not None else random.uniform(longest / 2, longest))
        raise UserError(
            f"no answer to {one.item.id} (repeat {one.repeat}) in {attempt} requests: {why}",
            "see to the server, then run the same command again: every answer that came is kept",
        )


def _unusable(found: Generation, name: str) -> str | None:
    """Why an answer does not count; None where it does."""
    if found.model != name:
        return f"{found.model!r} answered instead of {name!r}"
    if found.finish_reason not in ("stop", "length"):
        return f"the answer ended by {found.finish_reason!r}"
    return None


def _record(one: Request, found: Generation, chosen: int, seconds: float, attempts: int) -> Answer:
    return Answer(
        item=one.item.id, prompt_sha256=one.prompt_sha256, repeat=one.repeat, seed=chosen, model=found.model,
        text=found.text, reasoning=found.reasoning, finish_reason=found.finish_reason, tokens=found.tokens,
        prompt_tokens=found.prompt_tokens, seconds=round(seconds, 3), attempts=attempts,
    )  # fmt: skip
