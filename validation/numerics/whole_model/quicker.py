"""Short cuts for the interpreter where a whole model is stepped through it: types made once, indices and bits in numpy.

They give what the corrected interpreter gives, bit for bit, and leave to it whatever they do not know. They are not part
of the interpreter: a verdict does not rest on them.
"""

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

from ...judge.interpreter import fast_path

_INT32, _BOOL = np.dtype(np.int32), np.dtype(np.bool_)
_TYPES = {_INT32: tl.int32, _BOOL: tl.int1}
_BITS = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_tensor = tl.tensor


def install() -> None:
    """Puts them in front of the interpreter, which has been corrected already."""
    if getattr(tl, "_interpreter_quicker", False):
        return
    _types_once()
    _ranges_once()
    tl.tensor.__getitem__ = _getitem(tl.tensor.__getitem__)
    for name, op in _BITS.items():
        attribute = f"__{name}__"
        setattr(tl.tensor, attribute, _bitwise(getattr(tl.tensor, attribute), op))
    tl._interpreter_quicker = True


def _types_once() -> None:
    """`tl.block_type` of one element type and shape is one object: making one spells its name."""
    stock, known = tl.block_type.__init__, {}

    def new(cls, element_ty: Any, shape: Any) -> Any:
        sizes = tuple(getattr(size, "value", size) for size in shape)
        # Pointer types are made anew at each launch, others are the language's own.
        element = (element_ty.name, getattr(element_ty, "address_space", None), getattr(element_ty, "const", None))
        key = (cls, element, sizes)
        found = known.get(key)
        if found is None:
            found = object.__new__(cls)
            stock(found, element_ty, shape)
            known[key] = found
        return found

    tl.block_type.__new__ = new
    tl.block_type.__init__ = lambda self, element_ty, shape: None


def _ranges_once() -> None:
    stock, known = tl.arange, {}

    def arange(start: Any, end: Any) -> Any:
        bounds = (getattr(start, "value", start), getattr(end, "value", end))
        found = known.get(bounds)
        if found is None:
            made = stock(start, end)
            if made.handle.data.dtype is not _INT32:
                return made
            found = known[bounds] = made.handle.data
            found.flags.writeable = False
        return _result(found, _INT32)

    for module in (tl, tl.core):
        module.arange = arange


def _result(data: np.ndarray, element: np.dtype) -> Any:
    return fast_path._result(data, _TYPES[element], True)


def _getitem(stock: Callable) -> Callable:
    """`x[:, None]` and the like of a block."""

    def getitem(self, slices, *rest, **named):
        if type(slices) is not builtins.tuple or not self.type.is_block():
            return stock(self, slices, *rest, **named)
        kept = 0
        for part in slices:
            if part is None:
                continue
            if type(part) is not slice or part != slice(None):
                return stock(self, slices, *rest, **named)
            kept += 1
        data = self.handle.data
        if kept != data.ndim:
            return stock(self, slices, *rest, **named)
        return fast_path._result(data[slices], self.type.scalar, True)

    return getitem


def _bitwise(stock: Callable, op: np.ufunc) -> Callable:
    """Of two int32 or int1 tensors, or an int32 tensor and a number."""

    def method(self, other, **named):
        data = self.handle.data
        element = data.dtype
        if element is not _INT32 and element is not _BOOL:
            return stock(self, other, **named)
        block = self.type.is_block()
        if type(other) is _tensor and other.handle.data.dtype is element:
            operand, block = other.handle.data, block or other.type.is_block()
        elif type(other) is int and element is _INT32 and -(2**31) <= other < 2**31:
            operand = np.int32(other)
        else:
            return stock(self, other, **named)
        return fast_path._result(op(data, operand), _TYPES[element], block)

    return method
