"""What a candidate's `launch` is given as `ctx`, launching for real: CUDA C++ of kimi_k3 on torch's current stream.

Machine code is compiled once for each set of macros, or taken from a directory of `<key>.cubin` that another machine
filled with `python benchmarks/kda_front.py --compile DIRECTORY`.
"""

import ctypes
import hashlib
import json
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import torch
from cuda.bindings import driver, nvrtc
from fasttrack_validation.judge.device_code.standard_headers import STANDARD_HEADERS

_CTYPES = {bool: ctypes.c_bool, int: ctypes.c_int, float: ctypes.c_float}


class Context:
    """`constants`: macros beside the kernel's own; `more`: arguments behind the kernel's own."""

    def __init__(
        self, blocks, *, constants=None, more=(), cubins=None, target="sm_90a", only_compile=False, cooperative=True
    ):
        self.hardware = SimpleNamespace(multiprocessors=blocks)
        self._constants, self._more, self._cubins = (constants or {}, tuple(more), cubins and Path(cubins))
        self._target, self._only_compile, self._functions = target, only_compile, {}
        self._cooperative = cooperative

    def cuda(self, file, kernel, *, threads, constants, cooperative=False, pdl=False):
        """As the recorder's Context has it."""
        constants = constants | self._constants

        def on(grid):
            def launch(*arguments, shared_bytes):
                if self._only_compile:
                    self._cubin(file, constants)
                    return
                self._launch(self._function(file, kernel, constants, shared_bytes), grid[0], threads, shared_bytes,
                             (*arguments, *self._more), cooperative and self._cooperative, pdl)  # fmt: skip

            return launch

        return _Launcher(on)

    def _function(self, file, kernel, constants, shared_bytes):
        key = _key(file, constants, self._target)
        if key not in self._functions:
            torch.cuda.current_stream()  # makes torch's context the current one
            module = checked(driver.cuModuleLoadData(self._cubin(file, constants)))
            function = checked(driver.cuModuleGetFunction(module, kernel.encode()))
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
            self._functions[key] = function
        return self._functions[key]

    def _cubin(self, file, constants):
        path = self._cubins and self._cubins / f"{_key(file, constants, self._target)}.cubin"
        if path and path.exists():
            return path.read_bytes()
        made = compile_source(file, constants, self._target)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(made)
        return made

    @staticmethod
    def _launch(function, blocks, threads, shared_bytes, arguments, cooperative, pdl):
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = (shared_bytes, torch.cuda.current_stream().cuda_stream)
        attributes, known = [], driver.CUlaunchAttributeID
        if cooperative:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = known.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attributes[-1].value.cooperative = 1
        if pdl:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = known.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attributes[-1].value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = attributes, len(attributes)
        values = tuple(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments)
        types = tuple(ctypes.c_void_p if isinstance(a, torch.Tensor) else _CTYPES[type(a)] for a in arguments)
        checked(driver.cuLaunchKernelEx(config, function, (values, types), 0))


class _Launcher:
    def __init__(self, on):
        self._on = on

    def __getitem__(self, grid):
        return self._on(grid)


def sources():
    """Name -> text of the CUDA C++ files of the model's kernels."""
    root = files("fasttrack_models.kimi_k3") / "kernels"
    paths = [path for folder in (root, root / "cuda") for path in folder.iterdir()]
    return {f"kernels/{path.relative_to(root)}": path.read_text() for path in paths if path.suffix in (".cu", ".cuh")}


def compile_source(file, constants, target):
    """Machine code of `file` for `target`. Raises RuntimeError with the compiler's words."""
    texts = sources()
    headers = STANDARD_HEADERS | {name.removeprefix("kernels/cuda/"): text for name, text in texts.items()}
    options = [f"-arch={target}", "-std=c++17", *(f"-I{folder}" for folder in _toolkit_headers())]
    options += [f"-D{name}={_macro(value)}" for name, value in sorted(constants.items())]
    names, bodies = ([name.encode() for name in headers], [text.encode() for text in headers.values()])
    program = checked(nvrtc.nvrtcCreateProgram(texts[file].encode(), file.encode(), len(names), bodies, names))
    status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    if status.value:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{file}:\n{log.decode()}")
    cubin = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def _toolkit_headers():
    from cuda.pathfinder import find_nvidia_header_directory

    return [folder for name in ("cudart", "cccl") if (folder := find_nvidia_header_directory(name))]


def _key(file, constants, target):
    text = json.dumps([sources(), file, constants, target], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _macro(value):
    return f"{value!r}f" if isinstance(value, float) else str(int(value))


def checked(result):
    """What a binding returned beside its status; RuntimeError for any status but success."""
    status, *values = result
    if status.value:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else values
