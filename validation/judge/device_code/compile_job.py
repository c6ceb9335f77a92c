"""The compile job: runs in a confined child, sees only the extracted kernel sources, answers with device code."""

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton

# Imported at the first compilation otherwise: a process that has imported this module is warm.
import triton.compiler.code_generator
import triton.language as tl
import triton.language.extra.libdevice
import triton.runtime.cache
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas_version
from triton.compiler import ASTSource, CompilationError
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from ..pack import DTypeConstant, KernelVariant, Language
from ..plan_terms import MAX_SHARED_BYTES
from ..recorder import package
from . import cuda_compiler
from .records import MAX_TENSOR_MEMORY_COLUMNS, NO_CUDA_COMPILER, TARGETS, target_name

MAX_MESSAGE = 4000

# Triton keeps what it has asked an assembler for in the process that asked: here, for every job that is forked from it.
with contextlib.suppress(OSError, RuntimeError):
    for _target in TARGETS:
        get_ptxas_version(_target)


def run(payload: Mapping[str, Any], memory: Sequence[Any], scratch: str | Path) -> tuple[dict, list[bytes]]:
    """Compiles kernel variants for one target.

    payload: {"source": {"files": {name: text}, "cuda": {name: text}}, "variants": {key: KernelVariant},
    "target": 90 | 103}.
    Answers ({"kernels": {key: DeviceCode without ptx, cubin and sass}, "order": [key, ...]}, blobs) with PTX, cubin
    and SASS of each key of "order", in that order; a variant that does not compile has {"reason", "message"} in
    "problems" instead. A compiler that aborts takes the process with it: give such a job one variant.
    """
    os.environ.update(
        TRITON_CACHE_DIR=str(Path(scratch).resolve() / "triton"),
        TRITON_DISABLE_LINE_INFO="1",  # source paths in the cubin would make equal kernels differ
        TRITON_DEFAULT_FP_FUSION="1",
        TRITON_DUMP_PTXAS_LOG="1",
    )
    # The key hashes all of Triton, which takes most of a second; the cache above is empty and lives for this job.
    triton.runtime.cache.triton_key = lambda: triton.__version__
    package.install(payload["source"]["files"], Path(scratch))
    kernels, problems, blobs = {}, {}, []
    for key, fields in payload["variants"].items():
        variant = KernelVariant.model_validate(fields)
        try:
            if variant.language is Language.CUDA:
                made = _compile_cuda(variant, payload["source"]["cuda"], payload["target"], Path(scratch))
            else:
                made = _compile(variant, payload["target"], Path(scratch))
            kernels[key] = made[0]
            blobs += made[1]
        except _Problem as problem:
            problems[key] = {"reason": problem.reason, "message": problem.message}
    return {"kernels": kernels, "order": list(kernels), "problems": problems}, blobs


class _Problem(Exception):
    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message[-MAX_MESSAGE:].encode("utf-8", "backslashreplace").decode("utf-8")


