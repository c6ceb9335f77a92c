"""What a file may hold: text that shows what it is, of the kinds that belong in its place, within limits."""

import re
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from fasttrack_validation.records import Frozen

from .names import MANIFEST, OWN_TABLES, invisible, tool_configuration
from .pages import check_page
from .python_source import check_python

MIB = 1 << 20
MAX_PROBLEMS = 50
_SOURCE = (".py", ".cu", ".cuh", ".h", ".hpp")
_ANYWHERE = (*_SOURCE, ".md", ".json", ".txt")
_BY_DIRECTORY = {
    "evidence": (".json", ".json.sig", ".jsonl", ".json.gz", ".jsonl.gz", ".csv", ".csv.gz", ".md", ".txt"),
    "report": (".md", ".html", ".json", ".json.sig"),
}
_MARKER = re.compile(
    r"@generated\b|code generated .{0,80}do not edit|\b(ruff|flake8)\s*:\s*noqa\b|pylint\s*:\s*skip-file"
    r"|mypy\s*:\s*ignore-errors|pyright\s*:\s*(basic|off)|nosec\b|clang-format off|NOLINTBEGIN|pragma:\s*no cover",
    re.IGNORECASE,
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(include|import|include_next|embed)\b[ \t]*(.*)$", re.MULTILINE)
_EMBEDS = re.compile(r"\.incbin\b|_Pragma\s*\(\s*\"comment|__has_embed")


class Limits(Frozen):
    """Sizes in bytes, and counts. What is larger needs a person, not a larger limit in the same change."""

    max_text_bytes: int = MIB // 2
    max_report_bytes: int = MIB
    max_evidence_bytes: int = 4 * MIB
    max_unpacked_bytes: int = 32 * MIB
    max_total_bytes: int = 32 * MIB
    max_files: int = 400
    max_commits: int = 200

    def of(self, relative: str) -> int:
        """The limit of one file, by its place in the model directory."""
        top = relative.split("/")[0]
        return {"evidence": self.max_evidence_bytes, "report": self.max_report_bytes}.get(top, self.max_text_bytes)


class Problem(NamedTuple):
    """One broken rule inside one file. `line` counts from 1; 0 for the file as a whole."""

    rule: str
    line: int
    message: str


def check_contents(relative: str, data: bytes, limits: Limits) -> Iterator[Problem]:
    """The first MAX_PROBLEMS rules that a file breaks. `relative` is its path in the model directory."""
    return islice(_problems(relative, data, limits), MAX_PROBLEMS)


def _problems(relative: str, data: bytes, limits: Limits) -> Iterator[Problem]:
    reason = tool_configuration(relative)
    if reason:
        yield Problem("confinement.tool_configuration", 0, reason)
    elif relative != MANIFEST and not OWN_TABLES.fullmatch(relative):
        top, _, rest = relative.partition("/")
        allowed = _BY_DIRECTORY.get(top, _ANYWHERE) if rest else _ANYWHERE
        if not relative.endswith(allowed):
            yield Problem("confinement.file_type", 0, f"only {' '.join(allowed)} belong here")
    if relative.endswith(".gz") and relative.startswith("evidence/"):
        data, fault = _unpack(data, limits.max_unpacked_bytes)
        if fault:
            yield Problem("confinement.compressed", 0, fault)
            return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        yield Problem("confinement.binary", data.count(b"\n", 0, error.start) + 1, "not UTF-8 text")
        return
    if "\0" in text:
        yield Problem("confinement.binary", text.count("\n", 0, text.index("\0")) + 1, "a NUL byte")
        return
    yield from _characters(text)
    if relative.endswith(".html"):
        yield from (Problem("confinement.active_content", line, what) for line, what in check_page(text))
    if not relative.endswith(_SOURCE):
        return
    yield from _matches(_MARKER, text, "confinement.generated_marker")
    if relative.endswith(".py"):
        yield from (Problem(*found) for found in check_python(relative, text))
    else:
        yield from _includes(relative, text)


def _unpack(data: bytes, limit: int) -> tuple[bytes, str | None]:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        return b"", f"not gzip: {error}"
    if len(text) > limit:
        return b"", f"unpacks to more than {limit} bytes"
    if not unpacker.eof or unpacker.unused_data:
        return b"", "cut off, or followed by other data"
    return text, None


def _characters(text: str) -> Iterator[Problem]:
    plain = text.replace("\r\n", "\n")
    if plain.isascii() and plain.translate(_PRINTABLE) == "":
        return
    reported = set()
    for number, line in enumerate(plain.split("\n"), 1):
        for character in line:
            rule = None if character == "\t" else invisible(character)
            if rule and rule not in reported:
                reported.add(rule)
                yield Problem(rule, number, f"character U+{ord(character):04X} in the text")


_PRINTABLE = {code: None for code in (9, 10, *range(32, 127))}


def _matches(pattern: re.Pattern[str], text: str, rule: str) -> Iterator[Problem]:
    for found in pattern.finditer(text):
        yield Problem(rule, text.count("\n", 0, found.start()) + 1, f"{found[0][:60]!r}")


def _includes(relative: str, text: str) -> Iterator[Problem]:
    joined = text.replace("\\\r\n", "").replace("\\\n", "")
    for found in _INCLUDE.finditer(joined):
        target = found[2].strip()
        name = target[1:].split('"')[0].split(">")[0]
        depth = len(relative.split("/")) - 1
        climbs = name.split("/").count("..")
        bad = name.startswith(("/", "~")) or "\\" in name or (climbs > depth if target[:1] == '"' else climbs)
        if found[1] == "embed" or target[:1] not in {'"', "<"} or bad:
            yield Problem("content.include", joined.count("\n", 0, found.start()) + 1, f"#{found[1]} {target[:60]}")
    yield from _matches(_EMBEDS, joined, "content.include")
