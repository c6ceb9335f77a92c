"""The sandbox's job: interpret one kernel pack on buffers in shared memory.

It runs in a confined process that was started with TRITON_INTERPRET=1 and sees nothing but the vetted kernel sources,
the launch plan and the buffers: no expected values, no oracle, no host code of the candidate.
"""

import ctypes
import importlib
import mmap
import pathlib
import sys
import time
import traceback
import uuid
from types import ModuleType

from ...errors import UserError
from ..happens_before import launch_orders, schedule
from ..kernel_source import KernelSource
from ..pack import KernelPack, KernelVariant, Language, Role
from . import corrections


def run(payload: dict, memory: list[mmap.mmap], scratch: pathlib.Path) -> dict:
    """Runs the launches of a pack on `memory[0]`.

    `payload` has `source` (KernelSource as a dict), `pack` (KernelPack as a dict), `buffers` (name -> offset and bytes
    in memory[0], whether it is writable, by how many bytes its address is lowered, and what access_log.shadow takes)
    and `order` (ascending, descending, shuffled:<seed>): the order of the programs inside a launch, and of launches that
    neither streams nor waits order. The result of an honest plan does not depend on it.

    Returns `status` with `message`, `details`, `launches` (of each launch: programs that ran to their end, bytes_loaded
    and bytes_stored by active lanes) and `seconds` (of interpreting): `ok` (`conflict` is then the first access that
    the access log refuses, or None); `violation` (a launch touched memory that it may not touch; `details` is the first
    such access); `prefetch_writes` (the same, where a prefetch launch wrote to a buffer that others may write);
    `false_hint` (the kernel promises the compiler something that is not so); `failed_assertion` (its own
    `tl.device_assert` does not hold); `undefined_shift` (by a count that the value's width does not allow); `unsupported` (only a GPU can run it);
    `error` (the plan does not fit source or buffers, or a kernel raised). Once it is not `ok`,
    buffers hold whatever the programs before had written.
    """
    corrections.install()
    from . import execute
    from .access_log import AccessLog
    from .arguments import Bound, shadows
    from .violations import FailedAssertion, FalseHint, MemoryViolation, NotInterpretable, UndefinedShift

    started = time.perf_counter()
    step = _Step()
    try:
        source = KernelSource.model_validate(payload["source"])
        pack = KernelPack.model_validate(payload["pack"])
        modules = _import_sources(source, scratch)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory[0]))
        log = AccessLog(shadows(pack, payload["buffers"], base))
        orders = launch_orders(pack)
        step.meters = [{"programs": 0} for _ in pack.launches]
        for step.launch in schedule(pack, payload["order"]):
            launch, meter = pack.launches[step.launch], step.meters[step.launch]
            variant = pack.kernels[launch.kernel]
            bound = Bound(launch, variant, payload["buffers"], base, len(memory[0]), log)
            log.clock.begin_launch(step.launch, orders[step.launch])
            kernel = _kernel(modules, variant)
            arguments = bound.values(kernel)
            for _ in execute.run_programs(kernel, arguments, launch.grid, payload["order"], bound.memory, step.launch):
                meter["programs"] += 1
            meter.update(bytes_loaded=bound.memory.bytes_loaded, bytes_stored=bound.memory.bytes_stored)
    except MemoryViolation as found:
        details = found.violation.as_dict()
        writable = payload["buffers"].get(details["buffer"], {}).get("writable", False)
        if launch.role is Role.PREFETCH and details["fault"] == "read_only" and writable:
            return step.result("prefetch_writes", f"a prefetch launch writes: {found}", started, details)
        return step.result("violation", str(found), started, details)
    except FalseHint as hint:
        return step.result("false_hint", _describe(hint, scratch), started, {})
    except FailedAssertion as failed:
        return step.result("failed_assertion", _describe(failed, scratch), started, {})
    except UndefinedShift as shift:
        return step.result("undefined_shift", _describe(shift, scratch), started, {})
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


def _kernel(modules: dict[str, ModuleType], variant: KernelVariant):
    from triton.runtime.interpreter import InterpretedFunction

    kernel = getattr(modules[variant.file], variant.function) if variant.language is Language.TRITON else None
    if not isinstance(kernel, InterpretedFunction):
        raise UserError(f"{variant.file}: {variant.function} is not a @triton.jit function", "launch kernels only")
    return kernel


def _describe(error: Exception, scratch: pathlib.Path) -> str:
    """One line: where in the candidate's files the error rose, and what it says."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(str(scratch)):
            file = pathlib.Path(frame.filename).relative_to(scratch).parts[1:]
            where = f"{'/'.join(file)}:{frame.lineno}: "
    text = str(error).strip().splitlines()
    return f"{where}{type(error).__name__}: {text[0] if text else ''}"
