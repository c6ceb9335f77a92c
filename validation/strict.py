"""Reading hand-written TOML and JSON into pydantic models, with errors that name file, line and key."""

import json
import re
import tomllib
from json.decoder import scanstring
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from .errors import UserError

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


def line_of(text: str, key_path: KeyPath, *, suffix: str) -> int:
    """The 1-based line on which `key_path` is set in `text`; of its nearest parent that is there; else 1.

    `suffix` is ".toml" or ".json"; `text` must parse. An element of a TOML array that is no table is found on the
    line where its array starts.
    """
    lines = {".toml": _toml_lines, ".json": _json_lines}[suffix](text)
    while key_path and key_path not in lines:
        key_path = key_path[:-1]
    return lines.get(key_path, 1)


def parse(text: str, model: type[Model], path: Path | str) -> Model:
    """`text` (TOML or JSON by the suffix of `path`, which only names it) as a `model`.

    Raises UserError "file:line: key: what" for a syntax error, a duplicate key, or the first key that does not fit.
    """
    suffix = Path(path).suffix
    try:
        data = tomllib.loads(text) if suffix == ".toml" else json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}", "correct the file") from error
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise UserError(f"{path}:{line[1] if line else 1}: not valid TOML: {error}", "correct the file") from error
    except _DuplicateKey as error:
        raise UserError(f"{path}: key {error.args[0]!r} is set twice", "remove one of them") from error
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise UserError(f"{path}: cannot be parsed: {error}", "correct the file") from error
    try:
        # Through JSON, because pydantic's strict mode takes an array for a tuple, or text for an enum, only there.
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise misfit(error, text, path) from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}:1: {error}", "use only text, numbers, booleans, arrays and tables") from error


def read(path: Path, model: type[Model]) -> Model:
    """The file at `path` as a `model`. Raises UserError as `parse` does, and when the file cannot be read."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}", "check path, permissions and encoding") from error
    return parse(text, model, path)


def misfit(error: ValidationError, text: str, path: Path | str) -> UserError:
    """The first misfit of `error`, raised for the parsed `text` of file `path`, as "file:line: key: what"."""
    first, *rest = error.errors()
    key_path = tuple(first["loc"])
    dotted = ".".join(map(str, key_path)) or "(the whole file)"
    got = first.get("input")
    shown = f", got {got!r}" if first["type"] != "missing" and isinstance(got, (str, int, float)) else ""
    more = f" (and {len(rest)} more)" if rest else ""
    what = {"missing": "is missing", "extra_forbidden": "is not a known key"}.get(first["type"])
    message = what or first["msg"].removeprefix("Value error, ") + shown
    line = line_of(text, key_path, suffix=Path(path).suffix)
    how = {"missing": "add the key", "extra_forbidden": "remove the key, or correct its spelling"}.get(first["type"])
    return UserError(f"{path}:{line}: {dotted}: {message}{more}", how or f"correct {dotted}")


class _DuplicateKey(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKey(key)
        result[key] = value
    return result


def _toml_lines(text: str) -> dict[KeyPath, int]:
    """Every key path of a TOML document -> its line. A statement ends where the lines read so far parse."""
    lines: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}
    table: KeyPath = ()
    pending, start = "", 0

    def note(path: KeyPath, value: object, line: int) -> None:
        lines.setdefault(path, line)
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, child in children:
            note((*path, key), child, line)

    def resolve(keys: list[str]) -> KeyPath:
        """A header's path with the index of the current element put behind each array of tables in it."""
        path: KeyPath = ()
        for key in keys:
            path = (*path, key)
            if path in arrays:
                path = (*path, arrays[path])
        return path

    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        pending, start = (pending + "\n" + line, start) if pending else (line, number)
        try:
            statement = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        header = pending.lstrip()
        pending = ""
        if not header.startswith("["):
            for key, value in statement.items():
                note((*table, key), value, start)
            continue
        keys, inner = [], statement
        while inner:
            key, inner = next(iter(inner.items()))
            keys.append(key)
            inner = inner[0] if isinstance(inner, list) else inner
        if header.startswith("[["):
            path = (*resolve(keys[:-1]), keys[-1])
            arrays[path] = arrays.get(path, -1) + 1
            lines.setdefault(path, start)
            table = (*path, arrays[path])
        else:
            table = resolve(keys)
        lines.setdefault(table, start)
    return lines


def _json_lines(text: str) -> dict[KeyPath, int]:
    """Every key path of a JSON document -> the line of its key, or of the element itself in an array."""
    lines: dict[KeyPath, int] = {}
    decoder = json.JSONDecoder()

    def skip(at: int) -> int:
        return re.compile(r"[\s,:]*").match(text, at).end()

    def walk(at: int, path: KeyPath) -> int:
        at = skip(at)
        if text[at] not in "{[":
            return decoder.raw_decode(text, at)[1]
        is_object, index, at = text[at] == "{", 0, skip(at + 1)
        while text[at] not in "}]":
            line = text.count("\n", 0, at) + 1
            if is_object:
                key, at = scanstring(text, at + 1)
            else:
                key, index = index, index + 1
            lines[(*path, key)] = line
            at = skip(walk(at, (*path, key)))
        return at + 1

    walk(0, ())
    return lines
