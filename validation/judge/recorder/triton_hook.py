"""The one place that touches Triton's private API: launches arrive here bound and specialised, never compiled.

`JITFunction.run` stays Triton's own (binding, specialisation, options, callable grids). Only its compile step is
replaced, and a driver stands in for CUDA's, because binding asks the active driver for the target.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import triton

# What Triton imports at the first launch, so that a process which has imported this module is warm.
import triton.compiler.code_generator
import triton.experimental.gluon
import triton.language.extra.libdevice
import triton.tools.tensor_descriptor  # noqa: F401
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from ...errors import UserError
from ..plan import OPTIONS
from .refusal import Refused

SUPPORTED = ("3.8", "3.9")

# Options that follow from the target or from the process, not from what the candidate asked for.
_DERIVED = frozenset(("arch", "extern_libs", "ptx_version", "max_num_imprecise_acc_default", "backend_name"))


@dataclass(frozen=True)
class BoundLaunch:
    """One `kernel[grid](...)` as Triton bound it. Parts of tuples are parameters `name.0`, `name.1`, ..."""

    function: JITFunction
    signature: Mapping[str, Any]
    constexprs: Mapping[str, Any]
    divisible_by_16: tuple[str, ...]
    options: Mapping[str, Any]
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any] = field(repr=False)


def check_version() -> None:
    """Raises UserError unless the installed Triton is one that this module knows, and is not interpreting."""
    if triton.__version__.rpartition(".")[0] not in SUPPORTED:
        raise UserError(
            f"Triton {triton.__version__} is installed; the recorder knows {' and '.join(SUPPORTED)}",
            'pip install "triton>=3.8,<3.10"',
        )
    if knobs.runtime.interpret:
        raise UserError("TRITON_INTERPRET is set, so kernels cannot be recorded", "unset TRITON_INTERPRET")


@contextmanager
def intercepted(capability: int, on_launch: Callable[[BoundLaunch], None]) -> Iterator[None]:
    """While active every Triton launch of this process is handed to `on_launch` instead of a GPU."""
    check_version()
    originals = (JITFunction._do_compile, Autotuner.run, driver._active)

    def plan(self, key, signature, device, constexprs, options, attrs, warmup):
        kernel_cache, _, _, backend, _ = self.device_caches[device]
        kernel_cache[key] = kernel = _Planned(self, signature, constexprs, attrs, _requested(options, backend))
        return kernel

    def single_config(self, *args, **kwargs):
        if len(self.configs) > 1:
            raise Refused(
                "record.autotune",
                f"kernel {self.base_fn.__name__!r} has {len(self.configs)} @autotune configs: choose one by config; "
                "the judge times alternatives itself",
            )
        return originals[1](self, *args, **kwargs)

    with knobs.language.scope():
        knobs.language.default_fp_fusion = True
        JITFunction._do_compile, Autotuner.run = plan, single_config
        driver.set_active(_RecordingDriver(capability, on_launch))
        try:
            yield
        finally:
            JITFunction._do_compile, Autotuner.run, driver._active = originals


class _RecordingDriver(DriverBase):
    """Answers what binding asks: target, device and stream.

    Triton caches specialisations by device number, so the capability serves as that number.
    """

    def __init__(self, capability: int, on_launch: Callable[[BoundLaunch], None]) -> None:
        self.target = GPUTarget("cuda", capability, 32)
        self.on_launch = on_launch

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.target.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def map_python_to_cpp_type(self, ty: str) -> NoReturn:
        raise _unavailable("C++ types")

    def get_active_torch_device(self) -> NoReturn:
        raise _unavailable("triton.runtime.driver.active.get_active_torch_device()")

    def get_benchmarker(self) -> NoReturn:
        raise _unavailable("benchmarking")

    @property
    def utils(self) -> NoReturn:
        raise _unavailable("triton.runtime.driver.active.utils")


def _unavailable(what: str) -> Refused:
    return Refused("record.device", f"{what} is not available: device facts come from ctx.hardware")


class _Planned:
    """Stands where Triton keeps a compiled kernel: a specialisation that hands its launches to the active driver."""

    function = packed_metadata = None

    def __init__(self, function, signature, constexprs, attrs, options) -> None:
        names = function.arg_names

        def spelled(path: tuple[int, ...]) -> str:
            return ".".join((names[path[0]], *map(str, path[1:])))

        self.jit_function = function
        self.signature = signature
        self.constexprs = {spelled(path): value for path, value in constexprs.items()}
        self.divisible = tuple(spelled(path) for path, value in attrs.items() if value)
        self.options = options

    def launch_metadata(self, grid, stream, *arguments) -> None:
        if len(grid) > 3:
            raise Refused("record.grid", f"the grid has {len(grid)} dimensions, at most 3 are possible")

    def run(self, x, y, z, stream, function, metadata, launch_metadata, enter_hook, exit_hook, *arguments) -> None:
        name = self.jit_function.__name__
        grid = tuple(_dimension(size, name) for size in (x, y, z))
        signature, values = {}, {}
        for (parameter, kind), value in zip(self.signature.items(), arguments, strict=True):
            for path, part, held in _parts(name, parameter, kind, value):
                signature[path], values[path] = part, held
        driver.active.on_launch(
            BoundLaunch(
                function=self.jit_function,
                signature=signature,
                constexprs=self.constexprs,
                divisible_by_16=self.divisible,
                options=self.options,
                grid=grid,
                arguments=values,
            )
        )


def _parts(kernel: str, name: str, kind: Any, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(parameter, type, value) of one argument, or of each part of a tuple."""
    if isinstance(kind, str):
        yield name, kind, value
        return
    if hasattr(value, "_fields") or not value:
        raise Refused("record.tuple_argument", f"{kernel}: argument {name!r} is a named or an empty tuple")
    for number, (part, held) in enumerate(zip(kind, value, strict=True)):
        yield from _parts(kernel, f"{name}.{number}", part, held)


def _dimension(size: Any, kernel: str) -> int:
    try:
        return operator.index(size)
    except TypeError:
        raise Refused("record.grid", f"grid of {kernel!r}: {size!r} is not an integer; use // or triton.cdiv") from None


def _requested(options, backend) -> dict[str, Any]:
    """The launch options in full. Any other option that differs from its default cannot be part of a plan."""
    defaults = backend.parse_options({})
    for name, value in vars(options).items():
        if name not in OPTIONS and name not in _DERIVED and value != getattr(defaults, name):
            raise Refused(
                "record.option",
                f"compile option {name}={value!r} is not allowed; allowed: {', '.join(sorted(OPTIONS))}",
            )
    return {name: getattr(options, name) for name in sorted(OPTIONS)}
