"""Where one arm's answers go as they come: each is on disk, whole, before the next is taken in, and is never asked again.

A directory of three files. `arm.json` says which arm this is, and another one cannot go on in its place.
`answers.jsonl` grows by one line an answer. `sessions.jsonl` holds what the model counted of its kernels when a session
began and ended, so that launches add up over sessions, whichever way one ended.
"""

import fcntl
import json
import os
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import ValidationError

from ..errors import UserError
from ..durable import GrowingFile
from ..records import Frozen
from .answers import Answer
from .generation import Counters

HEAD, ANSWERS, SESSIONS = "arm.json", "answers.jsonl", "sessions.jsonl"
_FREE = "free space or correct the permissions, then run the same command again: no answer is lost"


class Session(Frozen):
    """One line of `sessions.jsonl`."""

    event: Literal["begin", "end"]
    counters: Counters


class Journal:
    """One arm's answers on disk, open for one process at a time. Use as a context manager."""

    def __init__(self, place: Path, head: dict[str, object]) -> None:
        """Opens or begins the journal of the arm that `head` describes.

        UserError: it belongs to another arm, another process has it, a line in it cannot be read, no space.
        """
        self._place = place
        try:
            place.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(place, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UserError(f"{place}: another run is at work on it", "wait for it, or end it") from None
        try:
            self._begin(head)
            self._answers = _Lines(place / ANSWERS)
            self._sessions = _Lines(place / SESSIONS)
            self.answers = {}
            for number, line in enumerate(self._answers.held, 1):
                answer = _read(Answer, line, place / ANSWERS, number)
                if (answer.item, answer.repeat) in self.answers:
                    raise UserError(f"{place / ANSWERS}:{number}: answered twice", "begin in a new directory")
                self.answers[answer.item, answer.repeat] = answer
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lines in (self._answers, self._sessions):
            lines.close()
        os.close(self._lock)

    answers: dict[tuple[str, int], Answer]
    """By item and repeat."""

    def add(self, answer: Answer) -> None:
        """Keeps one more answer. ValueError where it is there; UserError where it cannot be written: it is not kept."""
        place = answer.item, answer.repeat
        if place in self.answers:
            raise ValueError(f"{place} is answered")
        self._answers.append(answer.model_dump_json())
        self.answers[place] = answer

    def session(self, event: Literal["begin", "end"], counters: Counters) -> None:
        """Keeps what the model counted at an `event` of a session."""
        self._sessions.append(Session(event=event, counters=counters).model_dump_json())

    def counted(self) -> Counters:
        """What was counted while this arm's answers were made, over all sessions."""
        return total([_read(Session, line, self._place / SESSIONS, n) for n, line in enumerate(self._sessions.held, 1)])

    def _begin(self, head: dict[str, object]) -> None:
        path, text = self._place / HEAD, json.dumps(head, indent=2, sort_keys=True) + "\n"
        if path.exists():
            held = path.read_text("utf-8")
            if held != text:
                odd = _odd(held, head)
                raise UserError(
                    f"{self._place} holds an arm of another run: {odd} differs", "choose another directory for this one"
                )
            return
        temporary = path.with_suffix(".new")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            raise _unwritable(path, error) from error


def total(sessions: list[Session]) -> Counters:
    """Launches while a session ran, added up, from readings of counters that start at 0 with their process.

    A session that was killed has no end: it runs to the next one's begin. A reading below the one before comes from a
    restarted process, and counts from 0. One reading without a count makes the launches unknown; forced acceptance once
    is forced.
    """
    seen = [one.counters for one in sessions]
    forced = {one.acceptance_forced for one in seen}
    accepted = True if True in forced else (None if None in forced or not forced else False)
    if len(seen) < 2 or any(one.kernels is None for one in seen):
        return Counters(kernels=None, acceptance_forced=accepted)
    launches = dict.fromkeys(seen[0].kernels or {}, 0)
    for before, after in pairwise(sessions):
        idle = before.event == "end"
        for name, count in (after.counters.kernels or {}).items():
            was = (before.counters.kernels or {}).get(name, 0)
            launches[name] = launches.get(name, 0) + (0 if idle else count - was if count >= was else count)
    return Counters(kernels=launches, acceptance_forced=accepted)


class _Lines:
    """A growing file, with its lines; what cannot be written is the user's to make room for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = GrowingFile(path, 0o600)
        except OSError as error:
            raise _unwritable(path, error) from error
        self.held = [line.decode("utf-8", "replace") for line in self._file.held]

    def append(self, line: str) -> None:
        try:
            self._file.append(line)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self.held.append(line)

    def close(self) -> None:
        self._file.close()


def _read(kind: type[Frozen], line: str, path: Path, number: int):
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        raise UserError(f"{path}:{number}: is no record of an answer", "remove the line, and it is asked again") from None


def _odd(held: str, head: dict[str, object]) -> str:
    try:
        data = json.loads(held)
        return next((key for key in sorted(head) if data.get(key) != head[key]), "its form")
    except (ValueError, AttributeError):
        return HEAD


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror or error}", _FREE)
