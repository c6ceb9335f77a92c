"""The words of a plan's rules: types, limits of the machine, and how a problem is said."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..tensors import DType

ALIGNMENT = 16
MAX_TEXT = 256
MAX_BLOCKS = (2**31 - 1, 65535, 65535)
"""CUDA's limits on the number of blocks in x, y and z."""
MAX_SHARED_BYTES = 232448
"""Shared memory that one block may use on both targets (cudaDevAttrMaxSharedMemoryPerBlockOptin)."""

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# A parameter, or a part of a tuple: `x`, `state.0`, `state.1.2`.
PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}(\.\d{1,2}){0,4}")
POINTER = re.compile(r"\*k?(\w+)")
INTEGER = re.compile(r"([iu])(8|16|32|64)")
DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[(\d{1,5}(?:, ?\d{1,5}){0,4})\]>")
FLOAT_LIMITS = {
    "fp16": 65504.0, "bf16": 3.3895313892515355e38, "fp32": 3.4028234663852886e38, "fp64": 1.7976931348623157e308,
}  # fmt: skip
FLOATS = frozenset((DType.BF16, DType.F16, DType.F32, DType.F64, DType.F8E4M3, DType.F8E5M2))
TENSOR_MAP, PEERS, CONSTEXPR = "tensor_map", "peers", "constexpr"

Found = Iterator[tuple[str, str]]
"""(reason without `plan.`, message)"""

# source file -> kernel -> parameter names; a CUDA file is known by its name alone, its kernels to the compiler
SourceFunctions = Mapping[str, Mapping[str, Collection[str]]]

Storages = Mapping[str, tuple[DType, int]]
"""Buffer -> element type and bytes."""

Test = Callable[[Any], bool]


def is_bool(value: Any) -> bool:
    """Whether an option is a bool, and no integer that passes for one."""
    return type(value) is bool


def is_int(low: int, high: int, *, power_of_two: bool = False, multiple_of: int = 1) -> Test:
    """A test for integers (no bools) within bounds, inclusive."""

    def check(value: Any) -> bool:
        fits = type(value) is int and low <= value <= high and value % multiple_of == 0
        return fits and not (power_of_two and value & (value - 1))

    return check


def quote(value: Any) -> str:
    """`repr` of something that a candidate wrote, cut to a readable length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge integer"
    return text if len(text) <= 120 else text[:117] + "..."
