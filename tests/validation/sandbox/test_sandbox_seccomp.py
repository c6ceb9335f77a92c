"""The system call filter, run in an independent interpreter of classic BPF."""

import errno
import re
from pathlib import Path

import pytest
from fasttrack_validation.sandbox import seccomp, syscalls

ALLOW, KILL = "allow", "kill"
X86_64, AARCH64 = 0xC000003E, 0xC00000B7  # AUDIT_ARCH_* of <linux/audit.h>


def judge(program, number, *arguments, architecture):
    """What the kernel would do: seccomp_data is nr, arch, instruction pointer, six 64-bit arguments."""
    data = number.to_bytes(4, "little") + architecture.to_bytes(4, "little") + bytes(8)
    data += b"".join((value % 2**64).to_bytes(8, "little") for value in (*arguments, *[0] * 6)[:6])
    position, accumulator = 0, 0
    while True:
        code, if_true, if_false, constant = program[position]
        position += 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                accumulator = int.from_bytes(data[constant : constant + 4], "little")
            case 0x15:  # BPF_JMP | BPF_JEQ
                position += if_true if accumulator == constant else if_false
            case 0x35:  # BPF_JMP | BPF_JGE
                position += if_true if accumulator >= constant else if_false
            case 0x45:  # BPF_JMP | BPF_JSET
                position += if_true if accumulator & constant else if_false
            case 0x06:  # BPF_RET
                if constant == 0x7FFF0000:
                    return ALLOW
                return KILL if constant == 0x80000000 else errno.errorcode[constant - 0x00050000]
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")


def x86(number, *arguments, may_fork=True, only_pid=None):
    program = seccomp.program(machine="x86_64", may_fork=may_fork, only_pid=only_pid)
    return judge(program, number, *arguments, architecture=X86_64)


def arm(number, *arguments, may_fork=True, only_pid=None):
    program = seccomp.program(machine="aarch64", may_fork=may_fork, only_pid=only_pid)
    return judge(program, number, *arguments, architecture=AARCH64)


# (x86_64, aarch64) numbers written down from the kernel's tables, not from the module under test.
REFUSED = {
    "socket": (41, 198), "connect": (42, 203), "socketpair": (53, 199), "ptrace": (101, 117), "unshare": (272, 97),
    "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "fsopen": (430, 430), "open_tree": (428, 428), "mount_setattr": (442, 442),
    "bpf": (321, 280), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "userfaultfd": (323, 282),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "personality": (135, 92), "execveat": (322, 281),
    "memfd_create": (319, 279), "shmget": (29, 194), "mq_open": (240, 180), "setuid": (105, 146), "setsid": (112, 157),
    "setpgid": (109, 154), "capset": (126, 91), "seccomp": (317, 277), "fchmodat": (268, 53), "fchownat": (260, 54),
    "setxattr": (188, 5), "open_by_handle_at": (304, 265), "rt_sigqueueinfo": (129, 138), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "inotify_init1": (294, 26), "mknodat": (259, 33),
    "fanotify_init": (300, 262), "quotactl": (179, 60), "reboot": (169, 142), "swapon": (167, 224), "acct": (163, 89),
    "clock_settime": (227, 112), "settimeofday": (164, 170), "sethostname": (170, 161), "syslog": (103, 116),
    "kcmp": (312, 272), "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235), "tkill": (200, 130),
}  # fmt: skip

