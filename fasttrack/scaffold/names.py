"""What a new model may be called: one name that is a directory, a package and a word of the command line everywhere."""

import keyword
import re
import unicodedata
from collections.abc import Iterable

from fasttrack_validation.errors import UserError

from ..confinement.names import check_name, fold

LONGEST = 48
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# What pytest, packaging or a reader of lists would take for something else.
_TAKEN = frozenset({"conftest", "test", "tests", "model", "models", "setup"})


def check(name: str) -> None:
    """Raises UserError, with a name that would do, where `name` cannot be one."""
    if not _NAME.fullmatch(name) or len(name) > LONGEST:
        near = suggestion(name)
        raise UserError(
            f"{name!r} cannot name a model: lower-case letters and digits, words joined by '_', at most {LONGEST} in all",
            f"call it {near!r}" if near else "choose a name such as kimi_k3",
        )
    if why := _reserved(name):
        raise UserError(f"{name!r} cannot name a model: {why}", f"call it {suggestion(name)!r}")


def _reserved(name: str) -> str | None:
    """Why a name of the right form cannot be used all the same."""
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "it is a word of Python"
    if name in _TAKEN:
        return "tools take it for something else"
    broken = next(iter(check_name(name)), None)
    return broken[1] if broken else None


def check_free(name: str, where: str, entries: Iterable[str]) -> None:
    """Raises UserError where directory `where` holds one of `entries` that a file system may take for `name`.

    A module `name.py` counts: a package beside it would hide it.
    """
    for entry in sorted(entries):
        stem = entry.removesuffix(".py")
        if fold(stem) == fold(name):
            what = f"{where}/{entry} exists already"
            what += "" if stem == name else f", and {name!r} is the same name on some file systems"
            raise UserError(what, "choose another name; what is there is changed by ordinary review, or by proposals")


def suggestion(name: str) -> str | None:
    """The nearest name that would do, or None where nothing of `name` is left."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    near = re.sub(r"[^a-z0-9]+", "_", plain).lstrip("0123456789_")[:LONGEST].strip("_")
    return f"{near}_model" if near and _reserved(near) else near or None
