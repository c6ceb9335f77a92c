"""Linux system calls that Python does not offer, by ctypes. A failed call raises OSError naming it.

Flag values are those of <linux/sched.h>, <linux/mount.h>, <linux/prctl.h> and <linux/capability.h>.
"""

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MNT_DETACH = 0x2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_CAPABILITY_VERSION_3 = 0x20080522
# pivot_root is the only call used here whose number differs between the architectures.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, call: str, subject: str = "") -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}{f' ({subject})' if subject else ''}: {os.strerror(code)}")
    return result


def syscall(name: str, number: int, *arguments: int | bytes | ctypes.Array | None) -> int:
    """The raw system call `number`; `name` is for the error. Integers are passed as longs, bytes as pointers."""
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *values), name)


def prctl(name: str, option: int, argument: int | ctypes.Structure = 0, extra: int | ctypes.Structure = 0) -> int:
    """prctl(2) with up to two arguments."""
    values = [ctypes.c_ulong(value) if isinstance(value, int) else ctypes.byref(value) for value in (argument, extra)]
    return _checked(_libc.prctl(option, *values, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl {name}")


def unshare(flags: int, what: str) -> None:
    """unshare(2): new namespaces for this process (for its children, where they are pid namespaces)."""
    _checked(_libc.unshare(flags), "unshare", what)


def mount(kind: str | None, target: str, flags: int, options: str = "") -> None:
    """mount(2) of a file system without a device, or, with no kind, a change of how mounts propagate."""
    name = kind.encode() if kind else None
    _checked(
        _libc.mount(name, target.encode(), name, ctypes.c_ulong(flags), options.encode()),
        "mount",
        kind or "propagation",
    )


def clone_tree(path: str) -> int:
    """A descriptor of a detached, recursive copy of the mounts at `path` (Linux 5.2)."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return syscall("open_tree", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def clone_root_descriptor() -> int:
    """A descriptor of the mount at `/`, for `restrict_mounts`."""
    return os.open("/", os.O_PATH | os.O_CLOEXEC)


def restrict_mounts(tree: int, attributes: int, *, recursive: bool = True) -> None:
    """Adds mount attributes (read-only, ...) to a mount, or to a whole tree of them (Linux 5.12)."""
    attributes_struct = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    syscall("mount_setattr", _MOUNT_SETATTR, tree, b"", flags, attributes_struct, ctypes.sizeof(attributes_struct))


def attach_tree(tree: int, target: str) -> None:
    """Mounts a tree made by `clone_tree` at `target`."""
    syscall("move_mount", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def enter_root(new_root: str) -> None:
    """Makes the mount at `new_root` the root of this mount namespace and detaches everything else."""
    os.chdir(new_root)
    # With both arguments the same directory the old root lies on top of the new one and can be detached by name.
    syscall("pivot_root", _PIVOT_ROOT[platform.machine()], b".", b".")
    _checked(_libc.umount2(b".", MNT_DETACH), "umount2", "the old root")
    os.chdir("/")


def drop_bounding_set() -> None:
    """Empties the capability bounding set, where this process may (CAP_SETPCAP)."""
    for capability in range(64):
        try:
            prctl("PR_CAPBSET_DROP", PR_CAPBSET_DROP, capability)
        except OSError:
            return  # EPERM: not permitted, and no_new_privs keeps the set out of reach; EINVAL: past the last one


def drop_capabilities() -> None:
    """Empties the ambient, effective, permitted and inheritable capability sets."""
    prctl("PR_CAP_AMBIENT", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def tasks_of(uid: int) -> int:
    """How many tasks (processes and threads) of `uid` /proc shows."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # it has ended since
    return count