PERMITTED = {
    "read": (0, 63), "write": (1, 64), "openat": (257, 56), "close": (3, 57), "mmap": (9, 222), "munmap": (11, 215),
    "brk": (12, 214), "futex": (202, 98), "getrandom": (318, 278), "exit_group": (231, 94), "wait4": (61, 260),
    "newfstatat": (262, 79), "getdents64": (217, 61), "clock_gettime": (228, 113), "rt_sigaction": (13, 134),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_on_both_architectures(name):
    assert (x86(REFUSED[name][0]), arm(REFUSED[name][1])) == ("EPERM", "EPERM")


@pytest.mark.parametrize("name", PERMITTED)
def test_permitted_on_both_architectures(name):
    assert (x86(PERMITTED[name][0], may_fork=False), arm(PERMITTED[name][1], may_fork=False)) == (ALLOW, ALLOW)


def test_unknown_and_newer_calls_do_not_exist():
    assert x86(463) == arm(463) == x86(9999) == "ENOSYS"


def test_foreign_architectures_are_killed():
    program = seccomp.program(machine="x86_64", may_fork=True)
    assert judge(program, 0, architecture=0x40000003) == KILL  # i386
    assert judge(program, 0, architecture=AARCH64) == KILL
    assert judge(program, 0x40000000, architecture=X86_64) == KILL  # x32
    assert judge(seccomp.program(machine="aarch64", may_fork=True), 63, architecture=0x40000028) == KILL  # arm


def test_processes_and_threads():
    sigchld, thread = 17, 0x3D0F00  # what glibc passes for fork() and for pthread_create()
    for clone, run in ((56, x86), (220, arm)):
        assert run(clone, sigchld) == run(clone, 0x4100 | sigchld) == run(clone, thread) == ALLOW
        assert run(clone, sigchld, may_fork=False) == "EPERM"
        assert run(clone, thread, may_fork=False) == ALLOW
        for bit in (17, 25, 26, 27, 28, 29, 30):  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET
            assert run(clone, 1 << bit | sigchld) == run(clone, 1 << bit | thread, may_fork=False) == "EPERM"
        assert run(435) == "ENOSYS"  # clone3
    assert [x86(number) for number in (57, 58, 59)] == [ALLOW] * 3  # fork, vfork, execve
    assert [x86(number, may_fork=False) for number in (57, 58, 59)] == ["EPERM"] * 3
    assert (arm(221), arm(221, may_fork=False)) == (ALLOW, "EPERM")


def test_arguments_decide():
    assert x86(16, 0, 0x5401) == ALLOW  # ioctl TCGETS
    assert x86(16, 0, 0x5412) == "EPERM"  # TIOCSTI types into a terminal
    assert x86(16, 0, (1 << 32) | 0x5412) == "EPERM"  # the kernel looks at the low word alone
    assert [x86(72, 0, command) for command in (1, 3, 6)] == [ALLOW] * 3  # F_GETFD, F_GETFL, F_SETLK
    assert [x86(72, 0, command) for command in (8, 10, 15, 1024)] == ["EPERM"] * 4  # F_SETOWN, SETSIG, _EX, SETLEASE
    assert [x86(157, option) for option in (1, 4, 8, 22, 36)] == ["EPERM"] * 5  # PDEATHSIG, DUMPABLE, ...
    assert x86(157, 15) == ALLOW  # PR_SET_NAME
    assert (x86(302, 0), x86(302, 1234)) == (ALLOW, "EPERM")  # prlimit64


def test_signals_can_be_kept_to_one_process():
    assert x86(62, 77) == x86(62, -1) == ALLOW  # where namespaces or Landlock confine them
    for number in (62, 234):  # kill, tgkill
        assert x86(number, 77, only_pid=77) == ALLOW
        assert [x86(number, pid, only_pid=77) for pid in (78, 0, -1, -77, 1)] == ["EPERM"] * 5


@pytest.mark.parametrize(
    ("header", "pattern", "column"),
    [
        ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)", 0),
        ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)", 1),
    ],
)
def test_numbers_are_the_kernel_headers(header, pattern, column):
    if not Path(header).exists():
        pytest.skip(f"no {header} here")
    known = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    tables = syscalls.ALLOWED | syscalls.FORK | syscalls.EXECUTE | syscalls.BY_ARGUMENT
    ours = {name: numbers[column] for name, numbers in tables.items() if numbers[column] is not None}
    aliases = {"fstat", "newfstatat", "fadvise64"}  # the generic table has them under other names
    assert {name: known.get(name) for name in ours if name not in aliases} == {
        name: number for name, number in ours.items() if name not in aliases
    }
