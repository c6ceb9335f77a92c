"""The rules for one kernel variant: does it exist, are its types known, are its constants plain, its options allowed?"""

import math
import re
from collections.abc import Mapping
from typing import Any

from ..tensors import DType
from . import plan_terms as terms
from .kernel_vocabulary import TL_TYPES
from .pack import DTypeConstant, KernelVariant, Language, Launch
from .plan_terms import Found, SourceFunctions, Test, is_bool, is_int, quote

_REGISTERS = is_int(16, 255)
_LAUNCH_OPTIONS: Mapping[str, Test] = {"launch_pdl": is_bool, "launch_cooperative_grid": is_bool}

OPTIONS: Mapping[str, Test] = {
    "num_warps": is_int(1, 32, power_of_two=True),
    "num_stages": is_int(1, 16),
    "num_ctas": is_int(1, 16, power_of_two=True),
    "maxnreg": lambda value: value is None or _REGISTERS(value),
    "enable_fp_fusion": is_bool,
    **_LAUNCH_OPTIONS,
}
"""Every option that a Triton variant may (and must) have, with the test of its value."""

CUDA_OPTIONS: Mapping[str, Test] = {
    "threads": is_int(32, 1024, multiple_of=32),
    "max_registers": lambda value: value is None or _REGISTERS(value),
    "cluster": is_int(1, 16),
    **_LAUNCH_OPTIONS,
}
"""The same for a CUDA variant."""

_ALLOWED = {Language.TRITON: OPTIONS, Language.CUDA: CUDA_OPTIONS}
# What a macro may stand for: a number, a name, a type (`float`, `cutlass::half_t`, `Pair<2, true>`).
_MACRO_TEXT = re.compile(r"[\w:<>, ]{1,64}")
_DTYPES = frozenset(DType)


def check_variant(key: str, variant: KernelVariant, functions: SourceFunctions) -> Found:
    """What is wrong with one variant, its launches apart."""
    where = f"kernel {quote(key)}"
    if not terms.IDENTIFIER.fullmatch(key):
        yield "kernel_name", f"{where}: not an identifier"
    yield from (_cuda if variant.language is Language.CUDA else _triton)(where, variant, functions)
    options = _ALLOWED[variant.language]
    for name in options.keys() - variant.options.keys():
        yield "option", f"{where}: option {name} is missing"
    for name, value in variant.options.items():
        if name not in options or not options[name](value):
            yield "option", f"{where}: option {quote(name)} = {quote(value)} is not allowed"


def check_grid(where: str, launch: Launch, variant: KernelVariant) -> Found:
    """Whether the launch's grid, cluster and dynamic shared memory are possible."""
    blocks = real_grid(launch, variant)
    for axis, count, limit in zip("xyz", blocks, terms.MAX_BLOCKS, strict=True):
        if not 1 <= count <= limit:
            yield "grid", f"{where}: {quote(count)} blocks in {axis}; 1 to {limit} are possible"
    if variant.language is Language.TRITON:
        if launch.shared_bytes:
            yield "shared_memory", f"{where}: a Triton kernel's shared memory is its compiler's to say"
        return
    if not 0 <= launch.shared_bytes <= terms.MAX_SHARED_BYTES:
        limit = terms.MAX_SHARED_BYTES
        yield "shared_memory", f"{where}: {quote(launch.shared_bytes)} bytes of shared memory; 0 to {limit} are possible"
    cluster = variant.options.get("cluster")
    if type(cluster) is int and cluster > 0 and launch.grid[0] % cluster:
        yield "cluster", f"{where}: {quote(launch.grid[0])} blocks in x are not whole clusters of {cluster}"


def real_grid(launch: Launch, variant: KernelVariant) -> tuple[int, int, int]:
    """Blocks in x, y and z: a Triton program is a cluster of num_ctas blocks."""
    count = variant.options.get("num_ctas", 1) if variant.language is Language.TRITON else 1
    return (launch.grid[0] * (count if type(count) is int else 1), *launch.grid[1:])


