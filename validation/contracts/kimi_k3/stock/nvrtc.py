"""CUDA C++ from a string to a launch on torch's stream: compiled for the card at hand, once a process."""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from cuda.bindings import driver, nvrtc
from torch import Tensor

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int


class Module:
    """The kernels (extern "C") of one source file on the current device."""

    def __init__(self, path: Path, constants: Mapping[str, int | float]) -> None:
        major, minor = torch.cuda.get_device_capability()
        options = [f"-arch=sm_{major}{minor}", "-std=c++17", *(f"-D{k}={_literal(v)}" for k, v in constants.items())]
        torch.cuda.current_stream()  # Makes torch's context the current one.
        self._module = checked(driver.cuModuleLoadData(_compile(path, tuple(options))))

    def kernel(self, name: str) -> "Kernel":
        """The kernel called `name`."""
        return Kernel(checked(driver.cuModuleGetFunction(self._module, name.encode())))


class Kernel:
    """A loaded kernel."""

    def __init__(self, function: driver.CUfunction) -> None:
        self._function = function

    def __call__(self, grid: tuple[int, int], threads: int, arguments: Sequence[Tensor | int]) -> None:
        """Launches on the current stream: tensors pass as pointers, integers as int. Capture-safe."""
        values = tuple(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
        types = tuple(_POINTER if isinstance(a, Tensor) else _INT for a in arguments)
        stream = torch.cuda.current_stream().cuda_stream
        checked(driver.cuLaunchKernel(self._function, *grid, 1, threads, 1, 1, 0, stream, (values, types), 0))


def _literal(value: int | float) -> str:
    return f"{float(value)!r}f" if isinstance(value, float) else str(value)


@cache
def _compile(path: Path, options: tuple[str, ...]) -> bytes:
    program = checked(nvrtc.nvrtcCreateProgram(path.read_bytes(), path.name.encode(), 0, [], []))
    status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{path.name} with {' '.join(options)}:\n{log.decode()}")
    cubin = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def checked(result: tuple):
    """What a binding returned beside its status; RuntimeError for any status but success."""
    status, *values = result
    if status.value != 0:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else values