def _compile(variant: KernelVariant, target: int, scratch: Path) -> tuple[dict[str, Any], list[bytes]]:
    function = getattr(package.load(variant.file), variant.function, None)
    if not isinstance(function, JITFunction):
        raise _Problem("compile.no_kernel", f"{variant.file} has no @triton.jit function {variant.function!r}")
    names = function.arg_names
    if {name.partition(".")[0] for name in variant.signature} != set(names):
        raise _Problem("compile.signature", f"{variant.function} takes {names}, not {sorted(variant.signature)}")
    signature = {name: _nested(variant.signature, name) for name in names}
    constants = {_path(names, name): _constant(value) for name, value in variant.constexprs.items()}
    attributes = {_path(names, name): [["tt.divisibility", 16]] for name in variant.divisible_by_16}
    log = io.StringIO()
    try:
        with contextlib.redirect_stdout(log):
            compiled = triton.compile(
                ASTSource(function, signature, constants, attributes),
                target=GPUTarget("cuda", target, 32),
                options=dict(variant.options),
            )
    except PTXASError as error:
        raise _Problem("compile.assembler", str(error)) from error
    except OutOfResources as error:
        raise _Problem("compile.out_of_resources", str(error)) from error
    except CompilationError as error:
        raise _Problem("compile.error", _with_causes(error)) from error
    except (AssertionError, RuntimeError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise _Problem("compile.error", f"{type(error).__name__}: {_with_causes(error)}") from error
    if "tt.ptr_to_int" in compiled.asm["ttir"]:
        # What a buffer's address is says nothing about the task; a kernel that asks can tell one run from another.
        message = f"{variant.function} turns a pointer into a number: results may not follow from addresses"
        raise _Problem("compile.address_as_number", message)
    facts = compiled.metadata
    columns = facts.tmem_size or 0
    for what, need, limit in (
        ("bytes of shared memory", facts.shared, MAX_SHARED_BYTES),
        ("columns of tensor memory", columns, MAX_TENSOR_MEMORY_COLUMNS),
        ("threads", 32 * facts.num_warps, 1024),
    ):
        if need > limit:
            raise _Problem("compile.out_of_resources", f"{variant.function} needs {need} {what}, a block has {limit}")
    cubin = compiled.asm["cubin"]
    usage, listing = _disassembled(cubin, scratch)
    parameters = [part for name in names for part in _parts(variant.signature, name)]
    maps = [name for name in parameters if variant.signature[name].startswith("tensordesc")]
    layouts = zip(maps, getattr(facts, "tensordesc_meta", None) or (), strict=True)
    return {
        "target": target_name(target),
        "entry": facts.name,
        "parameters": [name for name in parameters if variant.signature[name] != "constexpr"],
        "warps": facts.num_warps,
        "ctas": facts.num_ctas,
        "shared_bytes": facts.shared,
        "tensor_maps": {name: _tensor_map(layout) for name, layout in layouts},
        "tensor_memory_columns": columns,
        "global_scratch_bytes": facts.global_scratch_size,
        "global_scratch_align": facts.global_scratch_align,
        "profile_scratch_bytes": facts.profile_scratch_size,
        "launch_pdl": facts.launch_pdl,
        "launch_cooperative_grid": facts.launch_cooperative_grid,
        "compiler": f"Triton {triton.__version__}, ptxas {_ptxas_release(target)}",
        "ptxas_log": log.getvalue(),
        "resource_usage": usage,
    }, [compiled.asm["ptx"].encode(), cubin, listing]


def _compile_cuda(
    variant: KernelVariant, files: Mapping[str, str], target: int, scratch: Path
) -> tuple[dict[str, Any], list[bytes]]:
    try:
        made = cuda_compiler.compile_kernel(files, variant, target)
        name = cuda_compiler.compiler()
    except cuda_compiler.NoCudaCompiler as error:
        raise _Problem(NO_CUDA_COMPILER, str(error)) from error
    except cuda_compiler.CudaError as error:
        raise _Problem(error.reason, str(error)) from error
    usage, listing = _disassembled(made.cubin, scratch, "-fun", variant.function)
    return {
        "language": Language.CUDA,
        "target": target_name(target),
        "entry": variant.function,
        "parameters": list(variant.ordered),
        "warps": variant.options["threads"] // 32,
        "ctas": variant.options["cluster"],
        "shared_bytes": 0,
        "trailing_scratch": False,
        "tensor_memory_columns": 0,
        "global_scratch_bytes": 0,
        "global_scratch_align": 1,
        "profile_scratch_bytes": 0,
        "launch_pdl": variant.options["launch_pdl"],
        "launch_cooperative_grid": variant.options["launch_cooperative_grid"],
        "compiler": name,
        "ptxas_log": made.log,
        "resource_usage": usage,
    }, [made.ptx.encode(), made.cubin, listing]


def _parts(signature: Mapping[str, str], name: str) -> list[str]:
    """The parameter `name`, or the parts of the tuple that it is, in order."""
    if name in signature:
        return [name]
    count = len({key[len(name) + 1 :].partition(".")[0] for key in signature if key.startswith(f"{name}.")})
    return [part for number in range(count) for part in _parts(signature, f"{name}.{number}")]


def _nested(signature: Mapping[str, str], name: str) -> str | tuple:
    """The type of a parameter as Triton has it: a tuple's parts as a tuple."""
    if name in signature:
        return signature[name]
    count = len({key[len(name) + 1 :].partition(".")[0] for key in signature if key.startswith(f"{name}.")})
    return tuple(_nested(signature, f"{name}.{number}") for number in range(count))


def _path(names: Sequence[str], name: str) -> tuple[int, ...]:
    first, *rest = name.split(".")
    return (names.index(first), *map(int, rest))


def _constant(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_constant(part) for part in value)
    return getattr(tl, value.dtype) if isinstance(value, DTypeConstant) else value


def _tensor_map(layout: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of Triton's tensordesc_meta. Device and host number the element types differently (driver.py)."""
    element = {8: 10, 9: 8, 10: 9}.get(layout["elem_type"], layout["elem_type"])
    return {
        "swizzle": layout["swizzle"], "element": element, "element_bytes": layout["elem_size"],
        "box": list(layout["block_size"]), "doubled": layout["fp4_padded"],
    }  # fmt: skip


def _with_causes(error: BaseException) -> str:
    lines = []
    while error is not None:
        lines.append(str(error))
        error = error.__cause__
    return "\n".join(lines)


def _ptxas_release(target: int) -> str:
    found = re.search(r"V(\d+(?:\.\d+)+)", get_ptxas_version(target))
    return found[1] if found else "of unknown version"


def _disassembled(cubin: bytes, scratch: Path, *only: str) -> tuple[str, bytes]:
    """Resource usage and SASS as the Triton wheel's cuobjdump prints them, one behind the other in one run."""
    path = scratch / "kernel.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [tool, "-res-usage", "-sass", *only, path]
    printed = subprocess.run(command, check=True, capture_output=True).stdout
    usage, start, listing = printed.partition(b"\n\tcode for ")
    return usage.decode(), start + listing
