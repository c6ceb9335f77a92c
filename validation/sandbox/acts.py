"""What the self-test does inside the jail: forbidden acts, really attempted, and honest ones.

Each act returns what happened. A forbidden act that is stopped raises OSError (or says so in its return value).
"""

import contextlib
import ctypes
import errno
import importlib.util
import mmap
import os
import pathlib
import platform
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

from . import syscalls

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

_KNOWN_STRANGERS = 256


class Held(Exception):
    """A forbidden act did not succeed, though no system call failed."""


def attempt(payload: dict[str, Any], memory: list[mmap.mmap], scratch: pathlib.Path) -> dict[str, Any]:
    """Tries every act: name -> [whether it succeeded, what happened]."""
    outcomes = {}
    for name, act in {**FORBIDDEN, **HONEST}.items():
        if name in payload["skip"]:
            continue
        try:
            outcomes[name] = [True, str(act(payload, memory, scratch))]
        except (OSError, MemoryError, Held) as error:
            outcomes[name] = [False, f"{type(error).__name__}: {error}"]
        except Exception as error:
            outcomes[name] = [name in FORBIDDEN, f"did not run: {traceback.format_exception_only(error)[-1].strip()}"]
    return outcomes


def execute(payload: dict[str, Any], memory: list[mmap.mmap], scratch: pathlib.Path) -> Any:
    """Imports `payload["source"]` from a file in scratch, as a candidate is, and calls its `main(memory, scratch)`."""
    path = scratch / "executed.py"
    path.write_text(payload["source"])
    spec = importlib.util.spec_from_file_location("executed", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["executed"] = module
    spec.loader.exec_module(module)
    return module.main(memory, scratch)


def _raw(number: int, *arguments: int) -> int:
    result = _libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _all_stopped(attempts: dict[str, Callable[[], object]]) -> str:
    """Raises Held if every attempt raises OSError; names those that did not."""
    through, stopped = [], []
    for name, act in attempts.items():
        try:
            act()
            through.append(name)
        except OSError as error:
            stopped.append(f"{name}: {errno.errorcode.get(error.errno, error)}")
    if not through:
        raise Held(", ".join(stopped))
    return f"succeeded: {', '.join(through)}"


def _open_socket(payload, memory, scratch):
    kinds = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6, "Unix": socket.AF_UNIX, "netlink": socket.AF_NETLINK}
    return _all_stopped(
        {name: lambda kind=kind: socket.socket(kind, socket.SOCK_DGRAM) for name, kind in kinds.items()}
    )


def _read_strangers(payload, memory, scratch):
    return _all_stopped({path: lambda path=path: open(path, "rb").close() for path in payload["unreadable"]})


def _write_outside(payload, memory, scratch):
    def write(folder):
        path = os.path.join(folder, f"fasttrack-sandbox-{os.getpid()}")
        with open(path, "x"):
            os.unlink(path)

    return _all_stopped({folder: lambda folder=folder: write(folder) for folder in payload["unwritable"]})


def _change_modes(payload, memory, scratch):
    paths = [*payload["unreadable"], *payload["unwritable"]]
    return _all_stopped({path: lambda path=path: os.chmod(path, os.stat(path).st_mode & 0o7777) for path in paths})


def _signal_strangers(payload, memory, scratch):
    return _all_stopped({str(pid): lambda pid=pid: os.kill(pid, 0) for pid in payload["strangers"] if pid > 2})


def _read_environ(payload, memory, scratch):
    def read(pid):
        with open(f"/proc/{pid}/environ", "rb") as file:
            if not file.read(1):
                raise OSError(errno.ENODATA, "empty")

    pids = {1, 2, os.getppid(), *payload["strangers"]} - {os.getpid()}
    return _all_stopped({str(pid): lambda pid=pid: read(pid) for pid in sorted(pids)})


def _write_memory_of_others(payload, memory, scratch):
    pids = {1, os.getppid(), *payload["strangers"]} - {os.getpid()}
    return _all_stopped({str(pid): lambda pid=pid: open(f"/proc/{pid}/mem", "r+b").close() for pid in sorted(pids)})


# Calls whose arguments below are valid enough to succeed, or to fail otherwise than with EPERM or ENOSYS.
_CALLS = {
    "ptrace": ((101, 117), (2, 0, 0, 0)),
    "unshare": ((272, 97), (0,)),
    "mount": ((165, 40), (0, 0, 0, 0, 0)),
    "umount2": ((166, 39), (0, 0)),
    "pivot_root": ((155, 41), (0, 0)),
    "chroot": ((161, 51), (0,)),
    "setns": ((308, 268), (-1, 0)),
    "bpf": ((321, 280), (0, 0, 0)),
    "io_uring_setup": ((425, 425), (1, 0)),
    "userfaultfd": ((323, 282), (1,)),
    "perf_event_open": ((298, 241), (0, 0, -1, -1, 0)),
    "keyctl": ((250, 219), (0, -3, 0)),
    "process_vm_readv": ((310, 270), (0, 0, 0, 0, 0, 0)),
    "process_vm_writev": ((311, 271), (0, 0, 0, 0, 0, 0)),
    "pidfd_open": ((434, 434), (0, 0)),
    "pidfd_getfd": ((438, 438), (-1, 0, 0)),
    "pidfd_send_signal": ((424, 424), (-1, 0, 0, 0)),
    "kexec_load": ((246, 104), (0, 0, 0, 0)),
    "init_module": ((175, 105), (0, 0, 0)),
    "open_tree": ((428, 428), (-1, 0, 0)),
    "memfd_create": ((319, 279), (0, 0)),
    "shmget": ((29, 194), (0, 4096, 0o1600)),
    "clone3": ((435, 435), (0, 0)),
    "setuid": ((105, 146), (0,)),
    "setsid": ((112, 157), ()),
    "setpriority": ((141, 140), (0, 0, 0)),
    "sched_setaffinity": ((203, 122), (0, 0, 0)),
}


