"""What a person sees while a command runs: lines on standard output, progress on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .agents.protocol import Evaluation


class Progress:
    """Progress that nobody watches."""

    def start(self, note: str) -> None:
        """A round starts."""

    def ruled(self, evaluation: "Evaluation") -> None:
        """A round has its verdict."""


class Voice:
    """Speaks unless `quiet` (with --json, standard output is data)."""

    def __init__(self, *, quiet: bool = False, to: TextIO | None = None) -> None:
        """`to`: where lines go, by default standard output."""
        self.quiet, self._to = quiet, to

    def say(self, line: str) -> None:
        """One line for the person at the terminal."""
        if not self.quiet:
            print(line, file=self._to, flush=True)

    @contextmanager
    def progress(self, rounds: int, done: int) -> Iterator[Progress]:
        """A bar over `rounds` on standard error, where that is a terminal."""
        if self.quiet or not sys.stderr.isatty():
            yield Progress()
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        note = TextColumn("{task.description}")
        columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), note)
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            yield _Bar(bar, bar.add_task("", total=rounds, completed=done))


class _Bar(Progress):
    def __init__(self, bar, task) -> None:
        self._bar, self._task = bar, task

    def start(self, note: str) -> None:
        from rich.markup import escape

        self._bar.update(self._task, description=escape(note))

    def ruled(self, evaluation: "Evaluation") -> None:
        self._bar.advance(self._task)
