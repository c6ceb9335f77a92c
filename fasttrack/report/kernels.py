"""What the kernels of a report are: entry files with the first sentence that their authors wrote at their head."""

import ast
import re
from collections.abc import Iterable, Mapping

from fasttrack_validation.records import Frozen

from .layers import Layer, Measured
from .prose import figure

MOST = 6


class Kernel(Frozen):
    """One entry file. `ops`: what it computes; `layers`: in how many measured cells it was called."""

    path: str
    ops: tuple[str, ...]
    words: str
    layers: int = 0


def kernels(
    files: Mapping[str, bytes], ops: Mapping[str, Iterable[str]], layers: Iterable[Layer], touched: Iterable[str]
) -> tuple[Kernel, ...]:
    """The entry files that a measured layer calls, most called first, then those that the change touches.

    `ops`: op of the manifest -> its files, the entry first. At most MOST of them.
    """
    called: dict[str, int] = {}
    for layer in layers:
        if isinstance(layer.outcome, Measured):
            for path in {call.kernel for call in layer.outcome.calls}:
                called[path] = called.get(path, 0) + 1
    entries: dict[str, list[str]] = {}
    for op, paths in ops.items():
        if path := next(iter(paths), None):
            entries.setdefault(path, []).append(op)
    changed = set(touched)
    held = [path for path in entries if path in files and (path in called or path in changed)]
    return tuple(
        Kernel(path=path, ops=tuple(entries[path]), words=first_sentence(files[path]), layers=called.get(path, 0))
        for path in sorted(held, key=lambda path: (-called.get(path, 0), path))[:MOST]
    )


def first_sentence(source: bytes) -> str:
    """Of a module's docstring; empty where there is none, or where it types a figure that no evidence backs."""
    try:
        text = ast.get_docstring(ast.parse(source.decode("utf-8"))) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    first = re.split(r"(?<=[.!?])\s|\n\s*\n", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]
    return "" if figure(first) else first[:240]
