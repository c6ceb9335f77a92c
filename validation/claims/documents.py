"""Reading claims and records with their lines: JSON, JSON Lines, and Markdown with fenced `claim` blocks."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from .. import strict
from ..errors import UserError
from .claim import Claim
from .measurement import Measurement

KINDS = {kind.model_fields["schema_version"].default: kind for kind in (Claim, Measurement)}
PROSE = (".md", ".markdown", ".txt")


class Item(NamedTuple):
    """A claim or a record, and where it stands."""

    value: Claim | Measurement
    path: Path
    line: int


class Fence(NamedTuple):
    """A fenced block: lines are 1-based, those of the fences themselves included."""

    language: str
    first: int
    last: int
    text: str


def read(path: Path) -> tuple[str, tuple[Item, ...]]:
    """The text of a file, and what claims and records it holds.

    Raises UserError "file:line: key: what" for what does not fit, and for a file that cannot be read."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}", "check path, permissions and encoding") from error
    if path.suffix == ".jsonl":
        lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
        return text, tuple(item for number, line in lines for item in _items(line, path, number))
    if path.suffix in PROSE:
        blocks = (block for block in fences(text) if block.language == "claim")
        return text, tuple(item for block in blocks for item in _items(block.text, path, block.first + 1))
    return text, tuple(_items(text, path, 1))


def fences(text: str) -> Iterator[Fence]:
    """Fenced blocks of a Markdown text, with backticks or tildes; one that never ends goes to the end of the text."""
    opened: tuple[str, str, int] | None = None
    body: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if opened is None:
            if found := re.match(r" {0,3}(`{3,}|~{3,})\s*([^\s`]*)", line):
                opened, body = (found[1], found[2].lower(), number), []
        elif re.fullmatch(rf" {{0,3}}{re.escape(opened[0][0])}{{{len(opened[0])},}}\s*", line):
            yield Fence(opened[1], opened[2], number, "\n".join(body))
            opened = None
        else:
            body.append(line)
    if opened is not None:
        yield Fence(opened[1], opened[2], len(lines), "\n".join(body))


def _beside(path: Path, line: int, name: Any) -> tuple[Item, ...]:
    """A block in a text may stand for a file of data beside it; not for another text, which may stand for this one."""
    target = path.parent / name if isinstance(name, str) else None
    if target is None or target.suffix in PROSE:
        raise UserError(
            f"{path}:{line}: file: {name!r} is no file of claims", "name a .json or .jsonl file beside the text"
        )
    return read(target)[1]


class _Element(NamedTuple):
    """A value of a file with its own text, and where both start: in the text, and as the first key of its path."""

    data: Any
    text: str
    line: int
    prefix: tuple[int, ...]


def _items(text: str, path: Path, first: int) -> Iterator[Item]:
    try:
        elements = list(_elements(text))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}:{first + error.lineno - 1}: not valid JSON: {error.msg}", "correct the file"
        ) from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}:{first}: cannot be parsed: {error}", "correct the file") from error
    for element in elements:
        data, line = element.data, first + element.line - 1
        if path.suffix in PROSE and isinstance(data, dict) and set(data) == {"file"}:
            yield from _beside(path, line, data["file"])
        else:
            yield Item(_validated(element, path, line), path, line)


def _elements(text: str) -> Iterator[_Element]:
    """The values of a list one by one, or the one value of a text. Linear in the text, however many there are."""
    decoder = json.JSONDecoder(object_pairs_hook=_no_duplicates)
    line, counted = 1, 0

    def value(at: int, prefix: tuple[int, ...]) -> tuple[_Element, int]:
        nonlocal line, counted
        data, end = decoder.raw_decode(text, at)
        line, counted = line + text.count("\n", counted, at), at
        return _Element(data, text[at:end], line, prefix), end

    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        element, at = value(at, ())
        yield element
    else:
        index, at = 0, _skip(text, at + 1)
        while text[at : at + 1] != "]":
            element, at = value(at, (index,))
            yield element
            index, at = index + 1, _skip(text, at)
            if text[at : at + 1] == ",":
                at = _skip(text, at + 1)
            elif text[at : at + 1] != "]":
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
        at += 1
    if _skip(text, at) != len(text):
        raise json.JSONDecodeError("Extra data", text, at)


def _skip(text: str, at: int) -> int:
    return re.compile(r"[ \t\n\r]*").match(text, at).end()


def _validated(element: _Element, path: Path, first: int) -> Claim | Measurement:
    data, text, prefix = element.data, element.text, element.prefix
    version = data.get("schema_version") if isinstance(data, dict) else None
    kind = KINDS.get(version) if isinstance(version, str) else None
    if kind is None:
        line = first + strict.line_of(text, ("schema_version",), suffix=".json") - 1
        known = ", ".join(map(repr, KINDS))
        raise UserError(f"{path}:{line}: schema_version: {version!r} is not known", f"give one of {known}")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        (one, *more) = error.errors()
        loc = tuple(one["loc"])
        where = ".".join(map(str, (*prefix, *loc))) or "(the whole)"
        what = {"missing": "is missing", "extra_forbidden": "is not a known key"}.get(one["type"])
        message = what or one["msg"].removeprefix("Value error, ")
        line = first + strict.line_of(text, loc, suffix=".json") - 1
        others = f" (and {len(more)} more)" if more else ""
        raise UserError(f"{path}:{line}: {where}: {message}{others}", f"correct {where}") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} is set twice")
        result[key] = value
    return result
