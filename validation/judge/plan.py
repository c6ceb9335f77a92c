"""Validates a launch plan against the op's tensors and the kernels' sources. Pure; nothing in a pack is believed.

Rules that the executors rely on:

- the judge places every buffer at a multiple of `ALIGNMENT` bytes, wherever it moves it;
- a pointer keeps its buffer's element type, or reinterprets bits with an integer type on one side (packed 4-bit
  weights in a u8 buffer read as i32, fp32 words as i32); one float type is never read as another;
- a divisibility claim holds for every launch of the variant, so a compiled variant is valid for all of them.
"""

import ast
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..contracts.base import TensorRole, TensorSpec
from ..records import Frozen
from ..tensors import DType
from .pack import BufferArgument, KernelPack, KernelVariant, Launch, ScalarArgument

ALIGNMENT = 16
MAX_LAUNCHES = 4096
MAX_KERNELS = 512
MAX_STREAMS = 8
MAX_SCRATCH_BYTES = 1 << 30
MAX_PROBLEMS = 20
MAX_TEXT = 256

# CUDA's limits on the number of blocks in x, y and z.
MAX_GRID = (2**31 - 1, 65535, 65535)

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_POINTER = re.compile(r"\*k?(\w+)")
_INTEGER = re.compile(r"([iu])(8|16|32|64)")
_FLOAT_LIMITS = {
    "fp16": 65504.0, "bf16": 3.3895313892515355e38, "fp32": 3.4028234663852886e38, "fp64": 1.7976931348623157e308,
}  # fmt: skip
_FLOATS = frozenset((DType.BF16, DType.F16, DType.F32, DType.F64))


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_int(low: int, high: int, *, power_of_two: bool = False) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return type(value) is int and low <= value <= high and not (power_of_two and value & (value - 1))

    return check


OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "num_warps": _is_int(1, 32, power_of_two=True),
    "num_stages": _is_int(1, 16),
    "num_ctas": _is_int(1, 16, power_of_two=True),
    "maxnreg": lambda value: value is None or _is_int(16, 255)(value),
    "enable_fp_fusion": _is_bool,
    "launch_pdl": _is_bool,
    "launch_cooperative_grid": _is_bool,
}
"""Every option that a variant may (and must) have, with the test of its value."""

# source file -> kernel -> parameter names
SourceFunctions = Mapping[str, Mapping[str, Collection[str]]]


class Problem(Frozen):
    """One reason why a plan is refused. `reason` is a stable id (`plan.*`)."""

    reason: str
    message: str


def source_functions(files: Mapping[str, str]) -> SourceFunctions:
    """The kernels of extracted (vetted) kernel sources: every function at the top of a file, with its parameters."""
    return {
        file: {
            node.name: tuple(arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef)
        }
        for file, text in files.items()
    }


def validate(pack: KernelPack, specs: tuple[TensorSpec, ...], functions: SourceFunctions) -> tuple[Problem, ...]:
    """What is wrong with `pack` as a plan over the tensors `specs`; empty when an executor may run it.

    `functions` names the kernels of the extracted source and their parameters. At most `MAX_PROBLEMS` are listed.
    """
    problems = []
    for reason, message in _problems(pack, specs, functions):
        problems.append(Problem(reason=f"plan.{reason}", message=message))
        if len(problems) == MAX_PROBLEMS:
            break
    return tuple(problems)


def addressed_to(pack: KernelPack, op: str, workload: str, candidate_digest: str) -> tuple[Problem, ...]:
    """Whether the recorder answered what it was asked: op, workload and candidate."""
    asked = {"op": op, "workload": workload, "candidate_digest": candidate_digest}
    return tuple(
        Problem(reason="plan.identity", message=f"{name} is {_quote(getattr(pack, name))}, asked for {_quote(value)}")
        for name, value in asked.items()
        if getattr(pack, name) != value
    )


Found = Iterator[tuple[str, str]]


