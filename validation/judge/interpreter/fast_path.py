"""Short cuts for float32, int32 and pointer arithmetic, comparisons and functions: most of what a decode kernel does.

They give the stock semantics' results (same ufunc, same operands) without its type promotion and broadcasting in
Python, which cost far more than the arithmetic on a tile. Any other type, and mixed types, take the long way.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

_FLOAT32 = np.dtype(np.float32)
_INT32 = np.dtype(np.int32)
_UINT64 = np.dtype(np.uint64)
_BOOL = np.dtype(np.bool_)
_TYPES = {_FLOAT32: tl.float32, _INT32: tl.int32}
_tensor = tl.tensor
_new_handle = TensorHandle.__new__
_stock_np_dtype = interpreter._get_np_dtype
_np_dtypes: dict[str, np.dtype] = {}


def _block_type(dtype: tl.dtype, shape: tuple[int, ...]) -> tl.block_type:
    """The block type of `dtype` and `shape`, made once."""
    known = dtype.__dict__.setdefault("_interpreter_blocks", {})
    found = known.get(shape)
    if found is None:
        found = known[shape] = tl.block_type(dtype, list(shape))
    return found


def _result(data: np.ndarray, dtype: tl.dtype, block: bool) -> tl.tensor:
    handle = _new_handle(TensorHandle)  # its constructor only checks the element size
    handle.data, handle.dtype, handle.attr = data, dtype, {}
    return _tensor(handle, _block_type(dtype, data.shape) if block else dtype)


def _shortened(stock, op: np.ufunc, reflected: bool, types: tuple[np.dtype, ...], result: tl.dtype | None):
    """`stock`, an operator of tl.tensor, with numpy alone for operands of one of `types`.

    numpy broadcasts blocks as Triton does, and a scalar is an array of one element.
    """

    def method(self, other):
        data = self.handle.data
        element = data.dtype
        if element not in types:
            return stock(self, other)
        block = self.type.is_block()
        kind = type(other)
        if kind is _tensor:
            operand = other.handle.data
            if operand.dtype is not element:
                return stock(self, other)
            block = block or other.type.is_block()
        elif (kind is float and element is _FLOAT32) or (kind is int and -(2**31) <= other < 2**31):
            operand = element.type(other)
        else:
            return stock(self, other)
        return _result(op(operand, data) if reflected else op(data, operand), result or _TYPES[element], block)

    return method


def _pointer_plus(stock):
    """`pointer + int32 offsets`, counted in elements; a scalar or block of either."""

    def method(self, other):
        data = self.handle.data
        if data.dtype is not _UINT64 or type(other) is not _tensor or other.handle.data.dtype is not _INT32:
            return stock(self, other)
        dtype = self.dtype
        if not dtype.is_ptr():
            return stock(self, other)
        size = max(1, dtype.element_ty.primitive_bitwidth // 8)
        # i32 offsets are sign-extended before they are scaled, as by the compiler.
        step = np.multiply(other.handle.data, size, dtype=np.int64).view(_UINT64)
        return _result(data + step, dtype, self.type.is_block() or other.type.is_block())

    return method


def _function(stock, op):
    """A function of one tensor, for float32."""

    def function(x):
        if type(x) is not _tensor or x.handle.data.dtype is not _FLOAT32:
            return stock(x)
        return _result(op(x.handle.data), tl.float32, x.type.is_block())

    return function


def _where(stock):
    """tl.where of an int1 block and two float32 operands, tensors or numbers."""

    def where(condition, x, y):
        if type(condition) is not _tensor or condition.handle.data.dtype is not _BOOL:
            return stock(condition, x, y)
        if type(x) is not _tensor and type(y) is not _tensor:
            return stock(condition, x, y)
        operands, block = [], condition.type.is_block()
        for operand in (x, y):
            if type(operand) is _tensor and operand.handle.data.dtype is _FLOAT32:
                operands.append(operand.handle.data)
                block = block or operand.type.is_block()
            elif type(operand) is float:
                operands.append(np.float32(operand))
            else:
                return stock(condition, x, y)
        return _result(np.where(condition.handle.data, *operands), tl.float32, block)

    return where


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
_FUNCTIONS = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt, "sqrt_rn": np.sqrt, "sin": np.sin,
    "cos": np.cos, "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip


def install() -> None:
    """Puts the short cuts in front of the (already patched) operators of tl.tensor."""
    tl.tensor.__add__ = _pointer_plus(tl.tensor.__add__)
    for name, op in _ARITHMETIC.items():
        types = (_FLOAT32,) if name == "truediv" else (_FLOAT32, _INT32)
        for attribute, reflected in ((f"__{name}__", False), (f"__r{name}__", True)):
            setattr(tl.tensor, attribute, _shortened(getattr(tl.tensor, attribute), op, reflected, types, None))
    for name, op in _COMPARISON.items():
        stock = getattr(tl.tensor, f"__{name}__")
        setattr(tl.tensor, f"__{name}__", _shortened(stock, op, False, (_FLOAT32, _INT32), tl.int1))
    for name, op in _FUNCTIONS.items():
        for owner in (tl, tl.math, tl.tensor):
            setattr(owner, name, _function(getattr(owner, name), op))
    tl.where = _where(tl.where)
    tl.block_type.with_element_ty = lambda self, dtype: _block_type(dtype, tuple(self.shape))
    interpreter._get_np_dtype = _np_dtype
