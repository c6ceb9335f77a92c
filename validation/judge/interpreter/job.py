"""The sandbox's job: interpret one kernel pack on buffers in shared memory.

It runs in a confined process that was started with TRITON_INTERPRET=1 and sees nothing but the vetted kernel sources,
the launch plan and the buffers: no expected values, no oracle, no host code of the candidate.
"""

import ctypes
import importlib
import inspect
import mmap
import pathlib
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from ...errors import UserError
from ..happens_before import launch_orders, schedule
from ..kernel_source import KernelSource
from ..pack import BufferArgument, KernelPack, KernelVariant, Launch, Role
from . import corrections

if TYPE_CHECKING:
    from .access_log import AccessLog
    from .memory import Memory


def run(payload: dict, memory: list[mmap.mmap], scratch: pathlib.Path) -> dict:
    """Runs the launches of a pack on `memory[0]`.

    `payload` has `source` (KernelSource as a dict), `pack` (KernelPack as a dict), `buffers` (name -> offset and bytes
    in memory[0], whether it is writable, by how many bytes its address is lowered, and what access_log.shadow takes)
    and `order` (ascending, descending, shuffled:<seed>): the order of the programs inside a launch, and of launches that
    neither streams nor waits order. The result of an honest plan does not depend on it.

    Returns `status` with `message`, `details`, `launches` (of each launch: programs that ran to their end, bytes_loaded
    and bytes_stored by active lanes) and `seconds` (of interpreting): `ok` (`conflict` is then the first access that
    the access log refuses, or None); `violation` (a launch touched memory that it may not touch; `details` is the first
    such access); `false_hint` (the kernel promises the compiler something that is not so); `unsupported` (only a GPU can run it); `error` (the plan does not fit source or buffers, or a kernel raised).
    Once it is not `ok`, buffers hold whatever the programs before had written.
    """
    corrections.install()
    from .access_log import AccessLog
    from .violations import FalseHint, MemoryViolation, NotInterpretable

    started = time.perf_counter()
    step = _Step()
    try:
        source = KernelSource.model_validate(payload["source"])
        pack = KernelPack.model_validate(payload["pack"])
        modules = _import_sources(source, scratch)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory[0]))
        log = AccessLog(_shadows(pack, payload["buffers"], base))
        orders = launch_orders(pack)
        step.meters = [{"programs": 0} for _ in pack.launches]
        for step.launch in schedule(pack, payload["order"]):
            launch, meter = pack.launches[step.launch], step.meters[step.launch]
            allowed = _allowed(launch, pack.kernels[launch.kernel], payload["buffers"], base, len(memory[0]), log)
            log.clock.begin_launch(step.launch, orders[step.launch])
            for _ in _run_launch(step.launch, pack, modules, payload["buffers"], base, allowed, payload["order"]):
                meter["programs"] += 1
            meter.update(bytes_loaded=allowed.bytes_loaded, bytes_stored=allowed.bytes_stored)
    except MemoryViolation as violation:
        return step.result("violation", str(violation), started, violation.violation.as_dict())
    except FalseHint as hint:
        return step.result("false_hint", _describe(hint, scratch), started, {})
    except NotInterpretable as reason:
        return step.result("unsupported", str(reason), started, {})
    except Exception as error:
        return step.result("error", _describe(error, scratch), started, {"exception": type(error).__name__})
    conflict = log.conflict and log.conflict.as_dict() | {"message": str(log.conflict)}
    return step.result("ok", "", started, {}) | {"conflict": conflict}


class _Step:
    """How far a run has come."""

    def __init__(self) -> None:
        self.launch = 0
        self.meters: list[dict[str, int]] = []

    def result(self, status: str, message: str, started: float, details: dict) -> dict:
        return {
            "status": status, "message": message, "launches": self.meters, "seconds": time.perf_counter() - started,
            "details": details if status == "ok" else details | {"launch": self.launch},
        }  # fmt: skip


def _import_sources(source: KernelSource, scratch: pathlib.Path) -> dict[str, ModuleType]:
    """Writes the sources as a package with a fresh name, imports every file, and returns the modules by file."""
    from . import language

    package = f"candidate_{uuid.uuid4().hex}"
    root = scratch / package
    for name, text in source.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(scratch))
    importlib.invalidate_caches()
    try:
        modules = {name: importlib.import_module(_module_name(package, name)) for name in source.files}
    finally:
        sys.path.remove(str(scratch))
    for module in modules.values():
        language.prepare_module(module)
    return modules