def _problems(pack: KernelPack, specs: tuple[TensorSpec, ...], functions: SourceFunctions) -> Found:
    storages = {spec.name: (spec.dtype, spec.storage_elements * spec.dtype.bytes) for spec in specs}
    yield from _declared_buffers(pack, specs, storages)
    if len(pack.kernels) > MAX_KERNELS:
        yield "too_many_kernels", f"{len(pack.kernels)} kernel variants, at most {MAX_KERNELS}"
        return
    for key, variant in pack.kernels.items():
        yield from _variant(key, variant, functions)
    if not 1 <= len(pack.launches) <= MAX_LAUNCHES:
        yield "launch_count", f"{len(pack.launches)} launches; a plan has 1 to {MAX_LAUNCHES}"
        return
    launched = set()
    for number, launch in enumerate(pack.launches):
        where = f"launch {number} ({_quote(launch.kernel)})"
        yield from _streams(where, launch, launched)
        launched.add(launch.stream)
        variant = pack.kernels.get(launch.kernel)
        if variant is None:
            yield "unknown_kernel", f"{where}: no such kernel in the pack"
            continue
        yield from _grid(where, launch, variant)
        yield from _arguments(where, launch, variant, storages)
    if len(launched) > MAX_STREAMS:
        yield "stream", f"{len(launched)} streams, at most {MAX_STREAMS}"
    for key in pack.kernels.keys() - {launch.kernel for launch in pack.launches}:
        yield "unused_kernel", f"kernel {_quote(key)} is never launched"


def _declared_buffers(pack: KernelPack, specs: tuple[TensorSpec, ...], storages: dict[str, tuple[DType, int]]) -> Found:
    static = sum(storages[spec.name][1] for spec in specs if spec.role is TensorRole.STATIC)
    # Weights may be unpacked (4 bits to 16) and padded, not multiplied.
    limits = {"scratch": MAX_SCRATCH_BYTES, "prepared": 4 * static + (64 << 20)}
    for kind, limit in limits.items():
        total = 0
        for name, buffer in getattr(pack, kind).items():
            if not _IDENTIFIER.fullmatch(name) or name in storages:
                yield "buffer_name", f"{kind} buffer {_quote(name)} is not a free name"
            size = math.prod(buffer.shape) * buffer.dtype.bytes
            storages.setdefault(name, (buffer.dtype, size))
            total += size
        if total > limit:
            yield f"{kind}_size", f"{kind} buffers take {total} bytes, at most {limit}"


def _variant(key: str, variant: KernelVariant, functions: SourceFunctions) -> Found:
    where = f"kernel {_quote(key)}"
    if not _IDENTIFIER.fullmatch(key):
        yield "kernel_name", f"{where}: not an identifier"
    parameters = functions.get(variant.file, {}).get(variant.function)
    if parameters is None:
        yield "unknown_function", f"{where}: {_quote(variant.file)} has no kernel {_quote(variant.function)}"
    elif set(variant.signature) != set(parameters):
        yield "signature", f"{where}: parameters are {_quote(sorted(variant.signature))}, source has {list(parameters)}"
    for parameter, kind in variant.signature.items():
        if not _known_type(kind):
            yield "type", f"{where}: parameter {_quote(parameter)} has type {_quote(kind)}"
    constants = {parameter for parameter, kind in variant.signature.items() if kind == "constexpr"}
    if constants != set(variant.constexprs):
        given = sorted(variant.constexprs)
        yield "constexpr", f"{where}: values for {_quote(given)}, constants {_quote(sorted(constants))}"
    for parameter, value in variant.constexprs.items():
        if not _plain(value):
            yield "constexpr", f"{where}: constexpr {_quote(parameter)} is {_quote(value)}"
    for parameter in variant.divisible_by_16:
        kind = variant.signature.get(parameter, "")
        if not (_POINTER.fullmatch(kind) or _INTEGER.fullmatch(kind)):
            yield "divisibility", f"{where}: {_quote(parameter)} ({_quote(kind)}) cannot be divisible by 16"
    for name in OPTIONS.keys() - variant.options.keys():
        yield "option", f"{where}: option {name} is missing"
    for name, value in variant.options.items():
        if name not in OPTIONS or not OPTIONS[name](value):
            yield "option", f"{where}: option {_quote(name)} = {_quote(value)} is not allowed"


def _streams(where: str, launch: Launch, launched: set[str]) -> Found:
    if not _IDENTIFIER.fullmatch(launch.stream):
        yield "stream", f"{where}: stream {_quote(launch.stream)} is not an identifier"
    for name in launch.waits:
        if name not in launched or name == launch.stream:
            yield "wait", f"{where}: waits for {_quote(name)}, where nothing was launched before (or its own stream)"


