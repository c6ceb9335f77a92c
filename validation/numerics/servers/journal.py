"""What has been scored: one line a piece, on the disk before the next is asked for, and never twice."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...errors import UserError
from ...records import Frozen
from .forms import Scored


class Piece(Frozen):
    """The scores of one stretch of one prompt by one arm."""

    arm: str
    prompt: str
    start: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it this piece and no other."""
        return self.arm, self.prompt, self.start

    @classmethod
    def of(cls, arm: str, prompt: str, start: int, scores: list[Scored]) -> "Piece":
        """From what a server answered."""
        return cls(
            arm=arm, prompt=prompt, start=start, tokens=tuple(s.token for s in scores),
            log_probs=tuple(s.log_prob for s in scores), top=tuple(s.top for s in scores),
        )  # fmt: skip


class Journal:
    """A file of pieces behind a line that says of what. A line that a stop cut off is taken away when it is opened."""

    def __init__(self, file: Path, about: dict[str, Any]) -> None:
        """Opens, or begins. UserError where it is about something else, or damaged before its end."""
        self.file, self._lock = file, threading.Lock()
        self.keys: set[tuple[str, str, int]] = set()
        """(arm, prompt, first token) of what is kept"""
        file.parent.mkdir(parents=True, exist_ok=True)
        data = file.read_bytes() if file.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        head, *lines = whole.splitlines() or [b""]
        if head:
            self._check(head, about)
        self._take(lines)
        self._out = file.open("r+b" if data else "w+b")
        self._out.truncate(len(whole))
        self._out.seek(0, os.SEEK_END)
        if not head:
            self._write(json.dumps(about, sort_keys=True))

    def close(self) -> None:
        """Closes the file."""
        self._out.close()

    def add(self, piece: Piece) -> None:
        """Keeps a piece. ValueError for one that is kept already; UserError where it cannot be written."""
        with self._lock:
            if piece.key in self.keys:
                raise ValueError(f"{piece.key} is kept already")
            self._write(piece.model_dump_json())
            self.keys.add(piece.key)

    def read(self) -> Iterator[Piece]:
        """All pieces, from the disk."""
        return kept(self.file)[1]

    def _write(self, line: str) -> None:
        try:
            self._out.write(line.encode() + b"\n")
            self._out.flush()
            os.fsync(self._out.fileno())
        except OSError as error:
            raise UserError(f"{self.file}: {error.strerror}", "make room, then run the same command again") from error

    def _check(self, head: bytes, about: dict[str, Any]) -> None:
        try:
            kept = json.loads(head)
        except ValueError as error:
            raise UserError(f"{self.file}:1: damaged", "remove the file, and start over") from error
        wanted = json.loads(json.dumps(about))
        if kept != wanted:
            raise UserError(
                f"{self.file} is about something else: {_difference(kept, wanted)}",
                "name another directory with --out, or start over with --fresh",
            )

    def _take(self, lines: list[bytes]) -> None:
        for number, line in enumerate(lines, 2):
            key = _piece(self.file, number, line).key
            if key in self.keys:
                raise UserError(f"{self.file}:{number}: {key} is there twice", "start over with --fresh")
            self.keys.add(key)


def _difference(kept: Any, wanted: Any, where: tuple[str, ...] = ()) -> str:
    """The first thing that two headers say otherwise, by its place; servers that changed places as just that."""
    if isinstance(kept, dict) and isinstance(wanted, dict):
        if where == ("servers",) and kept.keys() == wanted.keys() and sorted(map(str, kept.values())) == sorted(map(str, wanted.values())):
            return "its servers have changed places"
        absent = object()
        name = next(name for name in {**kept, **wanted} if kept.get(name, absent) != wanted.get(name, absent))
        return _difference(kept.get(name), wanted.get(name), (*where, name))
    return f"{'.'.join(where)} was {kept!r} there, and is {wanted!r} now"


def kept(file: Path) -> tuple[dict[str, Any], Iterator[Piece]]:
    """What a journal is about, and its pieces as they are read. UserError where there is none."""
    try:
        lines = file.open("rb")
        about = json.loads(next(lines))
    except (OSError, StopIteration, ValueError) as error:
        raise UserError(f"{file}: no records of a comparison", "run one first") from error

    def pieces() -> Iterator[Piece]:
        with lines:
            for number, line in enumerate(lines, 2):
                if line.endswith(b"\n"):
                    yield _piece(file, number, line)

    return about, pieces()


def _piece(file: Path, number: int, line: bytes) -> Piece:
    try:
        return Piece.model_validate_json(line)
    except ValidationError as error:
        raise UserError(f"{file}:{number}: damaged", "start over with --fresh") from error
