"""Narrow floats of Triton's type system: which types numpy cannot compute on, and how their values are read."""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from . import formats

# By name: hashing a Triton type is slow enough to show in every operation.
_FLOAT8 = {tl.float8e4nv.name: formats.E4M3, tl.float8e5.name: formats.E5M2}
_TABLES = {name: form.table() for name, form in _FLOAT8.items()}
_BF16 = tl.bfloat16.name
NARROW = frozenset({_BF16, *_FLOAT8})
FLOATS = NARROW | {tl.float16.name, tl.float32.name, tl.float64.name}


def is_narrow(dtype: tl.dtype) -> bool:
    """Whether tensors of this scalar type hold bit patterns rather than numbers."""
    return dtype.name in NARROW


def decode(data: np.ndarray, dtype: tl.dtype) -> np.ndarray:
    """The numbers in `data`: float32 for bit patterns, `data` itself otherwise."""
    if dtype.name == _BF16:
        return formats.decode_bf16(data)
    table = _TABLES.get(dtype.name)
    return data if table is None else table[data.view(np.uint8)]


def encode(values: np.ndarray, dtype: tl.dtype, toward_zero: bool = False) -> np.ndarray:
    """Floating-point `values` as `dtype` stores them, rounded once."""
    if dtype.name == _BF16:
        return formats.encode_bf16(values, toward_zero)
    if dtype.name in _FLOAT8:
        return _FLOAT8[dtype.name].encode(values)
    if dtype.name == tl.float16.name:
        return formats.encode_f16(values, toward_zero)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(interpreter._get_np_dtype(dtype), copy=False)
