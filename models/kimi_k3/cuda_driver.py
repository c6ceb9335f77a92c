"""CUDA's driver and run-time compiler through cuda-bindings: code from a file, launches with attributes, tensor maps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from cuda.bindings import driver, nvrtc
from cuda.pathfinder import find_nvidia_header_directory
from torch import Tensor

from .standard_headers import STANDARD_HEADERS

# The driver reads parameters from these places; an encoded tensor map must lie at a multiple of 64 bytes.
_PLACE = 128
_PORTABLE_CLUSTER = 8
_ELEMENTS = {
    torch.uint8: 0, torch.int8: 0, torch.int16: 1, torch.int32: 3, torch.int64: 5, torch.float16: 6, torch.float32: 7,
    torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
"""CUtensorMapDataType"""
_TF32 = 11
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_modules: dict[tuple, Any] = {}
"""By device, sources and options: compiled once in a process, however many contexts launch it"""


class CompileError(RuntimeError):
    """A kernel file does not compile; the message holds the compiler's words."""


def function(
    sources: Mapping[str, str], file: str, name: str, constants: Mapping[str, Any], max_registers: int | None
):
    """The kernel `name` of `file`, one of `sources` (path -> text), on the current device. Constants are macros."""
    major, minor = torch.cuda.get_device_capability()
    torch.cuda.current_stream()  # Makes torch's context the current one.
    options = [f"-arch=sm_{major}{minor}a", *(f"-D{key}={_macro(value)}" for key, value in sorted(constants.items()))]
    if max_registers is not None:
        options.append(f"--maxrregcount={max_registers}")
    key = (torch.cuda.current_device(), frozenset(sources.items()), file, tuple(options))
    if key not in _modules:
        _modules[key] = _checked(driver.cuModuleLoadData(compiled(sources, file, options)))
    return _checked(driver.cuModuleGetFunction(_modules[key], name.encode()))


def compiled(sources: Mapping[str, str], file: str, options: Sequence[str]) -> bytes:
    """`file` as a cubin. It may include headers (.cuh) by their paths or from beside it. Raises CompileError."""
    folder = file.rpartition("/")[0]
    headers = {name: text for name, text in sources.items() if name.endswith(".cuh")}
    headers |= {name.removeprefix(f"{folder}/"): text for name, text in headers.items()}
    headers |= STANDARD_HEADERS
    directories = [find_nvidia_header_directory(name) for name in ("cudart", "cccl")]
    arguments = ["-std=c++17", *(f"-I{directory}" for directory in directories if directory), *options]
    names, texts = [name.encode() for name in headers], [text.encode() for text in headers.values()]
    program = _checked(nvrtc.nvrtcCreateProgram(sources[file].encode(), file.encode(), len(names), texts, names))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), [argument.encode() for argument in arguments])
    if status.value:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CompileError(f"{file} with {' '.join(options)}:\n{log.decode(errors='replace').rstrip()}")
    cubin = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def allow(function, shared_bytes: int, cluster: int) -> None:
    """Dynamic shared memory beyond 48 KB, and clusters above eight blocks, need the function's leave."""
    attributes = driver.CUfunction_attribute
    name = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(function, name, shared_bytes))
    if cluster > _PORTABLE_CLUSTER:
        name = attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _checked(driver.cuFuncSetAttribute(function, name, 1))


def launch(
    function, grid: tuple[int, int, int], threads: int, shared_bytes: int, arguments: Sequence[Tensor], stream: int,
    *, pdl: bool, cluster: int, cooperative: bool,
) -> None:  # fmt: skip
    """Enqueues one launch."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.hStream = shared_bytes, driver.CUstream(stream)
    config.attrs = _attributes(pdl, cluster, cooperative)
    config.numAttrs = len(config.attrs)
    # The driver copies parameters from host memory at the launch, so tensors of this call will do.
    storage = torch.zeros(_PLACE * (len(arguments) + 1), dtype=torch.uint8)
    offset = -storage.data_ptr() % _PLACE
    for number, argument in enumerate(arguments):
        place = offset + _PLACE * number
        storage[place : place + len(argument)] = argument
    start = storage.data_ptr() + offset
    pointers = start + _PLACE * torch.arange(max(1, len(arguments)), dtype=torch.int64)
    _checked(driver.cuLaunchKernelEx(config, function, pointers.data_ptr(), 0))


def tensor_map(
    tensor: Tensor, block_shape: Sequence[int], swizzle: int, padding: str, round_to_tf32: bool
) -> Tensor:
    """The bytes, [128] uint8, of a CUtensorMap over `tensor` in boxes of `block_shape`, both outermost axis first."""
    fills = driver.CUtensorMapFloatOOBfill
    fill = fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
    if padding == "nan":
        fill = fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
    # One less than there are axes, yet a list that the binding may not hand on as a null pointer.
    strides = [tensor.element_size() * stride for stride in reversed(tensor.stride()[:-1])] or [16]
    encoded = _checked(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(_TF32 if round_to_tf32 else _ELEMENTS[tensor.dtype]),
            tensor.dim(),
            tensor.data_ptr(),
            [driver.cuuint64_t(size) for size in reversed(tensor.shape)],
            [driver.cuuint64_t(stride) for stride in strides],
            [driver.cuuint32_t(size) for size in reversed(block_shape)],
            [driver.cuuint32_t(1)] * tensor.dim(),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle(_SWIZZLES[swizzle]),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            fill,
        )
    )
    words = torch.tensor([int(word) for word in encoded.opaque], dtype=torch.uint64)
    return words.view(torch.uint8)


def _attributes(pdl: bool, cluster: int, cooperative: bool) -> list:
    kinds, found = driver.CUlaunchAttributeID, []

    def attribute(kind: Any):
        found.append(driver.CUlaunchAttribute())
        found[-1].id = kind
        return found[-1].value

    if pdl:
        early = attribute(kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        early.programmaticStreamSerializationAllowed = 1
    if cooperative:
        attribute(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1
    if cluster > 1:
        size = attribute(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).clusterDim
        size.x, size.y, size.z = cluster, 1, 1
    return found


def _macro(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value!r}f" if isinstance(value, float) else str(value)


def _checked(result: tuple):
    """What a binding returned beside its status; RuntimeError for any status but success."""
    status, *values = result
    if status.value:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else values
