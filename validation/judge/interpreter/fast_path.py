"""Short cuts for float32 and int32 arithmetic and comparisons between tensors: most of what a decode kernel does.

They give the stock semantics' results (same ufunc, same operands) without its type promotion and broadcasting in
Python, which cost far more than the arithmetic on a tile. Any other type, and mixed types, take the long way.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

_FLOAT32 = np.dtype(np.float32)
_INT32 = np.dtype(np.int32)
_TYPES = {_FLOAT32: tl.float32, _INT32: tl.int32}
_tensor = tl.tensor
_new_tensor = tl.tensor.__new__
_new_handle = TensorHandle.__new__
_stock_np_dtype = interpreter._get_np_dtype
_np_dtypes: dict[str, np.dtype] = {}


def _result(data: np.ndarray, like: tl.tensor, dtype: tl.dtype) -> tl.tensor:
    """A tensor of `data` with the shape of `like`."""
    handle = _new_handle(TensorHandle)  # its constructor only checks the element size
    handle.data, handle.dtype, handle.attr = data, dtype, {}
    if dtype is not like.dtype:
        kinds = like.type.__dict__.setdefault("_interpreter_kinds", {})
        kind = kinds.get(dtype.name)
        if kind is None:
            kind = kinds[dtype.name] = like.type.with_element_ty(dtype) if like.type.is_block() else dtype
        return tl.tensor(handle, kind)
    tensor = _new_tensor(_tensor)
    tensor.__dict__.update(like.__dict__)
    tensor.handle = handle
    return tensor


def _shortened(stock, op: np.ufunc, reflected: bool, types: tuple[np.dtype, ...], result: tl.dtype | None):
    def method(self, other):
        data = self.handle.data
        element = data.dtype
        if element not in types:
            return stock(self, other)
        like = self
        kind = type(other)
        if kind is _tensor:
            operand = other.handle.data
            if operand.dtype is not element:
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
        elif (kind is float and element is _FLOAT32) or (kind is int and -(2**31) <= other < 2**31):
            operand = element.type(other)
        else:
            return stock(self, other)
        return _result(op(operand, data) if reflected else op(data, operand), like, result or _TYPES[element])

    return method


def _np_dtype(dtype: tl.dtype) -> np.dtype:
    """As the stock function, which builds its table of all types at each call."""
    if isinstance(dtype, tl.pointer_type | tl.block_type):
        return _stock_np_dtype(dtype)
    found = _np_dtypes.get(dtype.name)
    if found is None:
        found = _np_dtypes[dtype.name] = _stock_np_dtype(dtype)
    return found


_ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide}
_COMPARISON = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def install() -> None:
    """Puts the short cuts in front of the (already patched) operators of tl.tensor."""
    for name, op in _ARITHMETIC.items():
        types = (_FLOAT32,) if name == "truediv" else (_FLOAT32, _INT32)
        for attribute, reflected in ((f"__{name}__", False), (f"__r{name}__", True)):
            setattr(tl.tensor, attribute, _shortened(getattr(tl.tensor, attribute), op, reflected, types, None))
    for name, op in _COMPARISON.items():
        stock = getattr(tl.tensor, f"__{name}__")
        setattr(tl.tensor, f"__{name}__", _shortened(stock, op, False, (_FLOAT32, _INT32), tl.int1))
    interpreter._get_np_dtype = _np_dtype
