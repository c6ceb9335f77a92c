"""TOML into frozen records; every complaint names the file, the key and the line."""

import re
import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from fasttrack_validation.errors import UserError

Record = TypeVar("Record", bound=BaseModel)

_BARE_OR_QUOTED = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"{_BARE_OR_QUOTED}(?:\s*\.\s*{_BARE_OR_QUOTED})*"
_HEADER = re.compile(rf"^\s*(\[\[?)\s*({_KEY})\s*\]\]?\s*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"^\s*({_KEY})\s*=")


def parse(text: str, record: type[Record], path: Path) -> Record:
    """`text` as a `record`. Raises UserError for bad TOML, an unknown or missing key, or a bad value."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}", "correct the file at that place") from error
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise UserError(f"{path}: cannot be parsed: {error}", "correct the file") from error
    try:
        return record.model_validate(data)
    except ValidationError as error:
        raise complaint(error, text, path) from error


def complaint(error: ValidationError, text: str, path: Path) -> UserError:
    """The first problem of `error` as a UserError that points into `path`."""
    problem = error.errors(include_url=False)[0]
    location = tuple(problem["loc"])
    key = ".".join(map(str, location)) or "file"
    where = f"{path}:{line_of(text, location)}: key {key!r}"
    if problem["type"] == "extra_forbidden":
        return UserError(f"{where} is unknown", "remove it, or correct its spelling; the room's README lists the keys")
    if problem["type"] == "missing":
        return UserError(f"{where} is missing", "add it; the room's README lists the keys")
    message = problem["msg"].removeprefix("Value error, ")
    return UserError(f"{where}: {message}", "correct the value; the room's README says what each key holds")


def line_of(text: str, location: tuple[str | int, ...]) -> int:
    """Line (from 1) of the deepest part of `location` that `text` spells out; 1 if nothing of it is there."""
    best, best_depth = 1, 0
    table: tuple[str | int, ...] = ()
    seen: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _split(header[2])
            if header[1] == "[[":
                index = seen[table] = seen.get(table, -1) + 1
                table = (*table, index)
            path = table
        elif assignment := _ASSIGNMENT.match(line):
            path = (*table, *_split(assignment[1]))
        else:
            continue
        depth = _common(path, location)
        # A path that goes beyond the location is a child of it, so only its own prefix counts.
        if depth > best_depth and (depth == len(path) or depth == len(location)):
            best, best_depth = number, depth
    return best


def _split(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_BARE_OR_QUOTED, key))


def _common(left: tuple[str | int, ...], right: tuple[str | int, ...]) -> int:
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
