"""Memory of the interpreted program: every lane of every access is checked before it happens.

The interpreter turns pointers into addresses of this process, where an access out of bounds would silently read or
corrupt a neighbour. Only the buffers that a launch was given may be touched, and only the writable ones written.
"""

import ctypes
from bisect import bisect_right
from dataclasses import asdict, dataclass, field

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
    views: dict[np.dtype, np.ndarray] = field(default_factory=dict, compare=False, repr=False)


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
            f"kernel {self.kernel}, program {self.program}: {self.access} of {self.bytes} bytes {where} "
            f"{self.parameter} (buffer {self.buffer}, {self.buffer_bytes} bytes), lanes: {self.lanes}"
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


def _elements(found: Range, stored: np.dtype) -> np.ndarray:
    """The buffer as an array of `stored`: numpy gathers from it ten times faster than the native interpreter loads."""
    view = found.views.get(stored)
    if view is None:
        count = (found.end - found.start) // stored.itemsize
        raw = (ctypes.c_uint8 * (count * stored.itemsize)).from_address(found.start)
        view = found.views[stored] = np.frombuffer(raw, stored)
    return view


def _indices(addresses: np.ndarray, found: Range, itemsize: int) -> np.ndarray:
    return ((addresses - np.uint64(found.start)) >> np.uint64(itemsize.bit_length() - 1)).view(np.int64)


def load(self, pointers: TensorHandle, *_policy, **_options) -> TensorHandle:
    """Unmasked load."""
    element, stored = _stored_type(pointers)
    addresses = pointers.data
    found = _Current.memory.check(addresses, None, stored.itemsize, "read")
    if found is not None and not found.start % stored.itemsize:
        return TensorHandle(_elements(found, stored).take(_indices(addresses, found, stored.itemsize)), element)
    everywhere = np.ones(addresses.shape, np.bool_)
    return TensorHandle(native.load(addresses, everywhere, np.zeros(addresses.shape, stored), stored), element)


def masked_load(self, pointers: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *_policy, **_options):
    """Load of the lanes whose mask is set; the others get `other`, or 0 as NVIDIA's backend gives."""
    element, stored = _stored_type(pointers)
    addresses, active = pointers.data, np.asarray(mask.data)
    found = _Current.memory.check(addresses, active, stored.itemsize, "read")
    fill = np.zeros(addresses.shape, stored) if other is None else other.data
    if found is not None and not found.start % stored.itemsize:
        values = _elements(found, stored).take(_indices(addresses, found, stored.itemsize))
        return TensorHandle(values if active.all() else np.where(active, values, fill), element)
    return TensorHandle(native.load(addresses, active, fill, stored), element)


def store(self, pointers: TensorHandle, value: TensorHandle, *_policy, **_options) -> None:
    """Unmasked store."""
    _store(pointers, value.data, None)


def masked_store(self, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *_policy, **_options) -> None:
    """Store of the lanes whose mask is set."""
    active = np.asarray(mask.data)
    _store(pointers, value.data, None if active.all() else active)


def _store(pointers: TensorHandle, values: np.ndarray, active: np.ndarray | None) -> None:
    stored = _stored_type(pointers)[1]
    addresses = pointers.data
    found = _Current.memory.check(addresses, active, stored.itemsize, "write")
    if found is not None and active is None and values.shape == addresses.shape and not found.start % stored.itemsize:
        _elements(found, stored)[_indices(addresses, found, stored.itemsize)] = values
    else:
        native.store(addresses, values, np.ones(addresses.shape, np.bool_) if active is None else active)


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
