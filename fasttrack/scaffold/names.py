"""What a new model may be called: one name that is a directory, a package and a word of the command line everywhere."""

import keyword
import re
import unicodedata
from collections.abc import Iterable

from fasttrack_validation.errors import UserError

from ..confinement.names import check_name, fold

LONGEST = 48
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Names that lists of models and of their tests are walked with, or that Python or pytest would take for something else.
_TAKEN = frozenset({"conftest", "test", "tests", "model", "models", "setup"})


def check(name: str) -> None:
    """Raises UserError, with a name that would do, where `name` cannot be one."""
    if not _NAME.fullmatch(name) or len(name) > LONGEST:
        near = suggestion(name)
        raise UserError(
            f"{name!r} cannot name a model: lower-case letters and digits, words joined by '_', {LONGEST} characters at most",
            f"call it {near!r}" if near else "choose a name such as kimi_k3",
        )
    broken = next(iter(check_name(name)), None)
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in _TAKEN or broken:
        why = broken[1] if broken else "it is a word of Python, or of this repository's tools"
        raise UserError(f"{name!r} cannot name a model: {why}", f"call it {name + '_model'!r}")


def check_free(name: str, where: str, entries: Iterable[str]) -> None:
    """Raises UserError where directory `where` holds one of `entries` that a file system may take for `name`.

    A module `name.py` counts: a package beside it would hide it.
    """
    for entry in sorted(entries):
        stem = entry.removesuffix(".py")
        if fold(stem) == fold(name):
            what = f"{where}/{entry} exists already"
            what += "" if stem == name else f", and {name!r} is the same name on some file systems"
            raise UserError(what, "choose another name; a model that is there is changed by ordinary review, or by proposals")


def suggestion(name: str) -> str | None:
    """The nearest name that would do, or None where nothing of `name` is left."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    near = re.sub(r"[^a-z0-9]+", "_", plain).strip("_").lstrip("0123456789_")[:LONGEST].rstrip("_")
    return near if near and _NAME.fullmatch(near) and not keyword.iskeyword(near) else None
