"""Elementwise operations, conversions and matrix products of the interpreter, with the rounding a GPU has.

The stock builder computes on bf16 and fp8 *bit patterns* and truncates conversions. Here every operation on them
decodes, computes in float32 and encodes once. That equals one rounding of the exact result for + - * / and sqrt,
because float32 has more than twice bf16's significand plus two bits (Figueroa, "When is double rounding innocuous?").
"""

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from . import formats
from .narrow import FLOATS, decode, encode, is_narrow
from .violations import UndefinedShift

_BOOL = np.dtype(np.bool_)
_PLAIN = frozenset(np.dtype(t) for t in (np.float32, np.float64, np.float16, np.int32, np.int64))
_BITWISE = frozenset({np.bitwise_and, np.bitwise_or, np.bitwise_xor})
_stock_convert_float = interpreter._convert_float


def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: np.ufunc) -> TensorHandle:
    """`op` on two tensors of one type. Comparisons give int1; the stock builder keeps the operands' type."""
    dtype = lhs.dtype.scalar
    left, right = lhs.data, rhs.data
    if left.dtype in _PLAIN:
        out = op(left, right)
    elif left.dtype == _BOOL and right.dtype == _BOOL:
        # int1 is an integer of one bit: it wraps, where numpy's bool saturates.
        out = (op(left.astype(np.int8), right.astype(np.int8)) & 1).astype(_BOOL)
    elif is_narrow(dtype) and op not in _BITWISE:
        out = op(decode(left, dtype), decode(right, dtype))
        if out.dtype != _BOOL:
            out = encode(out, dtype)
    else:
        out = op(left, right)
    if out.dtype == _BOOL:
        return TensorHandle(out, tl.int1)
    stored = interpreter._get_np_dtype(dtype) if out.dtype != left.dtype else out.dtype
    return TensorHandle(out.astype(stored, copy=False), dtype)


def unary_op(self, arg: TensorHandle, op: np.ufunc) -> TensorHandle:
    """`op` on one tensor."""
    dtype = arg.dtype.scalar
    if not is_narrow(dtype):
        return TensorHandle(op(arg.data), dtype)
    if op is np.negative:  # flips the sign of NaN and zero too, which 0 - x would not
        sign = arg.data.dtype.type(1 << (arg.data.itemsize * 8 - 1))
        return TensorHandle(arg.data ^ sign, dtype)
    return TensorHandle(encode(op(decode(arg.data, dtype)), dtype), dtype)


