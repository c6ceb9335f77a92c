"""A context that launches a model's CUDA C++ kernels at once on torch's stream: for benchmarks, on one GPU."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import torch
from cuda.bindings import driver, nvrtc
from torch import Tensor

from fasttrack_validation.contracts.kimi_k3.stock.nvrtc import checked

_TYPES = {float: ctypes.c_float, bool: ctypes.c_bool, int: ctypes.c_int, Tensor: ctypes.c_void_p}


class DeviceContext:
    """`hardware` and `cuda` as a kernel's `launch` sees them; kernels are compiled once.

    `cooperative=False` launches cooperative grids as ordinary ones, to see what the guarantee costs.
    """

    def __init__(self, root: Path, *, cooperative: bool = True) -> None:
        self.root = root
        self.cooperative = cooperative
        self.compiled: dict[tuple, Any] = {}
        properties = torch.cuda.get_device_properties(0)
        self.hardware = SimpleNamespace(
            capability=10 * properties.major + properties.minor, multiprocessors=properties.multi_processor_count
        )

    @cached_property
    def files(self) -> dict[str, str]:
        """Every CUDA C++ file below the root."""
        found = (path for path in self.root.rglob("*.cu*") if path.suffix in (".cu", ".cuh"))
        return {path.relative_to(self.root).as_posix(): path.read_text() for path in found}

    def cuda(
        self, file: str, kernel: str, *, threads: int, constants: Mapping[str, Any] | None = None,
        max_registers: int | None = None, pdl: bool = False, cluster: int = 1, cooperative: bool = False,
    ) -> "Kernel":  # fmt: skip
        """See the judge's recorder. Raises ValueError for clusters, which it cannot launch."""
        if cluster != 1:
            raise ValueError("this context launches no clusters")
        macros = tuple(sorted((constants or {}).items()))
        key = (file, kernel, macros, max_registers)
        if key not in self.compiled:
            options = [f"-arch=sm_{self.hardware.capability}a", "-std=c++17"]
            options += [f"-D{name}={_macro(value)}" for name, value in macros]
            options += [f"--maxrregcount={max_registers}"] if max_registers else []
            torch.cuda.current_stream()  # Makes torch's context the current one.
            module = checked(driver.cuModuleLoadData(self._compile(file, options)))
            self.compiled[key] = checked(driver.cuModuleGetFunction(module, kernel.encode()))
        return Kernel(self.compiled[key], threads, pdl, cooperative and self.cooperative)

    def _compile(self, file: str, options: list[str]) -> bytes:
        folder = PurePosixPath(file).parent
        headers = {
            PurePosixPath(name).relative_to(folder).as_posix(): text
            for name, text in self.files.items()
            if name.endswith(".cuh") and PurePosixPath(name).is_relative_to(folder)
        }
        names, texts = [name.encode() for name in headers], [text.encode() for text in headers.values()]
        program = checked(
            nvrtc.nvrtcCreateProgram(self.files[file].encode(), file.encode(), len(names), texts, names)
        )
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if status.value:
            log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{file} with {' '.join(options)}:\n{log.decode()}")
        cubin = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
        checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin


@dataclass(frozen=True)
class Kernel:
    """`kernel[grid](*arguments, shared_bytes=0)` launches on the current stream. Capture-safe after a first launch."""

    function: driver.CUfunction
    threads: int
    pdl: bool
    cooperative: bool

    def __getitem__(self, grid: tuple[int, ...] | int) -> Callable[..., None]:
        sizes = (*(grid if isinstance(grid, tuple) else (grid,)), 1, 1)[:3]
        return partial(self._launch, sizes)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, shared_bytes: int = 0) -> None:
        if shared_bytes > 48 << 10:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(self.function, limit, shared_bytes))
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, torch.cuda.current_stream().cuda_stream
        config.attrs = self._attributes()
        config.numAttrs = len(config.attrs)
        tensors = [isinstance(value, Tensor) for value in arguments]
        values = tuple(v.data_ptr() if tensor else v for v, tensor in zip(arguments, tensors, strict=True))
        types = tuple(_TYPES[Tensor if t else type(v)] for v, t in zip(arguments, tensors, strict=True))
        checked(driver.cuLaunchKernelEx(config, self.function, (values, types), 0))

    def _attributes(self) -> list[driver.CUlaunchAttribute]:
        found = []
        for wanted, name, field in (
            (self.cooperative, "COOPERATIVE", "cooperative"),
            (self.pdl, "PROGRAMMATIC_STREAM_SERIALIZATION", "programmaticStreamSerializationAllowed"),
        ):
            if wanted:
                attribute = driver.CUlaunchAttribute()
                attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
                value = attribute.value
                setattr(value, field, 1)
                attribute.value = value
                found.append(attribute)
        return found


def _macro(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value!r}f" if isinstance(value, float) else str(value)
