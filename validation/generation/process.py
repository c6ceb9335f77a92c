"""The handle on a path's process."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from .paths import Backend, Card, Setup

# What the process may see of the caller's environment: where programs and drivers lie, and how many threads to use.
_PASSED = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "TMPDIR", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_DIR",
    "OMP_NUM_THREADS",
)  # fmt: skip
_DTYPES = {"torch.float32": torch.float32, "torch.float64": torch.float64}


class PathFailed(Exception):
    """The path's process ended, or could not compute. The text says what."""


class PathProcess:
    """A `Path` in another process: a context manager. Its methods may be called from one thread at a time."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.card: Card | None = None
        self.launches: dict[str, int] = {}
        """As `Path`, as of the last answer"""
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "PathProcess":
        """Starts the process and loads the model. Raises UserError, or PathFailed."""
        mine, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        if self.setup.backend is Backend.LATENCY_SPECIALIZED and self.setup.device == "cpu":
            environment["TRITON_INTERPRET"] = "1"
        arguments = f"{theirs.fileno()}, {self.setup.model_dump_json()!r}"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__package__}.worker import main; main({arguments})"],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the server, which ends this process in its own time
            )  # fmt: skip
        self._pipe = Connection(mine.detach())
        try:
            self.card = Card.model_validate(self._ask("load"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        if self._process is None:
            return
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        """A fresh process in place of one that failed. What sessions held is lost."""
        self.__exit__()
        self.__enter__()

    @property
    def pid(self) -> int | None:
        """Of the process while it is there."""
        return self._process.pid if self._process else None

    def open(self, session: int) -> None:
        """As `Path`. Raises PathFailed, as all of these."""
        self._ask("open", session)

    def prefill(self, session: int, tokens: Sequence[int]) -> Tensor:
        """As `Path`."""
        return _tensor(self._ask("prefill", session, list(tokens)))

    def decode(self, session: int, token: int) -> Tensor:
        """As `Path`."""
        return _tensor(self._ask("decode", session, token))

    def _ask(self, command: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((command, arguments))
            outcome, *value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise PathFailed(f"the path's process ended during {command!r}: {error or 'no answer'}") from error
        if outcome == "wrong":
            raise UserError(*value)
        if outcome != "ok":
            raise PathFailed(value[0])
        value, self.launches = value
        return value


def _tensor(packed: tuple[str, tuple[int, ...], bytes]) -> Tensor:
    dtype, shape, data = packed
    return torch.frombuffer(bytearray(data), dtype=_DTYPES[dtype]).view(shape)