def _grid(where: str, launch: Launch, variant: KernelVariant) -> Found:
    clusters = variant.options.get("num_ctas")
    blocks = (launch.grid[0] * (clusters if type(clusters) is int else 1), *launch.grid[1:])
    for axis, count, limit in zip("xyz", blocks, MAX_GRID, strict=True):
        if not 1 <= count <= limit:
            yield "grid", f"{where}: {_quote(count)} blocks in {axis}; 1 to {limit} are possible"


def _arguments(
    where: str, launch: Launch, variant: KernelVariant, storages: Mapping[str, tuple[DType, int]]
) -> Found:
    expected = sorted(parameter for parameter, kind in variant.signature.items() if kind != "constexpr")
    if sorted(launch.arguments) != expected:
        yield "arguments", f"{where}: arguments for {_quote(sorted(launch.arguments))}, parameters {_quote(expected)}"
        return
    for parameter, argument in launch.arguments.items():
        spot = f"{where}, argument {_quote(parameter)}"
        divisible = parameter in variant.divisible_by_16
        if isinstance(argument, BufferArgument):
            yield from _pointer(spot, argument, variant.signature[parameter], divisible, storages)
        else:
            yield from _scalar(spot, argument, variant.signature[parameter], divisible)


def _pointer(
    spot: str, argument: BufferArgument, kind: str, divisible: bool, storages: Mapping[str, tuple[DType, int]]
) -> Found:
    pointee = _POINTER.fullmatch(kind)
    if pointee is None or pointee[1] != argument.dtype:
        yield "argument_type", f"{spot}: pointer to {argument.dtype} where the kernel takes {_quote(kind)}"
    if argument.buffer not in storages:
        yield "unknown_buffer", f"{spot}: there is no buffer {_quote(argument.buffer)}"
        return
    dtype, size = storages[argument.buffer]
    if dtype is not argument.dtype and dtype in _FLOATS and argument.dtype in _FLOATS:
        yield "reinterpretation", f"{spot}: buffer {argument.buffer!r} holds {dtype}, read as {argument.dtype}"
    if argument.offset % argument.dtype.bytes:
        yield "misaligned", f"{spot}: offset {argument.offset} is no multiple of {argument.dtype.bytes} bytes"
    if argument.offset and argument.offset + argument.dtype.bytes > size:
        yield "offset", f"{spot}: offset {_quote(argument.offset)} is outside of {argument.buffer!r} ({size} bytes)"
    if divisible and argument.offset % ALIGNMENT:
        yield "divisibility", f"{spot}: offset {argument.offset} is said to be divisible by 16"


def _scalar(spot: str, argument: ScalarArgument, kind: str, divisible: bool) -> Found:
    value = argument.value
    if argument.type != kind:
        yield "argument_type", f"{spot}: {_quote(argument.type)} where the kernel takes {_quote(kind)}"
    elif not _in_range(kind, value):
        yield "scalar", f"{spot}: {_quote(value)} is no {_quote(kind)}"
    elif divisible and value % 16:
        yield "divisibility", f"{spot}: {_quote(value)} is said to be divisible by 16"


def _in_range(kind: str, value: bool | int | float) -> bool:
    if kind == "u1":
        return type(value) is bool
    if kind in _FLOAT_LIMITS:
        return type(value) is float and abs(value) <= _FLOAT_LIMITS[kind]
    integer = _INTEGER.fullmatch(kind)
    if integer is None or type(value) is not int:
        return False
    bits = int(integer[2])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if integer[1] == "i" else (0, (1 << bits) - 1)
    return low <= value <= high


def _known_type(kind: str) -> bool:
    pointer = _POINTER.fullmatch(kind)
    if pointer:
        return pointer[1] in set(DType)
    return kind in ("constexpr", "u1") or kind in _FLOAT_LIMITS or _INTEGER.fullmatch(kind) is not None


def _plain(value: bool | int | float | str | None) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def _quote(value: Any) -> str:
    """`repr` of something that a candidate wrote, cut to a readable length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge integer"
    return text if len(text) <= 120 else text[:117] + "..."
