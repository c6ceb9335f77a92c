"""Memory of the interpreted program: every lane of every access is checked before it happens.

The interpreter turns pointers into addresses of this process, where an access out of bounds would silently read or
corrupt a neighbour. Only the buffers that a launch was given may be touched, and only the writable ones written.
"""

from bisect import bisect_right
from dataclasses import asdict, dataclass

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from .narrow import decode, encode


@dataclass(frozen=True)
class Range:
    """Addresses [start, end) of one buffer of a launch, and the kernel's parameters that point into it."""

    buffer: str
    parameters: tuple[str, ...]
    start: int
    end: int
    writable: bool


@dataclass(frozen=True)
class Violation:
    """The first forbidden access of a run.

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
        return asdict(self)

    def __str__(self) -> str:
        where = {
            "before": f"{self.distance} bytes before the start of",
            "past": f"{self.distance} bytes past the end of",
            "read_only": "to the read-only",
            "misaligned": "not aligned to its size in",
        }[self.fault]
        return (
            f"kernel {self.kernel}, program {self.program}: {self.access} of {self.bytes} bytes {where} {self.parameter} "
            f"(buffer {self.buffer}, {self.buffer_bytes} bytes), {self.lanes} lane{'s' if self.lanes != 1 else ''}"
        )


class MemoryViolation(Exception):
    """An access outside what the launch may touch; nothing of the access was carried out."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class NotInterpretable(Exception):
    """The kernel uses something that only a GPU can run."""


class Memory:
    """The address ranges that the running launch may touch, and how many bytes its active lanes moved."""

    def __init__(self, kernel: str, ranges: list[Range]) -> None:
        self.kernel = kernel
        self.ranges = sorted(ranges, key=lambda r: r.start)
        self._starts = [r.start for r in self.ranges]
        self.bytes_loaded = 0
        self.bytes_stored = 0

    def check(self, addresses: np.ndarray, mask: np.ndarray | None, itemsize: int, access: str) -> None:
        """Raises MemoryViolation unless each active lane's `itemsize` bytes at `addresses` (uint64) are allowed."""
        lanes = addresses.size if mask is None else np.count_nonzero(np.broadcast_to(mask, addresses.shape))
        if access == "read":
            self.bytes_loaded += lanes * itemsize
        else:
            self.bytes_stored += lanes * itemsize
        if addresses.size == 0 or self._inside(addresses, itemsize, access):
            return
        # Masked-off lanes may point anywhere: look again at the active ones alone.
        active = addresses.ravel()
        if mask is not None:
            active = active[np.broadcast_to(mask, addresses.shape).ravel()]
        if active.size == 0 or self._inside(active, itemsize, access):
            return
        faults = self._faulty(active, itemsize, access)
        if faults.any():
            raise MemoryViolation(self._describe(active, faults, itemsize, access))

    def _inside(self, addresses: np.ndarray, itemsize: int, access: str) -> bool:
        """Whether lowest and highest address lie in one allowed range, aligned: the case of nearly every access."""
        low, high = int(addresses.min()), int(addresses.max())
        index = bisect_right(self._starts, low) - 1
        if index < 0 or low % itemsize:
            return False
        found = self.ranges[index]
        if high + itemsize > found.end or not (found.writable or access == "read"):
            return False
        # Lanes of one access nearly always differ by whole elements; a bitcast pointer plus bytes need not.
        return itemsize == 1 or not np.bitwise_and(addresses, np.uint64(itemsize - 1)).any()

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

        nearest = min(self.ranges, key=gap)
        if gap(nearest) == 0:
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


class _Current:
    """The memory of the launch in progress; none between launches, when any access is an error."""

    memory: Memory | None = None


def enter(memory: Memory) -> None:
    """Makes `memory` what the interpreter's accesses are checked against, until `leave`."""
    _Current.memory = memory


def leave() -> None:
    """Ends what `enter` began."""
    _Current.memory = None


