"""Reductions and scans over bf16, fp16 and user-defined combinations.

A GPU combines in a tree and rounds bf16 and fp16 at every step; a float32 sum rounded once would hide that error. The
trees here halve the axis, as a warp's butterfly does. float32 sums stay numpy's pairwise sums: as accurate, but in
another order than a GPU's, so they agree within rounding only.
"""

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle

from .narrow import decode, encode, is_narrow

_stock_sum = ReduceOps.sum
_stock_min_max = ReduceOps.min_max
_stock_cumulative = {"cumsum": ScanOps.cumsum, "cumprod": ScanOps.cumprod}


def _rounds_each_step(dtype: tl.dtype) -> bool:
    return is_narrow(dtype) or dtype.name == tl.float16.name


def _tensor(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    """A Triton tensor of bit patterns or numbers; zero-dimensional data becomes a scalar tensor."""
    if data.ndim == 0:
        return tl.tensor(TensorHandle(data.reshape(1), dtype), dtype)
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


def _halve(columns: tuple[np.ndarray, ...], combine) -> tuple[np.ndarray, ...]:
    """Reduces axis 0 of each array by combining its two halves until one row is left."""
    while columns[0].shape[0] > 1:
        rows = columns[0].shape[0]
        half = (rows + 1) // 2
        merged = combine(tuple(c[: rows - half] for c in columns), tuple(c[half:] for c in columns))
        columns = tuple(
            m if rows == 2 * half else np.concatenate([m, c[rows - half : half]])
            for m, c in zip(merged, columns, strict=True)
        )
    return tuple(c[0] for c in columns)


def _axis_first(data: np.ndarray, axis: int | None) -> np.ndarray:
    return data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0)


def _restore(result: np.ndarray, source: np.ndarray, axis: int | None, keep_dims: bool) -> np.ndarray:
    if not keep_dims:
        return np.asarray(result)
    return np.asarray(result).reshape([1] * source.ndim) if axis is None else np.expand_dims(result, axis)


def reduce_sum(self, input):
    """tl.sum: bf16 and fp16 add in a halving tree, each step rounded."""
    dtype = input.dtype.scalar
    if not _rounds_each_step(dtype):
        return _stock_sum(self, input)
    data = input.handle.data

    def add(left, right):
        total = decode(left[0], dtype).astype(np.float32) + decode(right[0], dtype).astype(np.float32)
        return (encode(total, dtype),)

    (result,) = _halve((_axis_first(data, self.axis),), add)
    return _tensor(_restore(result, data, self.axis, self.keep_dims), dtype)


def reduce_min_max(self, input, val_reduce_op=None, idx_reduce_op=None):
    """tl.min, tl.max, tl.argmin, tl.argmax: NaN loses against any number; the leftmost of equals wins."""
    value = input[0] if isinstance(input, tuple) else input
    dtype = value.dtype.scalar
    numbers = decode(value.handle.data, dtype)
    if numbers.dtype.kind != "f":
        return _stock_min_max(self, value, val_reduce_op, idx_reduce_op)
    results = []
    if val_reduce_op is not None:
        ufunc = {np.nanmax: np.fmax, np.nanmin: np.fmin}[val_reduce_op]
        best = np.asarray(ufunc.reduce(numbers, axis=self.axis, keepdims=self.keep_dims))
        results.append(_tensor(encode(best, dtype), dtype))
    if idx_reduce_op is not None:
        # numpy refuses a slice that is NaN throughout; a GPU answers with some index: the first.
        empty = np.isnan(numbers).all(axis=self.axis, keepdims=True)
        where = idx_reduce_op(np.where(empty, 0, numbers), axis=self.axis, keepdims=self.keep_dims)
        results.append(_tensor(np.asarray(where).astype(np.int32), tl.int32))
    return tuple(results) if len(results) > 1 else results[0]


def generic_reduce(self, input):
    """tl.reduce with any combine function, run on whole halves instead of element by element."""
    dtypes = [arg.dtype.scalar for arg in input]
    sources = [arg.handle.data for arg in input]

    def combine(left, right):
        tensors = [
            _tensor(np.ascontiguousarray(c), d) for side in (left, right) for c, d in zip(side, dtypes, strict=True)
        ]
        merged = self.combine_fn(*tensors)
        merged = merged if isinstance(merged, tuple | tl.tuple) else (merged,)
        return tuple(m.handle.data.reshape(left[0].shape) for m in merged)

    results = _halve(tuple(_axis_first(data, self.axis) for data in sources), combine)
    return [
        _tensor(_restore(r, s, self.axis, self.keep_dims), d) for r, s, d in zip(results, sources, dtypes, strict=True)
    ]


def _cumulative(name: str, op: np.ufunc):
    stock = _stock_cumulative[name]

    def scan(self, input):
        dtype = input.dtype.scalar
        if not _rounds_each_step(dtype):
            return stock(self, input)
        steps = np.moveaxis(decode(input.handle.data, dtype), self.axis, 0).astype(np.float32)
        for i in range(1, steps.shape[0]):
            steps[i] = decode(encode(op(steps[i - 1], steps[i]), dtype), dtype)
        return [_tensor(encode(np.moveaxis(steps, 0, self.axis), dtype), dtype)]

    return scan


def generic_scan(self, input):
    """tl.associative_scan with any combine function: serial along the axis, whole slices at a time."""
    dtypes = [arg.dtype.scalar for arg in input]
    rows = [np.moveaxis(arg.handle.data, self.axis, 0) for arg in input]
    outputs = [np.array(r) for r in rows]
    for i in range(1, rows[0].shape[0]):
        left = [_tensor(o[i - 1], d) for o, d in zip(outputs, dtypes, strict=True)]
        right = [_tensor(r[i], d) for r, d in zip(rows, dtypes, strict=True)]
        merged = self.combine_fn(*left, *right)
        merged = merged if isinstance(merged, tuple | tl.tuple) else (merged,)
        for out, value in zip(outputs, merged, strict=True):
            out[i] = value.handle.data.reshape(out[i].shape)
    return [
        _tensor(np.ascontiguousarray(np.moveaxis(o, 0, self.axis)), d) for o, d in zip(outputs, dtypes, strict=True)
    ]


def install() -> None:
    """Puts the corrected reductions and scans into Triton's interpreter."""
    ReduceOps.sum = reduce_sum
    ReduceOps.min_max = reduce_min_max
    ReduceOps.generic_reduce = generic_reduce
    ScanOps.cumsum = _cumulative("cumsum", np.add)
    ScanOps.cumprod = _cumulative("cumprod", np.multiply)
    ScanOps.generic_scan = generic_scan
