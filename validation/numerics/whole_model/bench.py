"""The handle on a process that carries out pieces of a run: paths in PyTorch are bound by Python, so threads would not do."""

from collections.abc import Callable
from typing import Any

from ...errors import UserError
from ...performance.arm import Arm, ArmFailed
from .pieces import Job, Say

_ASK_EVERY = 0.5
"""Seconds between looks at how far a piece is"""


class Stopped(Exception):
    """The run was stopped from outside; what is kept stays."""


class Bench(Arm):
    """A context manager around one process."""

    def __init__(self, job: Job) -> None:
        super().__init__("bench", job.contract, job.directory, worker=f"{__package__}.bench_worker")
        self._job = job

    def __enter__(self) -> "Bench":
        super().__enter__()
        self._answer("open", job=self._job.model_dump(mode="json"))
        return self

    def run(self, piece: str, say: Say, stopped: Callable[[], bool]) -> None:
        """Carries out a piece. Raises Stopped, having ended the process; UserError; ArmFailed."""
        self._answer("run", say, stopped, piece=piece)

    def _answer(
        self, command: str, say: Say = lambda piece, done, of: None, stopped: Callable[[], bool] = lambda: False, **arguments: Any
    ) -> None:  # fmt: skip
        try:
            self._pipe.send((command, arguments))
            while True:
                if stopped():
                    self._process.kill()
                    raise Stopped
                if not self._pipe.poll(_ASK_EVERY):
                    continue
                outcome, *what = self._pipe.recv()
                if outcome != "did":
                    break
                say(*what)
        except (EOFError, OSError) as error:
            raise ArmFailed(f"a process of the run ended during {command!r} ({error or 'no answer'})") from error
        if outcome == "wrong":
            raise UserError(*what)
        if outcome != "ok":
            raise ArmFailed(what[0])
