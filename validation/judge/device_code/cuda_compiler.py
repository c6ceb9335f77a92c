"""CUDA C++ to machine code: NVRTC on the candidate's text, in the confined child. Runs no host code of anybody."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from ..pack import KernelVariant
from ..plan_terms import MAX_SHARED_BYTES
from . import sass
from .standard_headers import STANDARD_HEADERS

REGISTERS_OF_A_BLOCK = 65536
"""Of one multiprocessor, which one block may use up."""
_HEADERS = ("cudart", "cccl")
_MAX_LOG = 3000
# What PTX calls a parameter of each type of a plan; pointers and tables are addresses, which PTX cannot tell from u64.
_PTX_TYPES = {"u1": "8", "fp32": "f32", "fp64": "f64"} | {f"{s}{n}": str(n) for s in "iu" for n in (8, 16, 32, 64)}


class NoCudaCompiler(Exception):
    """This machine cannot compile CUDA C++; the text says what to install."""


class CudaError(Exception):
    """The source does not compile, or does not fit the plan. `reason` is a stable id (`compile.*`)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Compiled:
    """What NVRTC made of one file for one target. `log` is what ptxas says of all its kernels."""

    ptx: str
    cubin: bytes
    log: str


def compiler() -> str:
    """Name and version of the compiler. Raises NoCudaCompiler."""
    try:
        return f"NVRTC {metadata.version('nvidia-cuda-nvrtc')}"
    except metadata.PackageNotFoundError:
        pass
    _, nvrtc, _ = _tools()
    _, major, minor = nvrtc.nvrtcVersion()
    return f"NVRTC {major}.{minor}"


def available() -> str:
    """`compiler`, after headers were found and the library was loaded. Raises NoCudaCompiler."""
    _, nvrtc, not_installed = _tools()
    try:
        _checked(nvrtc.nvrtcVersion())
    except not_installed as error:
        raise NoCudaCompiler(f"NVRTC is not installed ({type(error).__name__}): {_HOW}") from error
    return compiler()


def compile_kernel(files: Mapping[str, str], variant: KernelVariant, target: int) -> Compiled:
    """Compiles `variant.file`; other files are there to be included, by their path or from beside the file.

    Raises NoCudaCompiler, and CudaError with the compiler's words (bounded) or with what does not fit the plan.
    """
    if variant.file not in files:
        raise CudaError("compile.no_kernel", f"there is no file {variant.file!r}")
    directories, nvrtc, not_installed = _tools()
    options = [
        # Lines, for whoever has to say where: they change no instruction.
        f"-arch=sm_{target}a", "-std=c++17", "-lineinfo", "--ptxas-options=-v", *(f"-I{directory}" for directory in directories),
        *(f"-D{name}={_macro(value)}" for name, value in sorted(variant.constexprs.items())),
    ]  # fmt: skip
    limit = variant.options.get("max_registers")
    if limit is not None:
        options.append(f"--maxrregcount={limit}")
    headers = STANDARD_HEADERS | _includable(files, variant.file)
    names, texts = [name.encode() for name in headers], [text.encode() for text in headers.values()]
    try:
        source = files[variant.file].encode()
        program = _checked(nvrtc.nvrtcCreateProgram(source, variant.file.encode(), len(names), texts, names))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    except not_installed as error:
        raise NoCudaCompiler(f"NVRTC is not installed ({type(error).__name__}): {_HOW}") from error
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(errors="replace")
    for directory in directories:
        log = log.replace(f"{directory}/", "")
    if status.value:
        raise CudaError("compile.error", f"{variant.file} does not compile for sm_{target}a:\n{_bounded(log)}")
    ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode()
    cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    _check_entry(variant, ptx)
    own = sass.entry_log(log, variant.function)
    report = sass.ptxas_report(own)
    if report is not None:
        _check_resources(variant, report)
    return Compiled(ptx=sass.entry_ptx(ptx, variant.function), cubin=cubin, log=own)


_HOW = 'pip install "fasttrack[cuda]"'


