"""What a candidate's `launch` and `prepare` receive as `ctx`: device facts, streams and roles. Nothing else."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from ..pack import Role

MAIN = "main"


@dataclass(frozen=True)
class Hardware:
    """Facts of the device that the plan is made for."""

    name: str
    capability: int
    """Compute capability without the dot: 90 or 103."""
    multiprocessors: int
    max_shared: int
    """Bytes of shared memory that one block may use."""


class Context(Protocol):
    """The same object shape at recording and in serving. A launch without any `with` goes to stream "main"."""

    hardware: Hardware

    def stream(self, name: str) -> AbstractContextManager[None]:
        """Launches inside go to stream `name`, after everything launched so far on the enclosing stream."""

    def wait(self, name: str) -> None:
        """The next launch on the current stream starts after everything launched so far on stream `name`."""

    def prefetch(self) -> AbstractContextManager[None]:
        """Launches inside only warm caches: they write nothing."""


class RecordingContext:
    """The recorder's Context: keeps which stream and role the next launch has."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.current = MAIN
        self.role = Role.COMPUTE
        self._waits: dict[str, list[str]] = {}
        self._launched: set[str] = set()

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        enclosing, self.current = self.current, name
        self._add_wait(enclosing)
        try:
            yield
        finally:
            self.current = enclosing

    def wait(self, name: str) -> None:
        if name not in self._launched:
            raise ValueError(f"wait({name!r}): nothing was launched on that stream; known: {sorted(self._launched)}")
        self._add_wait(name)

    @contextmanager
    def prefetch(self) -> Iterator[None]:
        before, self.role = self.role, Role.PREFETCH
        try:
            yield
        finally:
            self.role = before

    def take_waits(self) -> tuple[str, ...]:
        """The waits of a launch on the current stream, which is hereby launched."""
        self._launched.add(self.current)
        return tuple(self._waits.pop(self.current, ()))

    def _add_wait(self, name: str) -> None:
        waits = self._waits.setdefault(self.current, [])
        if name != self.current and name in self._launched and name not in waits:
            waits.append(name)
