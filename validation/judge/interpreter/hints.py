"""Promises that a kernel makes to the compiler, held against the values.

`tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy` and `tl.assume` change no result here, but compiled code relies
on them: a false one makes wide loads of misaligned or scattered elements. They cost nothing to check where all values
are known. `tl.device_assert` is a promise too: compiled without debugging it is nothing at all, so a kernel whose own
assertion fails would go on.
"""

import numpy as np
import triton.language as tl

from .violations import FailedAssertion, FalseHint


def _runs(values: np.ndarray, axis: int, step: int) -> np.ndarray:
    """True where an element along `axis` does not follow its predecessor by `step`: where a run begins."""
    begins = np.ones(values.shape, np.bool_)
    if values.shape[axis] > 1:
        inner = [slice(None)] * values.ndim
        inner[axis] = slice(1, None)
        # Unsigned values wrap, so a step backwards is no step of one either.
        begins[tuple(inner)] = np.diff(values, axis=axis) != step
    return begins


def _check(name: str, tensor: tl.tensor, promised: list[int]) -> None:
    values = tensor.handle.data
    size = 1
    if tensor.dtype.is_ptr():
        size = max(1, tensor.dtype.element_ty.primitive_bitwidth // 8)
    shape = tuple(_number(extent) for extent in tensor.shape) or (1,)
    values = np.broadcast_to(values, shape)
    for axis, number in enumerate(promised):
        if name == "multiple_of":
            # The compiler takes it of the first element of each contiguous run. Pointers are counted in bytes.
            wrong = _runs(values, axis, size) & (values % number != 0)
        else:
            # In groups of `number`: all but the first of a group must continue its run.
            position = np.arange(shape[axis]) % number
            inside = (position != 0).reshape([-1 if a == axis else 1 for a in range(len(shape))])
            wrong = _runs(values, axis, 0 if name == "max_constancy" else size) & inside
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise FalseHint(f"tl.{name}({number}) is false: element {where} along axis {axis} breaks the promise")


def _number(value) -> int:
    return int(getattr(value, "value", value))


def _promise(name: str):
    stock = getattr(tl, name)

    def promise(input, values):
        if isinstance(input, tl.tensor):
            plain = values if isinstance(values, list | tuple | tl.tuple) else [values]
            _check(name, input, [_number(value) for value in plain])
        return stock(input, values)

    return promise


def _assume(condition):
    holds = condition.handle.data.all() if isinstance(condition, tl.tensor) else getattr(condition, "value", condition)
    if not holds:
        raise FalseHint("tl.assume is false for the values at hand")


def _device_assert(cond, msg="", mask=None):
    holds = _values(cond)
    if mask is not None:
        holds = holds | ~_values(mask)
    if not holds.all():
        where = tuple(int(i) for i in np.argwhere(~holds)[0]) if holds.ndim else ()
        said = getattr(msg, "value", msg)
        raise FailedAssertion(f"tl.device_assert fails, first at element {where}" + (f": {said}" if said else ""))


def _values(condition) -> np.ndarray:
    if isinstance(condition, tl.tensor):
        return condition.handle.data.astype(np.bool_)
    return np.asarray(getattr(condition, "value", condition), np.bool_)


def install() -> None:
    """Puts the checks in front of the language's hints."""
    for name in ("multiple_of", "max_contiguous", "max_constancy"):
        promise = _promise(name)
        for module in (tl, tl.core):
            setattr(module, name, promise)
    for module in (tl, tl.core):
        module.assume = _assume
        module.device_assert = _device_assert
