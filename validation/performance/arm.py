"""The handle on one path's process: laid out, captured and timed there, never here."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..contracts.grid import CellSpec
from ..records import Frozen
from ..timing.plausibility import Fault, Reading
from ..timing.session import Replay, differing

Role = Literal["stock", "specialised", "bench"]
Packed = tuple[str, tuple[int, ...], bytes]
"""A tensor on its way through a pipe: element type, shape, contents"""
DEADLINE_SECONDS = 600
# What the process may see of the caller's environment: where programs and drivers lie, nothing that tunes a library.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "TMPDIR", "CUDA_VISIBLE_DEVICES", "TRITON_CACHE_DIR")


class ArmFailed(Exception):
    """A path's process said that something does not work, or ended. The text says what."""


class Laid(Frozen):
    """What laying out a cell gave."""

    kernels: tuple[str, ...] = Field(description="of one call, from its captured graph; copies and fills behind them")
    prepare_seconds: float
    first_call_seconds: float
    extra_bytes: int
    calls: tuple[tuple[str, str], ...]


class Arm:
    """One path in a process of its own: a context manager, and a `session.Contestant` once a cell is laid out."""

    def __init__(
        self, role: Role, model: str, directory: Path, *, worker: str = f"{__package__}.arm_worker",
        environment: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        """`environment`: what the process gets beside where programs and drivers lie."""
        self.name, self._model, self._directory, self._worker = role, model, directory, worker
        self._environment = dict(environment)
        self.slots = 0

    def __enter__(self) -> "Arm":
        mine, theirs = socket.socketpair()
        arguments = f"{theirs.fileno()}, {self.name!r}, {self._model!r}, {str(self._directory)!r}"
        code = f"import importlib; importlib.import_module({self._worker!r}).main({arguments})"
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ} | self._environment
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

    def restart(self) -> None:
        """A fresh process in place of one that ended."""
        self.__exit__()
        self.__enter__()

    def machine(self) -> dict[str, str]:
        """GPU, driver, versions and switches of the process."""
        return self._ask("machine")

    def ceiling(self) -> float:
        """Bytes per second of one large read on this card, now."""
        return self._ask("ceiling")

    def lay_out(self, spec: CellSpec, hardware: str, seeds: Sequence[int]) -> Laid:
        """Draws one copy of the cell's tensors a seed, binds the path to each, runs it once, and captures a graph of
        all copies. Raises ArmFailed."""
        self.slots = len(seeds)
        found = self._ask("lay_out", spec=spec.model_dump(mode="json"), hardware=hardware, seeds=list(seeds))
        return Laid.model_validate(found)

    def produced(self, selection: Mapping[str, Any], copy: int) -> dict[str, Any]:
        """Value -> its selected leading indices (CPU) after one call of copy number `copy` on what was drawn."""
        indices = {value: tensor.tolist() for value, tensor in selection.items()}
        return {value: unpacked(tensor) for value, tensor in self._ask("produced", selection=indices, copy=copy).items()}

    def free(self) -> None:
        """Gives the card back what the last cell took."""
        self._ask("free")

    def refresh(self, seed: int) -> None:
        """As `session.Contestant`."""
        self._ask("refresh", seed=seed)

    def replay(self) -> Reading:
        """As `session.Contestant`."""
        event, host = self._ask("replay")
        return Reading(event_ns=event, host_ns=host)

    def digests(self) -> tuple[str, ...] | None:
        """As `session.Contestant`: nobody suspects the stock path."""
        return None if self.name == "stock" else tuple(self._ask("digests"))

    def verify(self, replays: Sequence[Replay]) -> Fault | None:
        """As `session.Contestant`: the same inputs again, launched one by one instead of from the graph."""
        if not replays:
            return None
        return differing(replays, [self._ask("rerun", seed=replay.seed) for replay in replays])

    def _ask(self, command: str, **arguments: Any) -> Any:
        try:
            self._pipe.send((command, arguments))
            if not self._pipe.poll(DEADLINE_SECONDS):
                raise ArmFailed(f"the {self.name} path did not answer {command!r} within {DEADLINE_SECONDS} s")
            outcome, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            what = f"the {self.name} path's process ended during {command!r} ({error or 'no answer'})"
            raise ArmFailed(what) from error
        if outcome != "ok":
            raise ArmFailed(value)
        return value


def packed(tensor: Any) -> Packed:
    """`tensor` as plain data: torch's own way through a pipe shares memory, for which processes need a common key."""
    import torch

    contents = tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), contents


def unpacked(data: Packed) -> Any:
    """The tensor that `packed` was given, on the CPU."""
    import torch

    dtype, shape, contents = data
    return torch.frombuffer(bytearray(contents), dtype=getattr(torch, dtype)).view(shape)