def _tools():
    """(include directories, the nvrtc module, what it raises where its library is missing). Raises NoCudaCompiler."""
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import DynamicLibNotFoundError, find_nvidia_header_directory
    except ImportError as error:
        raise NoCudaCompiler(f"cuda-bindings is not installed ({error}): {_HOW}") from error
    directories = [find_nvidia_header_directory(name) for name in _HEADERS]
    if None in directories:
        missing = _HEADERS[directories.index(None)]
        raise NoCudaCompiler(f"the headers of {missing} are not installed: {_HOW}")
    return directories, nvrtc, DynamicLibNotFoundError


def _includable(files: Mapping[str, str], main: str) -> dict[str, str]:
    """The candidate's headers by every name that `main` may give them."""
    folder = posixpath.dirname(main)
    named = {name: text for name, text in files.items() if name.endswith(".cuh")}
    beside = {posixpath.relpath(name, folder): text for name, text in named.items() if folder}
    return named | {name: text for name, text in beside.items() if not name.startswith("..")}


def _macro(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value!r}f" if isinstance(value, float) else str(value)


def _check_entry(variant: KernelVariant, ptx: str) -> None:
    entries = sass.entries(ptx)
    if variant.function not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise CudaError(
            "compile.no_kernel",
            f'{variant.file} has no extern "C" __global__ function {variant.function!r}; kernels: {known}',
        )
    entry = entries[variant.function]
    given = [variant.signature[name] for name in variant.ordered]
    if len(entry.parameters) != len(given):
        takes = f"{variant.function} takes {len(entry.parameters)} arguments, the plan passes {len(given)}"
        raise CudaError("compile.signature", takes)
    for name, kind, taken in zip(variant.ordered, given, entry.parameters, strict=True):
        if not _same(kind, taken):
            shown = f"argument {name} of {variant.function} is {kind}, the kernel takes {taken} (PTX)"
            raise CudaError("compile.signature", shown)
    threads = variant.options["threads"]
    if entry.required_threads not in (None, threads) or (entry.max_threads or 1024) < threads:
        bound = entry.required_threads or entry.max_threads
        raise CudaError("compile.threads", f"{variant.function} is bound to {bound} threads, the plan has {threads}")
    if entry.cluster not in (None, variant.options["cluster"]):
        planned = variant.options["cluster"]
        raise CudaError("compile.cluster", f"{variant.function} has clusters of {entry.cluster}, the plan {planned}")


def _check_resources(variant: KernelVariant, report: sass.PtxasReport) -> None:
    threads = variant.options["threads"]
    # Registers are given out to a warp in units of 256, so 8 a thread.
    registers = -(-report.registers // 8) * 8 * threads
    needs = {
        f"registers ({report.registers} a thread)": (registers, REGISTERS_OF_A_BLOCK),
        "bytes of shared memory": (report.static_shared_bytes, MAX_SHARED_BYTES),
    }
    for what, (need, limit) in needs.items():
        if need > limit:
            message = f"{variant.function} with {threads} threads needs {need} {what}, a block has {limit}"
            raise CudaError("compile.out_of_resources", message)


def _same(kind: str, taken: str) -> bool:
    """Whether a plan's type fits PTX's: `f32`, `u64`, `b8[128]`. Signedness is not PTX's to say."""
    if kind == "tensor_map":
        return taken == "b8[128]"
    if kind == "peers" or kind.startswith("*"):
        return re.fullmatch(r"[bus]64", taken) is not None
    expected = _PTX_TYPES[kind]
    return taken == expected or re.fullmatch(rf"[bus]{expected}", taken) is not None


def _bounded(log: str) -> str:
    half = _MAX_LOG // 2
    return log if len(log) <= _MAX_LOG else f"{log[:half]}\n[...]\n{log[-half:]}"


def _text(size, get, program) -> bytes:
    data = b" " * _checked(size(program))
    _checked(get(program, data))
    return data.rstrip(b"\0") if get.__name__ != "nvrtcGetCUBIN" else data


def _checked(result: tuple):
    status, *values = result
    if status.value:
        raise CudaError("compile.error", f"NVRTC: {status!r}")
    return values[0] if values else None