def _triton(where: str, variant: KernelVariant, functions: SourceFunctions) -> Found:
    parameters = functions.get(variant.file, {}).get(variant.function)
    if parameters is None:
        yield "unknown_function", f"{where}: {quote(variant.file)} has no kernel {quote(variant.function)}"
    elif {name.partition(".")[0] for name in variant.signature} != set(parameters):
        yield "signature", f"{where}: parameters are {quote(sorted(variant.signature))}, source has {list(parameters)}"
    for parameter, kind in variant.signature.items():
        if not terms.PARAMETER.fullmatch(parameter) or _parts_missing(parameter, variant.signature):
            yield "signature", f"{where}: {quote(parameter)} is no parameter, or a tuple's part without those before it"
        if not _triton_type(kind):
            yield "type", f"{where}: parameter {quote(parameter)} has type {quote(kind)}"
    constants = {parameter for parameter, kind in variant.signature.items() if kind == terms.CONSTEXPR}
    if constants != set(variant.constexprs):
        given = sorted(variant.constexprs)
        yield "constexpr", f"{where}: values for {quote(given)}, constants {quote(sorted(constants))}"
    for parameter, value in variant.constexprs.items():
        if not all(map(_plain, value if isinstance(value, tuple) else (value,))):
            yield "constexpr", f"{where}: constexpr {quote(parameter)} is {quote(value)}"
    for parameter in variant.divisible_by_16:
        kind = variant.signature.get(parameter, "")
        if not (terms.POINTER.fullmatch(kind) or terms.INTEGER.fullmatch(kind)):
            yield "divisibility", f"{where}: {quote(parameter)} ({quote(kind)}) cannot be divisible by 16"


def _cuda(where: str, variant: KernelVariant, functions: SourceFunctions) -> Found:
    if variant.file not in functions or not variant.file.endswith(".cu"):
        yield "unknown_function", f"{where}: the candidate has no CUDA source {quote(variant.file)}"
    if not terms.IDENTIFIER.fullmatch(variant.function):
        yield "unknown_function", f"{where}: {quote(variant.function)} is not the name of a kernel"
    if set(variant.signature) != set(variant.ordered):
        yield "signature", f"{where}: parameters are called p0, p1, ..., not {quote(sorted(variant.signature))}"
    for parameter, kind in variant.signature.items():
        if not _cuda_type(kind):
            yield "type", f"{where}: parameter {quote(parameter)} has type {quote(kind)}"
    for name, value in variant.constexprs.items():
        if not terms.IDENTIFIER.fullmatch(name) or not _macro(value):
            yield "constexpr", f"{where}: macro {quote(name)} = {quote(value)} is not a name and a plain value"
    if variant.divisible_by_16:
        yield "divisibility", f"{where}: CUDA kernels are not specialised"


def _parts_missing(parameter: str, signature: Mapping[str, str]) -> bool:
    """Whether `x.2` stands without `x.1` (or parts of it), or beside a parameter `x`."""
    above, _, number = parameter.rpartition(".")
    if not above:
        return False
    before = f"{above}.{int(number) - 1}"
    known = number == "0" or any(name == before or name.startswith(f"{before}.") for name in signature)
    return not known or str(int(number)) != number or above in signature or _parts_missing(above, signature)


def _triton_type(kind: str) -> bool:
    if pointer := terms.POINTER.fullmatch(kind):
        return pointer[1] in _DTYPES
    if descriptor := terms.DESCRIPTOR.fullmatch(kind):
        return descriptor[1] in _DTYPES
    return kind in (terms.CONSTEXPR, "u1") or kind in terms.FLOAT_LIMITS or terms.INTEGER.fullmatch(kind) is not None


def _cuda_type(kind: str) -> bool:
    # No constants among the parameters, and no 16-bit floats: C++ passes those as structures.
    if pointer := terms.POINTER.fullmatch(kind):
        return pointer[1] in _DTYPES and "k" not in kind[:2]
    return kind in (terms.TENSOR_MAP, terms.PEERS, "u1", "fp32", "fp64") or bool(terms.INTEGER.fullmatch(kind))


def _macro(value: Any) -> bool:
    if isinstance(value, str):
        return _MACRO_TEXT.fullmatch(value) is not None
    return isinstance(value, bool | int | float) and _plain(value)


def _plain(value: Any) -> bool:
    if isinstance(value, DTypeConstant):
        return value.dtype in TL_TYPES
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= terms.MAX_TEXT
    return not isinstance(value, int) or -(2**63) <= value < 2**64
