"""Short cuts for float32 + - * / between tensors, which are most of what a decode kernel does.

They give the stock semantics' results (same ufunc, same float32 operands) without its type promotion and broadcasting
in Python, which cost far more than the arithmetic on a tile. Anything but float32 takes the long way.
"""

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

_FLOAT32 = np.dtype(np.float32)
_tensor = tl.tensor
_new_tensor = tl.tensor.__new__


def _float32(data: np.ndarray, like: tl.tensor) -> tl.tensor:
    """A float32 tensor of the type of `like`."""
    tensor = _new_tensor(_tensor)
    tensor.__dict__.update(like.__dict__)
    handle = TensorHandle.__new__(TensorHandle)  # its constructor only checks the element size
    handle.data, handle.dtype, handle.attr = data, tl.float32, {}
    tensor.handle = handle
    return tensor


def _shortened(stock, op: np.ufunc, reflected: bool):
    def method(self, other):
        data = self.handle.data
        if data.dtype is not _FLOAT32:
            return stock(self, other)
        like = self
        kind = type(other)
        if kind is _tensor:
            operand = other.handle.data
            if operand.dtype is not _FLOAT32:
                return stock(self, other)
            if operand.shape != data.shape or self.type.is_block() != other.type.is_block():
                # numpy broadcasts as Triton does; the result has the type of an operand unless both are stretched.
                if not self.type.is_block():
                    like = other
                elif other.type.is_block():
                    if operand.ndim != data.ndim:
                        return stock(self, other)
                    shape = np.broadcast_shapes(data.shape, operand.shape)
                    if shape == operand.shape:
                        like = other
                    elif shape != data.shape:
                        return stock(self, other)
        elif kind is float or kind is int:
            operand = np.float32(other)
        else:
            return stock(self, other)
        return _float32(op(operand, data) if reflected else op(data, operand), like)

    return method


def install() -> None:
    """Puts the short cuts in front of the (already patched) operators of tl.tensor."""
    for name, op in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("truediv", np.divide)):
        for attribute, reflected in ((f"__{name}__", False), (f"__r{name}__", True)):
            setattr(tl.tensor, attribute, _shortened(getattr(tl.tensor, attribute), op, reflected))