def _forbidden_calls(payload, memory, scratch):
    through, stopped = [], 0
    for name, (numbers, arguments) in _CALLS.items():
        try:
            _raw(numbers[("x86_64", "aarch64").index(platform.machine())], *arguments)
            through.append(name)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOSYS):
                stopped += 1
            else:
                through.append(f"{name} ({errno.errorcode[error.errno]})")
    if not through:
        raise Held(f"{stopped} calls refused")
    return f"reached the kernel: {', '.join(through)}"


def _new_namespace_by_clone(payload, memory, scratch):
    clone = getattr(syscalls.BY_ARGUMENT["clone"], platform.machine())
    pid = _raw(clone, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)  # CLONE_NEWUSER
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a user namespace was made"


def _capabilities(payload, memory, scratch):
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, data):
        raise RuntimeError("capget failed")
    no_new_privs = _libc.prctl(39, 0, 0, 0, 0)
    if not any(data) and no_new_privs == 1:
        raise Held("none, and no_new_privs is set")
    return f"capabilities {[hex(word) for word in data]}, no_new_privs {no_new_privs}"


def _inherited_environment(payload, memory, scratch):
    if foreign := sorted(set(os.environ) - set(payload["environment"])):
        return f"inherited: {', '.join(foreign)}"
    raise Held("only declared names")


def _inherited_descriptors(payload, memory, scratch):
    kinds = {}
    for number in range(_KNOWN_STRANGERS):
        with contextlib.suppress(OSError):
            os.fstat(number)
            kinds[number] = number
    # Standard streams, the result's pipe, and each memory file's mapping.
    if len(kinds) > 4 + len(memory):
        return f"open: {sorted(kinds)}"
    raise Held(f"{len(kinds)} descriptors")


def _too_much_memory(payload, memory, scratch):
    return f"{len(bytearray(payload['memory_bytes']))} bytes"


def _too_many_files(payload, memory, scratch):
    with open(scratch / "big", "wb") as file:
        try:
            for _ in range(payload["scratch_bytes"] // (1 << 20) + 2):
                file.write(bytes(1 << 20))
                file.flush()
        finally:
            os.unlink(scratch / "big")
    return "scratch has no end"


def _too_many_processes(payload, memory, scratch):
    children = []
    wait, release = os.pipe()
    try:
        for _ in range(2 * payload["processes"]):
            pid = os.fork()
            if pid == 0:
                os.close(release)
                os.read(wait, 1)  # until the parent closes its end
                os._exit(0)
            children.append(pid)
    except BlockingIOError as error:
        # Where the kernel counts a user's other processes too, the number is near the limit, not on it.
        if children:
            raise Held(f"{len(children)} children, then: {error.strerror}") from error
    finally:
        os.close(release)
        os.close(wait)
        for pid in children:
            os.waitpid(pid, 0)
    return f"{len(children)} children"


def _fork(payload, memory, scratch):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "forked"


def _execute(payload, memory, scratch):
    try:
        os.execv(scratch / "absent", ["absent"])
    except FileNotFoundError:
        return "execve was not refused"


def _use_scratch(payload, memory, scratch):
    path = scratch / "folder" / "file"
    path.parent.mkdir()
    path.write_text("kept")
    path.rename(scratch / "moved")
    return (scratch / "moved").read_text()


def _use_memory(payload, memory, scratch):
    memory[0][:4] = bytes(reversed(memory[0][:4]))
    return "four bytes reversed in place"


def _read_packages(payload, memory, scratch):
    for path in payload["readable"]:
        with open(path, "rb") as file:
            file.read(1)
    return f"{len(payload['readable'])} files of the interpreter and its packages"


def _start_the_same_python(payload, memory, scratch):
    code = "import sys; print(sys.prefix)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    if done.stdout.strip() != payload["prefix"]:
        raise Held(f"prefix {done.stdout.strip()!r}, exit code {done.returncode}: {done.stderr[-200:]}")
    return payload["prefix"]


FORBIDDEN: dict[str, Callable[..., Any]] = {
    "open a socket": _open_socket,
    "read the home directory and the work tree": _read_strangers,
    "write outside scratch": _write_outside,
    "change the mode of files outside scratch": _change_modes,
    "signal the judge": _signal_strangers,
    "read another process's environment": _read_environ,
    "open another process's memory": _write_memory_of_others,
    "make privileged or dangerous system calls": _forbidden_calls,
    "make a namespace with clone": _new_namespace_by_clone,
    "hold capabilities": _capabilities,
    "inherit the environment": _inherited_environment,
    "inherit descriptors": _inherited_descriptors,
    "allocate more memory than the limit": _too_much_memory,
    "write more than the scratch limit": _too_many_files,
    "start more processes than the limit": _too_many_processes,
    "fork": _fork,
    "execute a program": _execute,
}

HONEST: dict[str, Callable[..., Any]] = {
    "use the scratch directory": _use_scratch,
    "write the shared memory": _use_memory,
    "read the interpreter and its packages": _read_packages,
    "start the same Python": _start_the_same_python,
}