def fma(self, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
    """x * y + z with one rounding."""
    dtype = z.dtype.scalar
    if dtype.name not in FLOATS or dtype.name == tl.float64.name:
        return TensorHandle(x.data * y.data + z.data, dtype)
    exact = formats.fused_multiply_add(*(decode(operand.data, dtype) for operand in (x, y, z)))
    return TensorHandle(encode(exact, dtype), dtype)


def rsqrt(self, arg: TensorHandle) -> TensorHandle:
    """1 / sqrt(x)."""
    dtype = arg.dtype.scalar
    root = np.sqrt(decode(arg.data, dtype))
    return TensorHandle(encode(np.divide(root.dtype.type(1), root), dtype), dtype)


def _through_float32(stock):
    """A stock builder method, applied to decoded float32 handles when its first operand is narrow."""

    def method(self, first: TensorHandle, *rest):
        dtype = first.dtype.scalar
        if not is_narrow(dtype):
            return stock(self, first, *rest)
        wide = [
            TensorHandle(decode(h.data, dtype), tl.float32) if isinstance(h, TensorHandle) else h
            for h in (first, *rest)
        ]
        return TensorHandle(encode(stock(self, *wide).data, dtype), dtype)

    return method


def convert_float(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding) -> np.ndarray:
    """Bits of `data` in float type `target`, rounded once (nearest even, or toward zero when asked)."""
    toward_zero = rounding == ir.ROUNDING_MODE.RTZ
    known = source.name in FLOATS and target.name in FLOATS
    if not known or (toward_zero and target.name not in (tl.bfloat16.name, tl.float16.name)):
        return _stock_convert_float(data, source, target, rounding)
    return encode(decode(data, source), target, toward_zero)


def cast(self, src: TensorHandle, target: tl.dtype) -> TensorHandle:
    """Value-preserving conversion between numeric types, as PTX `cvt` does it."""
    source, target = src.dtype.scalar, target.scalar
    values = decode(src.data, source)
    if target.name in FLOATS:
        if is_narrow(target) and values.dtype.kind in "iub":
            # There is no integer to bf16 instruction: both GPU code and torch go through float32.
            values = values.astype(np.float32)
        return TensorHandle(encode(values, target), target)
    stored = interpreter._get_np_dtype(target)
    if values.dtype.kind == "f" and stored.kind in "iu":
        return TensorHandle(_saturate(values, stored), target)
    return TensorHandle(values.astype(stored), target)


def _saturate(values: np.ndarray, stored: np.dtype) -> np.ndarray:
    """Float to integer as `cvt.rzi`: out of range saturates, NaN gives 0. Eight bits pass through 16, then wrap."""
    wide = np.dtype(f"{stored.kind}{max(stored.itemsize, 2)}")
    limits = np.iinfo(wide)
    out = values.astype(wide)
    # 2**n is a float, the largest integer 2**n - 1 may not be; so "too large" is "at least 2**n".
    above, below = values >= float(limits.max) + 1.0, values <= float(limits.min)
    nan = np.isnan(values)
    if above.any() or below.any() or nan.any():
        out = np.where(above, limits.max, np.where(below, limits.min, np.where(nan, 0, out))).astype(wide)
    return out.astype(stored)


def fp_to_fp(self, src: TensorHandle, target: tl.dtype, rounding) -> TensorHandle:
    """Conversion between float types with an explicit rounding mode."""
    source, target = src.dtype.scalar, target.scalar
    data = np.ascontiguousarray(convert_float(src.data, source, target, rounding)).reshape(src.data.shape)
    return TensorHandle(data.view(interpreter._get_np_dtype(target)), target)


def bf16_constant(self, value: float) -> TensorHandle:
    """A bf16 scalar, rounded once from the Python number."""
    return TensorHandle(formats.encode_bf16(np.array([value], np.float64)), tl.bfloat16)


def dot(self, a: TensorHandle, b: TensorHandle, d: TensorHandle, input_precision, max_num_imprecise_acc):
    """a @ b + d with float32 accumulation (int32 for integers, float64 for float64), rounded once to d's type.

    float32 operands are rounded to tf32 when that is the input precision, Triton's default, as tensor cores do.
    """
    x, y = decode(a.data, a.dtype.scalar), decode(b.data, b.dtype.scalar)
    if a.dtype.scalar.name == tl.float32.name and input_precision == ir.INPUT_PRECISION.TF32:
        x, y = formats.round_tf32(x), formats.round_tf32(y)
    dtype = d.dtype.scalar
    half = dtype.name in (tl.bfloat16.name, tl.float16.name)
    accumulator = np.dtype(np.float32) if half else d.data.dtype
    out = np.matmul(x, y, dtype=accumulator)
    out += decode(d.data, dtype)
    return TensorHandle(encode(out, dtype) if half else out, dtype)


def _scaled_operand_to_float32(handle: TensorHandle) -> np.ndarray:
    """Elements of a dot_scaled operand as float32. The stock builder sends bf16 through fp16, which overflows."""
    dtype = handle.dtype.scalar
    if dtype.name in FLOATS:
        return decode(handle.data, dtype).astype(np.float32)
    return _stock_scaled_operand(handle)


_stock_scaled_operand = interpreter._mxfp_value_handle_to_float32

def _shift(stock):
    """A shift of the stock builder, refused where a count is out of range.

    PTX clamps counts, x86 takes them modulo the width, LLVM calls the result poison and optimises on that. So it is in
    lanes whose result is thrown away afterwards, too: select the count before, not the result behind the shift.
    """

    def method(self, lhs: TensorHandle, rhs: TensorHandle) -> TensorHandle:
        bits = lhs.dtype.scalar.primitive_bitwidth
        counts = rhs.data
        wrong = (counts < 0) | (counts >= bits)
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise UndefinedShift(f"a shift of {bits} bits by {int(counts[where])} at element {where} is undefined")
        return stock(self, lhs, rhs)

    return method


METHODS = {
    "binary_op": binary_op,
    "unary_op": unary_op,
    "create_fma": fma,
    "create_rsqrt": rsqrt,
    "create_clampf": _through_float32(InterpreterBuilder.create_clampf),
    "create_erf": _through_float32(InterpreterBuilder.create_erf),
    "cast_impl": cast,
    "create_fp_to_fp": fp_to_fp,
    "get_bf16": bf16_constant,
    "create_dot": dot,
    **{name: _shift(getattr(InterpreterBuilder, name)) for name in ("create_shl", "create_lshr", "create_ashr")},
}


def install() -> None:
    """Puts the corrected methods into Triton's interpreter."""
    for name, method in METHODS.items():
        setattr(InterpreterBuilder, name, method)
    interpreter._convert_float = convert_float
    interpreter._mxfp_value_handle_to_float32 = _scaled_operand_to_float32
