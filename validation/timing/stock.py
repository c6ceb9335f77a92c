"""The judge's handle on the stock path's process."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from safetensors.torch import load

from ..contracts.base import Workload
from .plausibility import Reading
from .session import STOCK, Replay

DEADLINE_SECONDS = 300
# What the process may see of the caller's environment: where programs and drivers lie, nothing that tunes a library.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "TMPDIR", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_DIR")


class StockFailed(Exception):
    """The stock path did not run: the judge's side is at fault, never the candidate."""


class StockProcess:
    """A clean process in which the stock path is timed. A context manager; itself a `session.Contestant`."""

    name = STOCK

    def __init__(self, model: str) -> None:
        self._model = model
        self.slots = 0
        self.launches = 0
        self._unread = 0
        self._loaded: set[str] = set()

    def __enter__(self) -> "StockProcess":
        mine, theirs = socket.socketpair()
        code = f"from {__package__} import stock_worker; stock_worker.main({theirs.fileno()}, {self._model!r})"
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        self._pipe = Connection(mine.detach())
        return self

    def __exit__(self, *error) -> None:
        self._pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def flags(self) -> Mapping[str, str]:
        """Versions and global switches of the process, for the evidence."""
        return self._ask("flags")

    def switches(self) -> Mapping[str, str]:
        """The switches that could slow or speed the stock path, as they stand now, for `hygiene.fault`."""
        return self._ask("switches")

    def ceiling(self, size: int = 800_000_000, repeats: int = 20) -> float:
        """Bytes per second of one large read on this card, now."""
        return self._ask("ceiling", size=size // 16384 * 16384, repeats=repeats)

    def load(self, op: str) -> None:
        """Has the process import and start what the op's stock path needs, for seconds; does not wait for it.

        What fails here fails again, and is told, when the path is captured.
        """
        if op in self._loaded:
            return
        self._loaded.add(op)
        try:
            self._pipe.send(("load", {"op": op}))
            self._unread += 1
        except OSError:
            pass

    def capture(self, op: str, workload: Workload, distribution: str, seeds: Sequence[int], slots: int) -> None:
        """Lays out `slots` copies and captures the graph. Raises StockFailed when the path cannot run."""
        self.slots = slots
        self.launches = self._ask(
            "capture", op=op, workload=workload.model_dump(mode="json"), distribution=distribution, seeds=list(seeds),
            slots=slots,
        )  # fmt: skip

    def refresh(self, seed: int) -> None:
        """As `session.Contestant`."""
        self._ask("refresh", seed=seed)

    def replay(self) -> Reading:
        """As `session.Contestant`."""
        event, host = self._ask("replay")
        return Reading(event_ns=event, host_ns=host)

    def digests(self) -> None:
        """Nobody suspects the stock path; `produced` lets its results be held against the oracle."""
        return None

    def verify(self, replays: Sequence[Replay]) -> None:
        """As `session.Contestant`."""
        return None

    def produced(self, slot: int) -> Mapping[str, object]:
        """Tensors (CPU, contiguous) that the last replay left in `slot`."""
        return load(self._ask("produced", slot=slot))

    def _ask(self, command: str, **arguments):
        try:
            self._pipe.send((command, arguments))
            while self._unread:
                if not self._pipe.poll(DEADLINE_SECONDS):
                    raise StockFailed(f"the stock path's process was not ready within {DEADLINE_SECONDS} s")
                self._pipe.recv()
                self._unread -= 1
            if not self._pipe.poll(DEADLINE_SECONDS):
                raise StockFailed(f"the stock path's process did not answer {command!r} within {DEADLINE_SECONDS} s")
            outcome, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise StockFailed(f"the stock path's process ended during {command!r} ({error or 'no answer'})") from error
        if outcome != "ok":
            raise StockFailed(value)
        return value
