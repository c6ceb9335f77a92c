"""Rung 1: user, mount, pid, network, IPC and UTS namespaces, a root of its own, Landlock and seccomp.

As root there is no user namespace: its owner would keep uid 0 outside, where process limits do not bite, so the job
takes a uid of its own instead. Anyone else becomes the sole user of a user namespace.
"""

import os
import socket

from . import landlock, seccomp, system
from .plan import Plan
from .roots import DEVICES

CONFINES = True

SCRATCH = "/scratch"
_NAMESPACES = {
    "pid": system.CLONE_NEWPID,
    "network": system.CLONE_NEWNET,
    "ipc": system.CLONE_NEWIPC,
    "uts": system.CLONE_NEWUTS,
}
# Until pivot_root the new root needs a mount point from which no module is imported.
_STAGE = "/proc"


def outside(plan: Plan) -> None:
    """Enters the namespaces. The supervisor keeps its mounts, and children alone get the new pid namespace."""
    if plan.drop_uid:
        plan.other_tasks = 1
    else:
        _enter_user_namespace()
        # Since 5.14 the kernel counts a user's tasks in each user namespace: the supervisor and the jail's first.
        plan.other_tasks = 2 if _kernel() >= (5, 14) else system.tasks_of(plan.uid) + 1
    for name, flag in _NAMESPACES.items():
        system.unshare(flag, f"{name} namespace")
    plan.scratch = SCRATCH
    plan.scratch_is_sized = True
    plan.facts["namespaces"] = ["mount", *_NAMESPACES] + ([] if plan.drop_uid else ["user"])


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)))


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    system.unshare(system.CLONE_NEWUSER, "user namespace")
    # The kernel lets an ordinary user map a group only after giving up setgroups().
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def inside(plan: Plan) -> None:
    """Builds the root and moves into it. Copies of the mounts are taken first, so nothing can hide a source."""
    system.unshare(system.CLONE_NEWNS, "mount namespace")
    system.mount(None, "/", system.MS_REC | system.MS_PRIVATE)
    links = {path: os.readlink(path) for path in plan.roots if os.path.islink(path)}
    trees = {path: system.clone_tree(path) for path in (*plan.roots, *DEVICES) if path not in links}
    folders = {path for path in trees if os.path.isdir(path)}
    for path, tree in trees.items():
        nodev = 0 if path in DEVICES else system.MOUNT_ATTR_NODEV
        system.restrict_mounts(tree, system.MOUNT_ATTR_RDONLY | system.MOUNT_ATTR_NOSUID | nodev)

    os.umask(0o022)
    system.mount("tmpfs", _STAGE, system.MS_NOSUID | system.MS_NODEV, "size=1m,nr_inodes=4096,mode=0755")
    for path, target in links.items():
        os.makedirs(_STAGE + os.path.dirname(path), exist_ok=True)
        os.symlink(target, _STAGE + path)
    for path, tree in sorted(trees.items()):
        _make_mount_point(_STAGE + path, path in folders)
        system.attach_tree(tree, _STAGE + path)
        os.close(tree)
    for path in (SCRATCH, "/proc"):
        os.makedirs(_STAGE + path, exist_ok=True)
    flags = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC
    system.mount("tmpfs", _STAGE + SCRATCH, flags, f"size={plan.limits.scratch_bytes},nr_inodes=65536,mode=0700")
    os.chown(_STAGE + SCRATCH, plan.uid, plan.gid)
    plan.facts["proc"] = _mount_proc(_STAGE + "/proc")
    system.enter_root(_STAGE)
    root = system.clone_root_descriptor()
    system.restrict_mounts(root, system.MOUNT_ATTR_RDONLY, recursive=False)
    os.close(root)
    socket.sethostname("sandbox")


def _make_mount_point(path: str, folder: bool) -> None:
    os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _mount_proc(target: str) -> bool:
    """This pid namespace's processes and nothing else of /proc; or nothing where the kernel refuses that.

    It does so for an ordinary user where the surrounding container hides parts of /proc.
    """
    flags = system.MS_RDONLY | system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC
    try:
        system.mount("proc", target, flags, "subset=pid,hidepid=invisible")
    except OSError:
        return False
    return True


def lock(plan: Plan) -> None:
    """Landlock where the kernel has it, then the system call filter."""
    abi = landlock.abi()
    if abi:
        landlock.restrict(rules(plan, abi), abi)
    plan.facts["landlock_abi"] = abi
    seccomp.install(may_fork=plan.may_fork)


def rules(plan: Plan, abi: int) -> list[tuple[str, int]]:
    """Read and execute the roots, read the devices (and /proc), write scratch and /dev/null."""
    devices = [(path, landlock.READ) for path in DEVICES]
    extra = [("/proc", landlock.READ)] if plan.facts.get("proc") else []
    readable = [(path, landlock.READ_AND_EXECUTE) for path in plan.roots]
    written = [("/dev/null", landlock.WRITE_FILE), (plan.scratch, landlock.read_write(abi))]
    return [*readable, *devices, *extra, *written]


def clean(plan: Plan) -> None:
    """Nothing: the mounts went with the last process."""