def _module_name(package: str, file: str) -> str:
    parts = [package, *file.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _run_launch(
    number: int, pack: KernelPack, modules: dict[str, ModuleType], buffers: dict, base: int, allowed: "Memory",
    order: str,
) -> Iterator[tuple[int, int, int]]:
    from triton.runtime.interpreter import InterpretedFunction

    from . import execute

    launch = pack.launches[number]
    variant = pack.kernels[launch.kernel]
    kernel = getattr(modules[variant.file], variant.function)
    if not isinstance(kernel, InterpretedFunction):
        raise UserError(f"{variant.file}: {variant.function} is not a @triton.jit function", "launch kernels only")
    arguments = _arguments(launch, variant, kernel, buffers, base)
    return execute.run_programs(kernel, arguments, launch.grid, order, allowed, number)


def _arguments(launch: Launch, variant: KernelVariant, kernel, buffers: dict, base: int) -> dict[str, object]:
    """Every parameter's value: pointers and scalars as tensors, constants as the kernel declares them."""
    from . import execute

    values: dict[str, object] = {}
    for name, parameter in inspect.signature(kernel.fn).parameters.items():
        if name in launch.arguments:
            argument = launch.arguments[name]
            if isinstance(argument, BufferArgument):
                place = buffers[argument.buffer]
                address = (base + place["offset"] + argument.offset - place.get("shift", 0)) % 2**64
                values[name] = execute.pointer(address, argument.dtype.value)
            else:
                values[name] = execute.scalar(argument.value, argument.type)
        elif name in variant.constexprs:
            value = variant.constexprs[name]
            # An ordinary parameter that the compiler specialised on (an integer 1, say) is still an i32 to the kernel.
            declared = "constexpr" in str(parameter.annotation)
            ordinary = not declared and isinstance(value, bool | int)
            values[name] = execute.scalar(value, "i1" if isinstance(value, bool) else "i32") if ordinary else value
        elif parameter.default is inspect.Parameter.empty:
            raise UserError(f"kernel {variant.function}: parameter {name} has no value in the plan", "record it again")
    return values


def _shadows(pack: KernelPack, buffers: dict, base: int) -> dict:
    """A shadow for every buffer that the plan names and may write, as fine as the finest pointer into it."""
    from .access_log import shadow

    sizes: dict[str, int] = {}
    for launch in pack.launches:
        for argument in launch.arguments.values():
            if isinstance(argument, BufferArgument):
                sizes[argument.buffer] = min(sizes.get(argument.buffer, 8), argument.dtype.bytes)
    made = {name: shadow(name, buffers[name], base + buffers[name]["offset"], size) for name, size in sizes.items()}
    return {name: one for name, one in made.items() if one is not None}


def _allowed(
    launch: Launch, variant: KernelVariant, buffers: dict, base: int, size: int, log: "AccessLog"
) -> "Memory":
    """The launch's buffers as address ranges. A prefetch launch may write nothing."""
    from .memory import Memory, Range

    users: dict[str, list[str]] = {}
    for name, argument in launch.arguments.items():
        if isinstance(argument, BufferArgument):
            users.setdefault(argument.buffer, []).append(name)
    ranges = []
    for name, parameters in users.items():
        offset, length = buffers[name]["offset"], buffers[name]["bytes"]
        if offset < 0 or length < 0 or offset + length > size:
            raise UserError(
                f"buffer {name}: bytes {offset} to {offset + length} lie outside the {size} mapped", "map it"
            )
        writable = buffers[name]["writable"] and launch.role is not Role.PREFETCH
        ranges.append(Range(name, tuple(parameters), base + offset, base + offset + length, writable, log.of(name)))
    return Memory(variant.function, ranges, log)


def _describe(error: Exception, scratch: pathlib.Path) -> str:
    """One line: where in the candidate's files the error rose, and what it says."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(str(scratch)):
            file = pathlib.Path(frame.filename).relative_to(scratch).parts[1:]
            where = f"{'/'.join(file)}:{frame.lineno}: "
    text = str(error).strip().splitlines()
    return f"{where}{type(error).__name__}: {text[0] if text else ''}"
