"""Runs a model's own host code on a CPU: a kernel's `ctx` whose launches the corrected interpreter carries out.

For whole-model comparisons at small widths. Here, unlike in a verdict, host code of a model runs in this process: call
it in a process of its own that was started with TRITON_INTERPRET=1. Streams are in order; every access is held against
the tensors that its launch was given, at their storages' ends.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from torch import Tensor

from ...errors import UserError
from ...tensors import DType, torch_dtype
from . import corrections

_ELEMENTS = {torch_dtype(dtype): dtype.value for dtype in DType}


@dataclass(frozen=True)
class Hardware:
    """Facts of the device that stands behind `ctx.hardware`."""

    name: str = "h200"
    capability: int = 90
    multiprocessors: int = 132
    max_shared: int = 232448


class InterpretingContext:
    """`ctx` on a CPU, the same object shape as at recording. `launches` names every kernel that ran, in order."""

    def __init__(self, hardware: Hardware = Hardware()) -> None:
        self.hardware = hardware
        self.launches: list[str] = []
        self._streams: list[str] = []
        _install(self)

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Launches inside run at once: an order that every stream allows."""
        self._streams.append(name)
        yield

    def wait(self, name: str) -> None:
        """Nothing to wait for. Raises ValueError for a stream that nothing was launched on."""
        if name not in self._streams:
            raise ValueError(f"wait({name!r}): nothing was launched on that stream; known: {sorted(set(self._streams))}")

    @contextmanager
    def prefetch(self) -> Iterator[None]:
        """Launches inside run: they write nothing."""
        yield

    def cuda(self, file: str, kernel: str, **options: Any) -> NoReturn:
        """Raises UserError: CUDA C++ has no interpreter."""
        raise UserError(f"{file}: {kernel} is CUDA C++, which runs on a GPU only", "dispatch to a Triton kernel here")

    def peers(self, tensors: Sequence[Tensor]) -> Tensor:
        """Raises UserError: addresses of peers are a GPU's."""
        raise UserError("tables of peers exist on a GPU only", "dispatch to a kernel without one here")

    def scalar(self, type: str, value: bool | int | float) -> Any:
        """A Triton kernel takes Python's numbers."""
        return value


def _install(context: InterpretingContext) -> None:
    """Interpreted kernels run corrected, on checked memory, and report to `context`."""
    corrections.install()
    from triton.runtime.interpreter import InterpretedFunction

    def run(self: InterpretedFunction, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        if not warmup:
            context.launches.append(self.fn.__name__)
            _launch(self, arguments, grid, keywords)

    InterpretedFunction.run = run


_prepared: set[str] = set()


def _prepare(function: Any) -> None:
    """The compiler's builtins for the modules of the kernel's package."""
    from . import language

    package = function.__module__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}.") and name not in _prepared:
            _prepared.add(name)
            language.prepare_module(module)


def _launch(kernel: Any, arguments: Sequence[Any], grid: Any, keywords: Mapping[str, Any]) -> None:
    from ..happens_before import Order
    from . import execute
    from .access_log import AccessLog
    from .memory import Memory, Range

    _prepare(kernel.fn)
    parameters = inspect.signature(kernel.fn).parameters
    given = inspect.getcallargs(kernel.fn, *arguments, **{k: v for k, v in keywords.items() if k in parameters})
    storages: dict[int, Range] = {}
    values = {}
    for name, value in given.items():
        if isinstance(value, Tensor):
            storage = value.untyped_storage()
            start = storage.data_ptr()
            storages.setdefault(start, Range(name, (name,), start, start + storage.nbytes(), True))
            values[name] = execute.pointer(value.data_ptr(), _ELEMENTS[value.dtype])
        elif "constexpr" not in str(parameters[name].annotation) and type(value) in (bool, int, float):
            values[name] = execute.scalar(value, _scalar_type(value))
        else:
            values[name] = value
    sizes = grid(given) if callable(grid) else grid
    log = AccessLog({})
    log.clock.begin_launch(0, Order(entry=frozenset(), waited=frozenset()))
    memory = Memory(kernel.fn.__name__, list(storages.values()), log)
    with np.errstate(all="ignore"):
        for _ in execute.run_programs(kernel, values, (*sizes, 1, 1)[:3], "ascending", memory, 0):
            pass


def _scalar_type(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"
