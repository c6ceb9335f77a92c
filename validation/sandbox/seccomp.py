"""A seccomp filter for jailed code, assembled here as classic BPF.

Shape: a foreign architecture kills; then one block for each call that is decided by its arguments; then the
allow-list; then a refusal (EPERM, or ENOSYS for calls younger than the table).
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

from . import syscalls, system

KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

# Offsets in struct seccomp_data; arguments are 64 bits wide, little-endian: the low word comes first.
_NUMBER, _ARCHITECTURE = 0, 4
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_CLONE_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; CLONE_NEWTIME is no flag of clone(2)
_CLONE_THREAD = 0x00010000
# FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ: what files and isatty() need, nothing that types or maps.
_IOCTLS = (0x541B, 0x5421, 0x5451, 0x5450, 0x5401, 0x5413)
# F_SETOWN, F_SETSIG, F_SETOWN_EX, F_NOTIFY: signals to a process of one's choice. F_SETLEASE: stalls other openers.
_FCNTLS_REFUSED = (8, 10, 15, 1024, 1026)
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_SET_VMA
_PRCTLS = (3, 15, 16, 21, 23, 39, 0x53564D41)

Instruction = tuple[int, int, int, int]


def _argument(index: int) -> int:
    return 16 + 8 * index


def _refuse(code: int) -> int:
    return _ERRNO | code


def _one_of(values: Iterable[int], then: int, otherwise: int) -> list[Instruction]:
    """Compares the accumulator with each value; ends with a return either way."""
    tests = [item for value in values for item in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, then))]
    return [*tests, (_RETURN, 0, 0, otherwise)]


def _decide(name: str, *, may_fork: bool, only_pid: int | None) -> list[Instruction]:
    """What follows once the number of `name` has matched. Ends with a return on every path."""
    eperm = _refuse(errno.EPERM)
    match name:
        case "clone":
            # The flags are the first argument on both architectures.
            threads_only = [] if may_fork else [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, eperm)]
            return [
                (_LOAD, 0, 0, _argument(0)),
                (_ANY_BIT, 0, 1, _CLONE_NAMESPACES),
                (_RETURN, 0, 0, eperm),
                *threads_only,
                (_RETURN, 0, 0, ALLOW),
            ]
        case "clone3":
            return [(_RETURN, 0, 0, _refuse(errno.ENOSYS))]  # flags are behind a pointer; libc falls back to clone
        case "ioctl":
            return [(_LOAD, 0, 0, _argument(1)), *_one_of(_IOCTLS, ALLOW, eperm)]
        case "fcntl":
            return [(_LOAD, 0, 0, _argument(1)), *_one_of(_FCNTLS_REFUSED, eperm, ALLOW)]
        case "prctl":
            return [(_LOAD, 0, 0, _argument(0)), *_one_of(_PRCTLS, ALLOW, eperm)]
        case "prlimit64":
            return [(_LOAD, 0, 0, _argument(0)), *_one_of((0,), ALLOW, eperm)]  # one's own limits only
        case "kill" | "tgkill":
            if only_pid is None:
                return [(_RETURN, 0, 0, ALLOW)]
            return [(_LOAD, 0, 0, _argument(0)), *_one_of((only_pid,), ALLOW, eperm)]
    raise ValueError(f"no rule for {name}")


def program(*, machine: str, may_fork: bool, only_pid: int | None = None) -> list[Instruction]:
    """The filter as (code, jump if true, jump if false, constant).

    `may_fork` allows fork and execve; without it only threads can be started. `only_pid` restricts kill and tgkill to
    that process, for kernels where nothing else confines signals. Raises KeyError for other architectures.
    """
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, KILL_PROCESS)]
    for name, numbers in syscalls.BY_ARGUMENT.items():
        block = _decide(name, may_fork=may_fork, only_pid=only_pid)
        code += [(_EQUAL, 0, len(block), getattr(numbers, machine)), *block]
    allowed = syscalls.ALLOWED | (syscalls.FORK | syscalls.EXECUTE if may_fork else {})
    for numbers in allowed.values():
        if (number := getattr(numbers, machine)) is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, ALLOW)]
    code += [
        (_AT_LEAST, 0, 1, syscalls.NEWEST_KNOWN + 1),
        (_RETURN, 0, 0, _refuse(errno.ENOSYS)),
        (_RETURN, 0, 0, _refuse(errno.EPERM)),
    ]
    return code


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def install(*, may_fork: bool, only_pid: int | None = None) -> None:
    """Locks this process into the filter for good. It must have one task, and no_new_privs set. Raises OSError."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no seccomp filter for {machine}: {' and '.join(ARCHITECTURES)} are known")
    instructions = program(machine=machine, may_fork=may_fork, only_pid=only_pid)
    packed = b"".join(struct.pack("=HBBI", *item) for item in instructions)
    mode_filter = 2
    system.prctl("PR_SET_SECCOMP", system.PR_SET_SECCOMP, mode_filter, _Program(len(instructions), packed))
