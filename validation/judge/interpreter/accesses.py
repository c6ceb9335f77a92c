"""The interpreter's loads, stores and atomics, on checked and logged memory (memory.py)."""

import ctypes

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from .clock import Started
from .memory import Memory, Range
from .narrow import decode, encode
from .violations import NotInterpretable


class _Current:
    """The memory of the launch in progress; none between launches, when any access is an error."""

    memory: Memory | None = None


def enter(memory: Memory) -> None:
    """Makes `memory` what the interpreter's accesses are checked against, until `leave`."""
    _Current.memory = memory


def leave() -> None:
    """Ends what `enter` began."""
    _Current.memory = None


def begin_program(launch: int, index: tuple[int, int, int]) -> None:
    """The next accesses are those of program `index` of launch number `launch`."""
    _Current.memory.log.clock.begin_program(Started(launch, _Current.memory.kernel, index))


def wait_for_dependency(*_arguments, **_options) -> None:
    """gdc_wait: the running program is now ordered after the launch before its own."""
    _Current.memory.log.clock.wait_for_dependency()


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
    return _load(pointers, None, None)


def masked_load(self, pointers: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *_policy, **_options):
    """Load of the lanes whose mask is set; the others get `other`, or 0 as NVIDIA's backend gives."""
    return _load(pointers, np.asarray(mask.data), other)


def _load(pointers: TensorHandle, active: np.ndarray | None, other: TensorHandle | None) -> TensorHandle:
    stored = _stored_type(pointers)[1]
    return _fetch(pointers, active, other, _Current.memory.read(pointers.data, active, stored.itemsize))


def _fetch(
    pointers: TensorHandle, active: np.ndarray | None, other: TensorHandle | None, found: Range | None
) -> TensorHandle:
    """The values at checked addresses; `found` is the range that holds them all, masked-off lanes included."""
    element, stored = _stored_type(pointers)
    addresses = pointers.data
    if found is not None and not found.start % stored.itemsize:
        values = _elements(found, stored).take(_indices(addresses, found, stored.itemsize))
        if active is None or active.all():
            return TensorHandle(values, element)
        return TensorHandle(np.where(active, values, np.zeros((), stored) if other is None else other.data), element)
    fill = np.zeros(addresses.shape, stored) if other is None else other.data
    everywhere = np.ones(addresses.shape, np.bool_) if active is None else active
    return TensorHandle(native.load(addresses, everywhere, fill, stored), element)


def store(self, pointers: TensorHandle, value: TensorHandle, *_policy, **_options) -> None:
    """Unmasked store."""
    _store(pointers, value.data, None)


def masked_store(self, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *_policy, **_options) -> None:
    """Store of the lanes whose mask is set."""
    active = np.asarray(mask.data)
    _store(pointers, value.data, None if active.all() else active)


def _store(pointers: TensorHandle, values: np.ndarray, active: np.ndarray | None) -> None:
    addresses = pointers.data
    values = np.broadcast_to(values, addresses.shape)
    found = _Current.memory.write(addresses, active, values)
    _place(addresses, values, active, found)
    for shadow, lanes in _Current.memory.shadowed(found, addresses, active) if addresses.size > 1 else ():
        written = addresses.ravel()[lanes]
        if found is not None and not found.start % values.itemsize:
            held = _elements(found, values.dtype).take(_indices(written, found, values.itemsize))
        else:
            held = native.load(written, np.ones(written.shape, np.bool_), np.zeros(written.shape, values.dtype), values.dtype)
        _Current.memory.log.same_lanes(shadow, written, values.ravel()[lanes], held)


def _place(addresses: np.ndarray, values: np.ndarray, active: np.ndarray | None, found: Range | None) -> None:
    """Stores to checked addresses."""
    stored = values.dtype
    if found is not None and active is None and not found.start % stored.itemsize:
        _elements(found, stored)[_indices(addresses, found, stored.itemsize)] = values
    else:
        native.store(addresses, values, np.ones(addresses.shape, np.bool_) if active is None else active)


def _atomic(addresses: np.ndarray, active: np.ndarray | None, itemsize: int, kind: str, sem, scope) -> Range | None:
    """Checks and logs an atomic "load", "store" or "update" as one segment; hands clocks over as `sem` says."""
    memory = _Current.memory
    log = memory.log
    found = memory.check(addresses, active, itemsize, "read" if kind == "load" else "write")
    touched = [(shadow, addresses.ravel()[lanes]) for shadow, lanes in memory.shadowed(found, addresses, active)]
    log.clock.begin_atomic()
    for shadow, at in touched:
        if kind != "store":
            log.read(shadow, at, itemsize, atomic=True)
        if kind != "load":
            log.write(shadow, at, itemsize, None)
    shared = scope != ir.MEM_SYNC_SCOPE.CTA
    acquires = shared and kind != "store" and sem in (ir.MEM_SEMANTIC.ACQUIRE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
    releases = shared and kind != "load" and sem in (ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
    acquired = 0
    for shadow, at in touched:
        release = ("replace" if kind == "store" else "add") if releases else ""
        acquired |= log.synchronise(shadow, at, itemsize, acquires, release)
    log.clock.end_atomic(acquired)
    return found


_stock_rmw = InterpreterBuilder.create_atomic_rmw
_stock_cas = InterpreterBuilder.create_atomic_cas


def atomic_rmw(self, op, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, sem, scope) -> TensorHandle:
    """Read-modify-write of the active lanes, one after another. Returns the old values."""
    dtype = value.dtype.scalar
    active = np.asarray(mask.data)
    _atomic(pointers.data, active, value.data.itemsize, "update", sem, scope)
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
    _atomic(pointers.data, None, value.data.itemsize, "update", sem, scope)
    return _stock_cas(self, pointers, compare, value, sem, scope)


def atomic_load(self, pointers: TensorHandle, mask: TensorHandle, sem, scope) -> TensorHandle:
    """Atomic load of the active lanes."""
    active = np.asarray(mask.data)
    found = _atomic(pointers.data, active, _stored_type(pointers)[1].itemsize, "load", sem, scope)
    return _fetch(pointers, active, None, found)


def atomic_store(self, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, sem, scope) -> None:
    """Atomic store of the active lanes."""
    active = np.asarray(mask.data)
    values = np.broadcast_to(value.data, pointers.data.shape)
    found = _atomic(pointers.data, active, values.itemsize, "store", sem, scope)
    _place(pointers.data, values, None if active.all() else active, found)


def atomic_poll(self, *_arguments):
    """Programs run one after another here, so waiting for another one may never end."""
    raise NotInterpretable("tl.atomic_poll waits for other programs, which run one after another here")


def pointer_to_integer(self, *_arguments):
    """An address as a number: results could follow it, and the judge's addresses are not those of a server."""
    raise NotInterpretable("a kernel turns a pointer into an integer; results may not depend on where a buffer lies")


METHODS = {
    "create_ptr_to_int": pointer_to_integer,
    "create_load": load,
    "create_masked_load": masked_load,
    "create_store": store,
    "create_masked_store": masked_store,
    "create_atomic_rmw": atomic_rmw,
    "create_atomic_cas": atomic_cas,
    "create_atomic_load": atomic_load,
    "create_atomic_store": atomic_store,
    "create_atomic_poll": atomic_poll,
}


def install() -> None:
    """Puts the checked accesses into Triton's interpreter."""
    for name, method in METHODS.items():
        setattr(InterpreterBuilder, name, method)
