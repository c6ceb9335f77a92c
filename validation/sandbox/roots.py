"""What jailed code may read: the interpreter, its libraries and the packages it imports, and nothing beside them."""

import importlib.util
import os
import sys
from collections.abc import Iterable

SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

# Installed in editable mode these lie in a checkout: only the package's own directory is let in.
OWN_PACKAGES = ("fasttrack_validation", "fasttrack_models")


def home() -> str:
    """This user's home directory; a path that does not exist where the user has none."""
    path = os.path.expanduser("~")
    return path if os.path.isabs(path) else "/nonexistent"


def readable(packages: Iterable[str], private: str) -> list[str]:
    """Absolute paths of this interpreter's needs, outermost only, sorted; `packages` are top-level names to add.

    A directory of sys.path that is the root, holds `private` (the home) or is a git work tree is left out: what is
    imported from there must be named among the packages. Run it in a fresh, isolated interpreter: sys.path is taken
    as it stands.
    """
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    paths = {path for path in sys.path if os.path.isabs(path) and not _too_wide(path, private)}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is not None:
            paths.update(spec.submodule_search_locations or filter(None, [spec.origin]))
    wanted = {os.path.abspath(path) for path in (*SYSTEM, *prefixes, *paths) if os.path.exists(path)}
    wanted |= {os.path.realpath(path) for path in wanted}
    wanted.discard("/")
    return sorted(path for path in wanted if not any(_inside(path, other) for other in wanted if other != path))


def _too_wide(path: str, private: str) -> bool:
    real = os.path.realpath(path)
    return real == "/" or _inside(private, real) or os.path.exists(os.path.join(real, ".git"))


def covered(path: str, roots: Iterable[str]) -> bool:
    """Whether `path` lies in one of the roots."""
    return any(_inside(os.path.realpath(path), root) for root in roots)


def _inside(path: str, directory: str) -> bool:
    # A symbolic link on the way would lead elsewhere once the directory alone is there.
    return os.path.commonpath((path, directory)) == directory and not os.path.islink(directory)
