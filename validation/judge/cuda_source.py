"""What a candidate's CUDA C++ may include: its own files and the toolkit's headers, by relative names.

Nothing else of the text is vetted: it is compiled for the device, by a compiler without host code, and what it computes
is judged by its results. The compiler would open any file that an include names, though, and quote it in its errors.

The preprocessor joins lines, drops comments and knows digraphs before it looks for a directive; rather than do all of
that again, every line that so much as mentions one of its words must be an include as plain as they come, or mention it
in a comment to the end of the line.
"""

import re

from .kernel_names import KernelSourceError

_WORD = re.compile(r"\b(include|include_next|import|embed|__has_include|__has_include_next|__has_embed)\b")
_NAME = r"[A-Za-z_][\w+-]*(?:\.[\w+-]+)*(?:/[A-Za-z_][\w+-]*(?:\.[\w+-]+)*)*"
_PLAIN = re.compile(rf"\s*#\s*include\s*(?:<{_NAME}>|\"{_NAME}\")\s*(?://[^\n]*)?")
_SPLICE = re.compile(r"\\[ \t]*\n")


def check(file: str, text: str) -> None:
    """Raises KernelSourceError (`include`, `trigraph`) for an include that may reach beyond candidate and toolkit."""
    if "??" in text and (found := re.search(r"\?\?[=/'()!<>-]", text)):
        raise KernelSourceError(file, text.count("\n", 0, found.start()) + 1, "trigraph", "trigraphs are not allowed")
    for first, line in _logical_lines(text):
        word = _WORD.search(line)
        if word is None or _PLAIN.fullmatch(line):
            continue
        comment = line.find("//")
        if 0 <= comment < word.start() and "*/" not in line:
            continue
        what = f'{word[0]}: write #include <name> or #include "name" on a line of its own, by a relative name'
        raise KernelSourceError(file, first, "include", what)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(line number, text) with lines that end in a backslash joined to the next one, as the compiler joins them."""
    lines, number = [], 1
    for line in _SPLICE.sub("\0", text).split("\n"):
        lines.append((number, line.replace("\0", "")))
        number += 1 + line.count("\0")
    return lines
