"""Why the checked memory stops a run: what a launch did that a GPU may not forgive."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Violation:
    """The first access of a run outside of what its launch may touch.

    `distance` counts bytes from the nearer end of the nearest buffer to the access: before its start, or past its end
    (0 is the first byte past it); it is 0 for an access inside the buffer that is misaligned or not permitted.
    """

    kernel: str
    program: tuple[int, int, int]
    access: str
    bytes: int
    parameter: str
    buffer: str
    buffer_bytes: int
    fault: str
    distance: int
    lanes: int

    def as_dict(self) -> dict:
        """Plain data for the answer."""
        return asdict(self)

    def __str__(self) -> str:
        where = {
            "before": f"{self.distance} bytes before the start of",
            "past": f"{self.distance} bytes past the end of",
            "read_only": "to the read-only",
            "misaligned": "not aligned to its size in",
        }[self.fault]
        return (
            f"kernel {self.kernel}, program {self.program}: {self.access} of {self.bytes} bytes {where} "
            f"{self.parameter} (buffer {self.buffer}, {self.buffer_bytes} bytes), lanes: {self.lanes}"
        )


@dataclass(frozen=True)
class Conflict:
    """The first access of a run that is inside its buffers and still not allowed there, or not then.

    `reason` is a stable id: `race.*` names `other` (what it conflicts with); the rest is about the byte alone.
    """

    reason: str
    kernel: str
    program: tuple[int, int, int]
    access: str
    buffer: str
    byte: int
    what: str
    other: str = ""

    def as_dict(self) -> dict:
        """Plain data for the answer."""
        return asdict(self)

    def __str__(self) -> str:
        return f"kernel {self.kernel}, program {self.program}: {self.access} of {self.buffer}, byte {self.byte}: {self.what}"


class MemoryViolation(Exception):
    """An access outside what the launch may touch; nothing of the access was carried out."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class NotInterpretable(Exception):
    """The kernel uses something that only a GPU can run."""


class FalseHint(Exception):
    """The kernel promises the compiler something that is not so."""


class FailedAssertion(Exception):
    """An assertion of the kernel's own does not hold."""


class UndefinedShift(Exception):
    """A shift by a negative count, or by as many bits as the value has or more: compiled code may leave anything."""
