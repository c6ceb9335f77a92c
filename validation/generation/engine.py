"""Serves requests side by side from one path: each in turn gets one part of its prompt computed, or one token.

A request is computed alone and in parts that depend on nothing but itself, so its answer is the same to the last bit
whatever else is served.
"""

import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from .asked import Asked, Done, Event, Failed, Prompt, Token
from .process import PathFailed, PathProcess
from .sampling import choose, scores
from .small import SmallModel
from .stops import Stops

PART = 256
"""Tokens of a prompt that are computed in one turn"""


class Busy(Exception):
    """As many texts wait as may wait."""


class Job:
    """One request under way. `cancel` from any thread: nobody reads the answer any more."""

    def __init__(self, asked: Asked, emit: Callable[[Event], None]) -> None:
        self.asked, self.emit = asked, emit
        self.cancelled = False
        self.session: int | None = None
        self.work: Iterator[None] | None = None

    def cancel(self) -> None:
        """Ends the job at its next turn."""
        self.cancelled = True


class Engine:
    """Runs jobs in a thread of its own. A context manager around an open `PathProcess`."""

    def __init__(self, path: PathProcess, small: SmallModel, *, waiting: int = 1024) -> None:
        """`waiting`: jobs that may wait for a session before requests are turned away."""
        self.path, self.small, self.most_waiting = path, small, waiting
        self._free = deque(range(path.setup.sessions))
        self._waiting: deque[Job] = deque()
        self._active: deque[Job] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def __enter__(self) -> "Engine":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether jobs are being worked on."""
        return self._thread.is_alive()

    @property
    def load(self) -> tuple[int, int]:
        """Jobs under way, jobs that wait."""
        return len(self._active), len(self._waiting)

    def submit(self, asked: Sequence[Asked], emit: Callable[[int, Event], None]) -> list[Job]:
        """Queues the texts of one request. `emit` gets (which, event) in the engine's thread and must not block; the
        last event of each is Done or Failed. Raises Busy where too many wait already."""
        jobs = [Job(one, partial(emit, which)) for which, one in enumerate(asked)]
        with self._wake:
            if len(self._waiting) >= self.most_waiting + len(self._free):
                raise Busy(f"{len(self._waiting)} texts are waiting")
            self._waiting.extend(jobs)
            self._wake.notify()
        return jobs

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._closing or self._active or self._waiting):
                    self._wake.wait()
                if self._closing:
                    break
                while self._waiting and self._free:
                    job = self._waiting.popleft()
                    if not job.cancelled:
                        job.session = self._free.popleft()
                        self._active.append(job)
            if self._active:
                self._turn(self._active.popleft())
        for job in (*self._active, *self._waiting):
            job.emit(Failed("the server is stopping"))

    def _turn(self, job: Job) -> None:
        """One step of one job; it goes to the end of the line, or leaves."""
        over = job.cancelled
        if not over:
            job.work = job.work or self._work(job)
            try:
                next(job.work)
            except StopIteration:
                over = True
            except PathFailed as failure:
                over = True
                self._recover(job, failure)
            except Exception as error:  # one request must not end the others' service
                over = True
                job.emit(Failed("a defect of the server", repr(error)))
                traceback.print_exc()
        if over:
            self._free.append(job.session)
        else:
            self._active.append(job)

    def _recover(self, job: Job, failure: PathFailed) -> None:
        """The path's process is gone, and with it the state of every job under way."""
        print(f"engine: {failure}", file=sys.stderr)
        for lost in (job, *self._active):
            lost.emit(Failed("the model's process failed; ask again", str(failure)))
        self._free.extend(other.session for other in self._active)
        self._active.clear()
        with suppress(PathFailed):  # then the next job finds it so, and tries again
            self.path.restart()

    def _work(self, job: Job) -> Iterator[None]:
        """The steps of a job, a turn each."""
        asked, session = job.asked, job.session
        self.path.open(session)
        logits = None
        scored = asked.prompt_top is not None
        # The last token's logits are the first generated token's; nothing is computed where nobody asks for them.
        needed = len(asked.prompt) if asked.max_tokens else len(asked.prompt) - 1 if scored else 0
        size = 1 if scored and asked.scored_by == "decode" else PART
        if scored and asked.prompt_from == 0:
            job.emit(Prompt(0, (None,)))
        for start in range(0, needed, size):
            part = asked.prompt[start : min(start + size, needed)]
            decoded = scored and asked.scored_by == "decode"
            computed = self.path.decode(session, part[0]) if decoded else self.path.prefill(session, part)
            logits = computed[-1]
            if scored:
                self._score_prompt(job, start, computed)
            yield
        if scored and not needed:
            yield
        if not asked.max_tokens:
            job.emit(Done("length"))
            return
        yield from self._generate(job, logits)

    def _score_prompt(self, job: Job, start: int, computed) -> None:
        """Scores of the tokens that follow the ones at `start` and on."""
        asked = job.asked
        first = max(start + 1, asked.prompt_from)
        tokens = list(asked.prompt[first : start + 1 + len(computed)])
        if tokens:
            rows = computed[first - start - 1 : first - start - 1 + len(tokens)]
            job.emit(Prompt(first, tuple(scores(rows, tokens, asked.prompt_top))))

    def _generate(self, job: Job, logits) -> Iterator[None]:
        asked, small = job.asked, self.small
        stops, counts = Stops(asked.stop, keep=asked.keep_stop), Counter()
        for position in range(asked.max_tokens):
            token = choose(logits, asked.sampling, position, counts)
            counts[token] += 1
            score = scores(logits[None], [token], asked.top)[0]
            if token in asked.stop_tokens or (token == small.EOS and not asked.ignore_eos):
                job.emit(Token(score, ""))
                job.emit(Done("stop", token, stops.flush()))
                return
            text, met = stops.feed("" if token < small.MARKS else small.SYMBOLS[token])
            job.emit(Token(score, text))
            if met is not None:
                job.emit(Done("stop", met))
                return
            if position + 1 < asked.max_tokens:
                yield
                logits = self.path.decode(job.session, token)[0]
        job.emit(Done("length", None, stops.flush()))
