"""Validates a launch plan against the op's tensors and the kernels' sources. Pure; nothing in a pack is believed.

Rules that the executors rely on:

- the judge places every buffer at a multiple of `ALIGNMENT` bytes, wherever it moves it;
- a pointer keeps its buffer's element type, or reinterprets bits with an integer type on one side (packed 4-bit
  weights in a u8 buffer read as i32, fp32 words as i32); one float type is never read as another;
- a tensor map lies inside of its buffer as a whole;
- a divisibility claim holds for every launch of the variant, so a compiled variant is valid for all of them;
- what a plan may cost is bounded: launches, blocks of all launches together, bytes of every kind of buffer.
"""

import ast
import math
from collections.abc import Iterable, Mapping

from ..contracts.base import TensorRole, TensorSpec
from ..records import Frozen
from ..tensors import DType
from . import plan_terms as terms
from .pack import KernelPack, Launch
from .plan_argument import check_argument
from .plan_terms import ALIGNMENT, Found, SourceFunctions, Storages, quote
from .plan_variant import CUDA_OPTIONS, OPTIONS, check_grid, check_variant, real_grid

__all__ = ["ALIGNMENT", "CUDA_OPTIONS", "OPTIONS", "Problem", "addressed_to", "source_functions", "validate"]

MAX_LAUNCHES = 4096
MAX_KERNELS = 512
MAX_STREAMS = 8
MAX_BLOCKS = 1 << 20
"""Blocks of all launches of one step together."""
MAX_PERSISTENT_BYTES = 64 << 20
MAX_PROBLEMS = 20
# Scratch and prepared buffers may be some times what the op itself holds, and this much more.
_SCRATCH_SLACK = 128 << 20
_PREPARED_SLACK = 64 << 20
MAX_SCRATCH_BYTES = 1 << 30


class Problem(Frozen):
    """One reason why a plan is refused. `reason` is a stable id (`plan.*`)."""

    reason: str
    message: str


def source_functions(files: Mapping[str, str], cuda: Iterable[str] = ()) -> SourceFunctions:
    """The kernels of extracted (vetted) kernel sources: every function at the top of a file, with its parameters.

    `cuda` names the candidate's CUDA sources, whose kernels only the compiler knows.
    """
    known = {
        file: {
            node.name: tuple(arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef)
        }
        for file, text in files.items()
    }
    return known | {file: {} for file in cuda}


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
        Problem(reason="plan.identity", message=f"{name} is {quote(getattr(pack, name))}, asked for {quote(value)}")
        for name, value in asked.items()
        if getattr(pack, name) != value
    )


def _problems(pack: KernelPack, specs: tuple[TensorSpec, ...], functions: SourceFunctions) -> Found:
    storages = {spec.name: (spec.dtype, spec.storage_elements * spec.dtype.bytes) for spec in specs}
    yield from _declared_buffers(pack, specs, storages)
    if len(pack.kernels) > MAX_KERNELS:
        yield "too_many_kernels", f"{len(pack.kernels)} kernel variants, at most {MAX_KERNELS}"
        return
    for key, variant in pack.kernels.items():
        yield from check_variant(key, variant, functions)
    if not 1 <= len(pack.launches) <= MAX_LAUNCHES:
        yield "launch_count", f"{len(pack.launches)} launches; a plan has 1 to {MAX_LAUNCHES}"
        return
    yield from _launches(pack, storages)
    for key in pack.kernels.keys() - {launch.kernel for launch in pack.launches}:
        yield "unused_kernel", f"kernel {quote(key)} is never launched"


def _declared_buffers(pack: KernelPack, specs: tuple[TensorSpec, ...], storages: dict[str, tuple[DType, int]]) -> Found:
    total = sum(size for _, size in storages.values())
    static = sum(storages[spec.name][1] for spec in specs if spec.role is TensorRole.STATIC)
    # Weights may be unpacked (4 bits to 16) and padded, not multiplied.
    limits = {
        "scratch": min(total + _SCRATCH_SLACK, MAX_SCRATCH_BYTES),
        "prepared": 4 * static + _PREPARED_SLACK,
        "persistent": MAX_PERSISTENT_BYTES,
    }
    for kind, limit in limits.items():
        total = 0
        for name, buffer in getattr(pack, kind).items():
            if not terms.IDENTIFIER.fullmatch(name) or name in storages:
                yield "buffer_name", f"{kind} buffer {quote(name)} is not a free name"
            size = math.prod(buffer.shape) * buffer.dtype.bytes
            storages.setdefault(name, (buffer.dtype, size))
            total += size
        if total > limit:
            yield f"{kind}_size", f"{kind} buffers take {total} bytes, at most {limit}"


def _launches(pack: KernelPack, storages: Storages) -> Found:
    launched: set[str] = set()
    blocks = 0
    for number, launch in enumerate(pack.launches):
        where = f"launch {number} ({quote(launch.kernel)})"
        yield from _streams(where, launch, launched)
        launched.add(launch.stream)
        variant = pack.kernels.get(launch.kernel)
        if variant is None:
            yield "unknown_kernel", f"{where}: no such kernel in the pack"
            continue
        yield from check_grid(where, launch, variant)
        blocks += math.prod(real_grid(launch, variant))
        expected = sorted(name for name, kind in variant.signature.items() if kind != terms.CONSTEXPR)
        if sorted(launch.arguments) != expected:
            yield "arguments", f"{where}: arguments for {quote(sorted(launch.arguments))}, parameters {quote(expected)}"
            continue
        for name, argument in launch.arguments.items():
            spot = f"{where}, argument {quote(name)}"
            divisible = name in variant.divisible_by_16
            yield from check_argument(spot, argument, variant.signature[name], divisible, storages)
    if blocks > MAX_BLOCKS:
        yield "blocks", f"{quote(blocks)} blocks in all launches together, at most {MAX_BLOCKS}"
    if len(launched) > MAX_STREAMS:
        yield "stream", f"{len(launched)} streams, at most {MAX_STREAMS}"


def _streams(where: str, launch: Launch, launched: set[str]) -> Found:
    if not terms.IDENTIFIER.fullmatch(launch.stream):
        yield "stream", f"{where}: stream {quote(launch.stream)} is not an identifier"
    for name in launch.waits:
        if name not in launched or name == launch.stream:
            yield "wait", f"{where}: waits for {quote(name)}, where nothing was launched before (or its own stream)"
