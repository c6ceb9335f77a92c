"""Landlock by raw system calls: what a process may read, write and signal, from then on and for its children.

Constants are those of <linux/landlock.h>.
"""

import os
import stat
import struct
from collections.abc import Iterable

from . import system

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_QUERY = 1
_PATH_BENEATH = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
_NET = 0b11  # bind and connect over TCP
_SCOPED = 0b11  # abstract sockets and signals

READ = READ_FILE | READ_DIR
READ_AND_EXECUTE = READ | EXECUTE

ABI_TRUNCATE, ABI_NET, ABI_SIGNALS = 3, 4, 6


def _handled(abi: int) -> int:
    """The file system rights that a kernel of this ABI knows: 13 at first, then REFER, TRUNCATE, IOCTL_DEV."""
    return (1 << (13 + (abi >= 2) + (abi >= 3) + (abi >= 5))) - 1


def read_write(abi: int) -> int:
    """Every right but executing and making devices and sockets."""
    return _handled(abi) & ~(EXECUTE | _MAKE_CHAR | _MAKE_SOCK | _MAKE_BLOCK)


def abi() -> int:
    """The kernel's Landlock ABI; 0 where it has none, or has it disabled."""
    try:
        return system.syscall("landlock_create_ruleset", _CREATE_RULESET, None, 0, _VERSION_QUERY)
    except OSError:
        return 0


def restrict(rules: Iterable[tuple[str, int]], abi: int) -> None:
    """Allows the rights in `rules` (path, rights) and nothing else. Needs no_new_privs. Raises OSError.

    Beyond files: no TCP from ABI 4; no signals and abstract sockets to processes outside from ABI 6.
    """
    handled = _handled(abi)
    attributes = struct.pack("=Q", handled)
    if abi >= ABI_NET:
        attributes += struct.pack("=Q", _NET)
    if abi >= ABI_SIGNALS:
        attributes += struct.pack("=Q", _SCOPED)
    ruleset = system.syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path, rights in rules:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = rights & handled
                if not stat.S_ISDIR(os.fstat(parent).st_mode):
                    allowed &= _FOR_FILES
                rule = struct.pack("=Qi", allowed, parent)
                system.syscall("landlock_add_rule", _ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
            finally:
                os.close(parent)
        system.syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