def _stored_type(pointers: TensorHandle) -> tuple[tl.dtype, np.dtype]:
    element = pointers.get_element_ty()
    return element, interpreter._get_np_dtype(element)


def load(self, pointers: TensorHandle, *_policy, **_options) -> TensorHandle:
    """Unmasked load."""
    element, stored = _stored_type(pointers)
    _Current.memory.check(pointers.data, None, stored.itemsize, "read")
    shape = pointers.data.shape
    return TensorHandle(native.load(pointers.data, np.ones(shape, np.bool_), np.zeros(shape, stored), stored), element)


def masked_load(self, pointers: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *_policy, **_options):
    """Load of the lanes whose mask is set; the others get `other`, or 0."""
    element, stored = _stored_type(pointers)
    active = np.asarray(mask.data)
    _Current.memory.check(pointers.data, active, stored.itemsize, "read")
    fill = np.zeros(pointers.data.shape, stored) if other is None else other.data
    return TensorHandle(native.load(pointers.data, active, fill, stored), element)


def store(self, pointers: TensorHandle, value: TensorHandle, *_policy, **_options) -> None:
    """Unmasked store."""
    _Current.memory.check(pointers.data, None, _stored_type(pointers)[1].itemsize, "write")
    native.store(pointers.data, value.data, np.ones(pointers.data.shape, np.bool_))


def masked_store(self, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *_policy, **_options) -> None:
    """Store of the lanes whose mask is set."""
    active = np.asarray(mask.data)
    _Current.memory.check(pointers.data, active, _stored_type(pointers)[1].itemsize, "write")
    native.store(pointers.data, value.data, active)


_stock_rmw = InterpreterBuilder.create_atomic_rmw
_stock_cas = InterpreterBuilder.create_atomic_cas


def atomic_rmw(self, op, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, sem, scope) -> TensorHandle:
    """Read-modify-write of the active lanes, one after another. Returns the old values."""
    dtype = value.dtype.scalar
    active = np.asarray(mask.data)
    _Current.memory.check(pointers.data, active, value.data.itemsize, "write")
    exchange = op == ir.ATOMIC_OP.XCHG and dtype.is_floating()
    if not exchange and not (dtype.is_bf16() and op == ir.ATOMIC_OP.FADD):
        return _stock_rmw(self, op, pointers, value, mask, sem, scope)
    addresses, values, active = np.broadcast_arrays(pointers.data, value.data, active)
    old = np.zeros(values.shape, values.dtype)
    one = np.ones(1, np.bool_)
    for lane in zip(*np.nonzero(active), strict=True):
        address, operand = addresses[lane].reshape(1), values[lane].reshape(1)
        before = native.load(address, one, np.zeros(1, values.dtype), values.dtype)
        after = operand if exchange else encode(decode(before, dtype) + decode(operand, dtype), dtype)
        native.store(address, after, one)
        old[lane] = before[0]
    return TensorHandle(old, dtype)


def atomic_cas(self, pointers: TensorHandle, compare: TensorHandle, value: TensorHandle, sem, scope) -> TensorHandle:
    """Compare-and-swap. Returns the old values."""
    _Current.memory.check(pointers.data, None, value.data.itemsize, "write")
    return _stock_cas(self, pointers, compare, value, sem, scope)


def atomic_poll(self, *_arguments):
    """Programs run one after another here, so waiting for another one may never end."""
    raise NotInterpretable("tl.atomic_poll waits for other programs, which run one after another here")


METHODS = {
    "create_load": load,
    "create_masked_load": masked_load,
    "create_store": store,
    "create_masked_store": masked_store,
    "create_atomic_rmw": atomic_rmw,
    "create_atomic_cas": atomic_cas,
    "create_atomic_poll": atomic_poll,
}


def install() -> None:
    """Puts the checked accesses into Triton's interpreter."""
    for name, method in METHODS.items():
        setattr(InterpreterBuilder, name, method)
