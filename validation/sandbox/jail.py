"""The jail's first process, and the job's own process below it. Everything before `_work` is trusted code."""

import contextlib
import gc
import importlib
import json
import math
import mmap
import os
import pathlib
import resource
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from . import frames, system
from .plan import Plan, RungModule, SetupError

MAX_ERROR_CHARACTERS = 8000
SCRATCH_VARIABLES = ("HOME", "TMPDIR", "TRITON_HOME")


@dataclass
class Channels:
    """The jail's ends of its pipes, and the supervisor's life line (readable once the supervisor is gone)."""

    life: int
    setup: int
    status: int
    result: int
    out: int
    err: int


@contextlib.contextmanager
def exiting(code: int) -> Iterator[None]:
    """What runs inside never returns to the code that forked, whatever happens."""
    try:
        yield
    finally:
        os._exit(code)


def first(plan: Plan, rung: RungModule, channels: Channels) -> None:
    """Puts up the confinement, forks the job, waits for it, writes its wait status. Never returns.

    In a pid namespace this is process 1: its end is everybody's end there.
    """
    try:
        os.setpgid(0, 0)
        _die_with_parent(channels.life)
        rung.inside(plan)
        if rung.CONFINES:
            _give_up_privileges(plan)
            _die_with_parent(channels.life)  # a change of credentials clears the parent-death signal
        job = os.fork()
        if job == 0:
            with exiting(1):
                _run(plan, rung, channels)
    except BaseException as error:
        _report(channels.setup, {"failed": describe(error)})
        os._exit(1)
    for descriptor in (channels.setup, channels.result, channels.out, channels.err, *plan.memory):
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == job and not os.WIFSTOPPED(status):
            os.write(channels.status, struct.pack("=i", status))
            os._exit(0)


def _die_with_parent(life: int) -> None:
    system.prctl("PR_SET_PDEATHSIG", system.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.set_blocking(life, False)
    try:
        os.read(life, 1)  # end of file: the parent went before the signal was asked for
        os._exit(1)
    except BlockingIOError:
        pass


def _give_up_privileges(plan: Plan) -> None:
    system.drop_bounding_set()
    if plan.drop_uid:
        os.setgroups([])
        os.setresgid(plan.gid, plan.gid, plan.gid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
    system.drop_capabilities()
    system.prctl("PR_SET_NO_NEW_PRIVS", system.PR_SET_NO_NEW_PRIVS, 1)
    # Neither readable nor traceable by processes of the same uid, through /proc or otherwise.
    system.prctl("PR_SET_DUMPABLE", system.PR_SET_DUMPABLE, 0)
    _assert_readable(plan)


def _assert_readable(plan: Plan) -> None:
    for root in plan.roots:
        if os.access(root, os.R_OK):
            continue
        steps = [*reversed(pathlib.Path(root).parents), pathlib.Path(root)]
        closed = next((str(step) for step in steps if not os.access(step, os.X_OK)), root)
        raise SetupError(f"uid {plan.uid} cannot read {root}: {closed} is closed to other users")


def _report(setup: int, message: dict) -> None:
    os.write(setup, json.dumps(message).encode()[: 1 << 16])
    os.close(setup)


def describe(error: BaseException) -> str:
    """One line on why the confinement could not be put up."""
    return f"{error.strerror or error}" if isinstance(error, OSError) else f"{error or type(error).__name__}"


def _run(plan: Plan, rung: RungModule, channels: Channels) -> None:
    """The job's process. Never returns."""
    try:
        system.prctl("PR_SET_PDEATHSIG", system.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(channels.out, 1)
        os.dup2(channels.err, 2)
        _close_all_but({channels.setup, channels.result, *plan.memory})
        memory = _map(plan.memory)
        _set_environment(plan.scratch)
        _set_limits(plan)
        rung.lock(plan)
        plan.facts |= {"uid": os.getuid(), "prefix": sys.prefix}
        _report(channels.setup, {"ready": plan.facts})
    except BaseException as error:
        _report(channels.setup, {"failed": describe(error)})
        os._exit(1)
    _work(plan, memory, channels.result)


def _close_all_but(kept: set[int]) -> None:
    previous = 2
    for descriptor in sorted(kept):
        os.closerange(previous + 1, descriptor)
        previous = descriptor
    os.closerange(previous + 1, 1 << 20)


def _map(descriptors: tuple[int, ...]) -> list[mmap.mmap]:
    maps = []
    for descriptor in descriptors:
        maps.append(mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        os.close(descriptor)
    return maps


def _set_environment(scratch: str) -> None:
    os.chdir(scratch)
    os.umask(0o077)
    # Triton takes the home at import; TRITON_HOME it reads when it needs the cache.
    os.environ.update(dict.fromkeys(SCRATCH_VARIABLES, scratch))
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    gc.enable()


def _set_limits(plan: Plan) -> None:
    limits = plan.limits
    # A backstop behind the supervisor's clock: no process can use more than every core for that long.
    cpu_seconds = math.ceil(limits.wall_seconds) * (os.cpu_count() or 1) + 5
    for kind, value in {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_NPROC: plan.other_tasks + limits.processes,
        resource.RLIMIT_FSIZE: limits.scratch_bytes,
        resource.RLIMIT_CORE: 1,  # stricter than 0: a core handler behind a pipe is not started either
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _work(plan: Plan, memory: list[mmap.mmap], result: int) -> None:
    """Imports and calls the entry; writes one frame; ends without running anybody's exit handlers."""
    try:
        module, _, name = plan.entry.partition(":")
        value = getattr(importlib.import_module(module), name)(plan.payload, memory, pathlib.Path(plan.scratch))
        document, blobs = value if isinstance(value, tuple) else (value, [])
        frame = frames.encode({"value": document}, tuple(bytes(blob) for blob in blobs))
    except BaseException as error:
        out_of_memory = isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate" in str(error)
        if out_of_memory:
            error.__traceback__ = None  # the frames hold the memory that the report needs
        frame = frames.encode({"error": _tail(error), "out_of_memory": out_of_memory})
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed or replaced by the job: what it printed is lost, its result is not
    view = memoryview(frame)
    while view:
        view = view[os.write(result, view) :]
    os._exit(0)


def _tail(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return text[-MAX_ERROR_CHARACTERS:].encode("utf-8", "backslashreplace").decode("utf-8")
