"""Memory of the interpreted program: every lane of every access is checked before it happens.

The interpreter turns pointers into addresses of this process, where an access out of bounds would silently read or
corrupt a neighbour. Only the buffers that a launch was given may be touched, and only the writable ones written. What
lies inside them is then held against the step's access log (access_log.py).
"""

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from triton.runtime import interpreter

from .access_log import AccessLog, Shadow
from .violations import MemoryViolation, Violation


@dataclass(frozen=True)
class Range:
    """Addresses [start, end) of one buffer of a launch, and the kernel's parameters that point into it."""

    buffer: str
    parameters: tuple[str, ...]
    start: int
    end: int
    writable: bool
    shadow: Shadow | None = field(default=None, compare=False, repr=False)
    views: dict[np.dtype, np.ndarray] = field(default_factory=dict, compare=False, repr=False)


class Memory:
    """The address ranges that the running launch may touch, and how many bytes its active lanes moved."""

    def __init__(self, kernel: str, ranges: list[Range], log: AccessLog) -> None:
        self.kernel = kernel
        self.log = log
        self.ranges = sorted(ranges, key=lambda r: r.start)
        self._starts = [r.start for r in self.ranges]
        self.bytes_loaded = 0
        self.bytes_stored = 0

    def read(self, addresses: np.ndarray, mask: np.ndarray | None, itemsize: int) -> Range | None:
        """Checks and logs a load. Returns and raises as `check`."""
        found = self.check(addresses, mask, itemsize, "read")
        if found is None or found.shadow is not None:
            for shadow, active in self.shadowed(found, addresses, mask):
                self.log.read(shadow, addresses.ravel()[active], itemsize)
        return found

    def write(self, addresses: np.ndarray, mask: np.ndarray | None, values: np.ndarray) -> Range | None:
        """Checks and logs a store of `values`, one for each address. Returns and raises as `check`."""
        found = self.check(addresses, mask, values.itemsize, "write")
        for shadow, active in self.shadowed(found, addresses, mask):
            self.log.write(shadow, addresses.ravel()[active], values.itemsize, values.ravel()[active])
        return found

    def shadowed(
        self, found: Range | None, addresses: np.ndarray, mask: np.ndarray | None
    ) -> list[tuple[Shadow, np.ndarray | slice]]:
        """The active lanes of a checked access (positions in the flat addresses), by the shadow of their buffer."""
        everywhere = mask is None or bool(mask.all())
        active = slice(None) if everywhere else np.flatnonzero(np.broadcast_to(mask, addresses.shape))
        if found is not None:
            return [(found.shadow, active)] if found.shadow is not None else []
        lanes = np.arange(addresses.size)[active]
        owners = np.searchsorted(np.array(self._starts, np.uint64), addresses.ravel()[lanes], "right") - 1
        touched = [(self.ranges[number].shadow, lanes[owners == number]) for number in np.unique(owners).tolist()]
        return [(shadow, lanes) for shadow, lanes in touched if shadow is not None]

    def check(self, addresses: np.ndarray, mask: np.ndarray | None, itemsize: int, access: str) -> Range | None:
        """The range that holds all lanes, masked-off ones included; None when the active ones are allowed but spread.

        `addresses` are uint64, one for the `itemsize` bytes of each lane. Raises MemoryViolation otherwise.
        """
        lanes = addresses.size if mask is None else int(np.count_nonzero(np.broadcast_to(mask, addresses.shape)))
        if access == "read":
            self.bytes_loaded += lanes * itemsize
        else:
            self.bytes_stored += lanes * itemsize
        if addresses.size == 0:
            return None
        whole = self._inside(addresses, itemsize, access)
        if whole is not None:
            return whole
        # Masked-off lanes may point anywhere: look again at the active ones alone.
        active = addresses.ravel()
        if mask is not None:
            active = active[np.broadcast_to(mask, addresses.shape).ravel()]
        if active.size and self._inside(active, itemsize, access) is None:
            faults = self._faulty(active, itemsize, access)
            if faults.any():
                raise MemoryViolation(self._describe(active, faults, itemsize, access))
        return None

    def _inside(self, addresses: np.ndarray, itemsize: int, access: str) -> Range | None:
        """The allowed range in which all of `addresses` lie, aligned: the case of nearly every access."""
        low, high = int(addresses.min()), int(addresses.max())
        index = bisect_right(self._starts, low) - 1
        if index < 0:
            return None
        found = self.ranges[index]
        if high + itemsize > found.end or not (found.writable or access == "read"):
            return None
        return found if not int(np.bitwise_or.reduce(addresses, axis=None)) & (itemsize - 1) else None

    def _faulty(self, active: np.ndarray, itemsize: int, access: str) -> np.ndarray:
        """True for each lane that may not be accessed."""
        allowed = np.zeros(active.shape, np.bool_)
        for r in self.ranges:
            if (r.writable or access == "read") and r.end - r.start >= itemsize:
                allowed |= (active >= np.uint64(r.start)) & (active <= np.uint64(r.end - itemsize))
        return ~allowed | (active % np.uint64(itemsize) != 0)

    def _describe(self, active: np.ndarray, faults: np.ndarray, itemsize: int, access: str) -> Violation:
        address = int(active[int(np.argmax(faults))])

        def gap(r: Range) -> int:
            return max(r.start - address, address + itemsize - r.end, 0)

        nearest = min(self.ranges, key=gap, default=Range("none", ("no parameter",), 0, 0, False))
        if nearest.start <= address and address + itemsize <= nearest.end:
            fault = "misaligned" if nearest.writable or access == "read" else "read_only"
            distance = 0
        elif address < nearest.start:
            fault, distance = "before", nearest.start - address
        else:
            fault, distance = "past", max(address - nearest.end, 0)
        return Violation(
            kernel=self.kernel, program=tuple(interpreter.interpreter_builder.grid_idx), access=access, bytes=itemsize,
            parameter=nearest.parameters[0], buffer=nearest.buffer, buffer_bytes=nearest.end - nearest.start,
            fault=fault, distance=distance, lanes=int(faults.sum()),
        )  # fmt: skip
