"""Which system calls jailed code may make: an allow-list with numbers for x86_64 and aarch64.

Numbers are those of <asm/unistd_64.h> and <asm-generic/unistd.h>; None where an architecture has no such call.
What is absent is refused: sockets, ptrace, process_vm_*, pidfd_*, namespaces, mounts, bpf, io_uring, userfaultfd,
perf, keys, System V and POSIX queues, memfds, modules, kexec, other processes' priorities and affinities, changes of
owner, mode and time stamps (Landlock leaves those alone).
"""

from typing import NamedTuple


class Numbers(NamedTuple):
    """The number of one call on each architecture."""

    x86_64: int | None
    aarch64: int | None


def _table(text: str) -> dict[str, Numbers]:
    rows = (row.split(":") for row in text.split())
    return {name: Numbers(*(int(n) if n != "-" else None for n in (x86, arm))) for name, x86, arm in rows}


# name:x86_64:aarch64
ALLOWED = _table("""
    read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70
    preadv2:327:286 pwritev2:328:287 open:2:- openat:257:56 openat2:437:437 creat:85:- close:3:57 close_range:436:436
    lseek:8:62 dup:32:23 dup2:33:- dup3:292:24 pipe:22:- pipe2:293:59 sendfile:40:71 copy_file_range:326:285
    splice:275:76 tee:276:77 fsync:74:82 fdatasync:75:83 sync_file_range:277:84 ftruncate:77:46 truncate:76:45
    fallocate:285:47 fadvise64:221:223 flock:73:32 readahead:187:213

    stat:4:- lstat:6:- fstat:5:80 newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 access:21:-
    faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:- getdents64:217:61 getcwd:79:17
    chdir:80:49 fchdir:81:50 mkdir:83:- mkdirat:258:34 rmdir:84:- rename:82:- renameat:264:38 renameat2:316:276
    link:86:- linkat:265:37 unlink:87:- unlinkat:263:35 symlink:88:- symlinkat:266:36 umask:95:166

    brk:12:214 mmap:9:222 munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 mincore:27:232 msync:26:227
    mlock:149:228 munlock:150:229 mlock2:325:284 membarrier:324:283 get_mempolicy:239:236 pkey_alloc:330:289
    pkey_free:331:290 pkey_mprotect:329:288

    rseq:334:293 futex:202:98 futex_waitv:449:449 set_robust_list:273:99 set_tid_address:218:96 gettid:186:178
    arch_prctl:158:- sched_yield:24:124 sched_getaffinity:204:123 sched_getparam:143:121 sched_getscheduler:145:120
    sched_get_priority_max:146:125 sched_get_priority_min:147:126 getcpu:309:168 restart_syscall:219:128

    rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
    rt_sigsuspend:130:133 sigaltstack:131:132 alarm:37:- setitimer:38:103 getitimer:36:102 pause:34:-

    clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201:-
    times:100:153 timer_create:222:107 timer_settime:223:110 timer_gettime:224:108 timer_delete:226:111
    timer_getoverrun:225:109 timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87

    poll:7:- ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21
    epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19

    exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95 getpid:39:172 getppid:110:173 getpgrp:111:- getpgid:121:155
    getsid:124:156 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150
    getgroups:115:158 getrlimit:97:163 setrlimit:160:164 getrusage:98:165 capget:125:90 uname:63:160 sysinfo:99:179
    getrandom:318:278 getpriority:140:141
""")

# Allowed to profiles that may run compilers.
FORK = _table("fork:57:- vfork:58:-")
EXECUTE = _table("execve:59:221")

# Decided by their arguments (see seccomp.py), or refused in a way of their own.
BY_ARGUMENT = _table("""
    clone:56:220 clone3:435:435 ioctl:16:29 fcntl:72:25 prctl:157:167 prlimit64:302:261 kill:62:129 tgkill:234:131
""")

# Calls younger than this table are answered with ENOSYS, so that the C library falls back to an older one.
NEWEST_KNOWN = 462
