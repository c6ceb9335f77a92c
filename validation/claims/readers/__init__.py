"""What benchmarks write, as measurement records. What a file does not hold stays unknown; what has no place in a record
is kept under `source.other`; a field of a newer or an older schema is an error that names it."""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...errors import UserError
from ...records import sha256
from ..measurement import Measurement
from . import aiperf, inferencex, sglang, vllm
from .fields import Fields

Reader = Callable[[Fields], dict[str, Any]]
READERS: dict[str, Reader] = {
    "vllm": vllm.record, "sglang": sglang.record, "aiperf": aiperf.record, "inferencex": inferencex.record,
}  # fmt: skip
_RECOGNISE = {
    "vllm": vllm.recognises, "sglang": sglang.recognises, "aiperf": aiperf.recognises,
    "inferencex": inferencex.recognises,
}  # fmt: skip


def read(path: Path, format: str = "auto", conditions: Path | None = None) -> tuple[Measurement, ...]:
    """Every result of a file (JSON, a list in JSON, or JSON Lines) as a record.

    `conditions`: TOML with a record's fields that the tool did not write down. Raises UserError for a file that cannot
    be read, a field that does not fit, or a condition that the file holds itself.
    """
    if format not in ("auto", *READERS):
        raise UserError(f"unknown format {format!r}", f"known: auto, {', '.join(READERS)}")
    given = _stated(conditions)
    found = [_record(data, line, path, format, given) for data, line in _results(path)]
    if not found:
        raise UserError(f"{path}: holds no result", "give what the benchmark wrote")
    return tuple(found)


def _record(data: dict[str, Any], line: str, path: Path, format: str, given: dict[str, Any]) -> Measurement:
    name = format if format != "auto" else next((one for one, fits in _RECOGNISE.items() if fits(data)), None)
    if name is None:
        raise UserError(f"{path}: is of no known format", f"name it: --format {'|'.join(READERS)}")
    fields = Fields(data, f"{path} ({name})")
    record = {"schema_version": "fasttrack.measurement/1", **READERS[name](fields)}
    record["source"] = {
        "format": name, "file": path.name, "sha256": sha256(line.encode()), "other": fields.rest(),
        "left_out": fields.left_out,
    }  # fmt: skip
    record = _without_unknown(record)
    try:
        return Measurement.model_validate_json(json.dumps(_merged(record, given, path, "")))
    except ValidationError as error:
        one = error.errors()[0]
        where = ".".join(map(str, one["loc"])) or "the record"
        raise UserError(f"{path}: {where}: {one['msg'].removeprefix('Value error, ')}", f"correct {where}") from error


def _results(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """(result, its text) of a file."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}", "check path, permissions and encoding") from error
    try:
        whole = json.loads(text)
        listed = [(one, json.dumps(one)) for one in whole] if isinstance(whole, list) else [(whole, text)]
    except json.JSONDecodeError:
        try:
            listed = [(json.loads(line), line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: neither JSON nor JSON Lines: {error}", "give what the benchmark wrote") from error
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: cannot be parsed: {error}", "give what the benchmark wrote") from error
    for data, line in listed:
        if not isinstance(data, dict):
            raise UserError(
                f"{path}: a result is {type(data).__name__}, not an object", "give what the benchmark wrote"
            )
        yield data, line


def conditions(path: Path | None) -> dict[str, Any]:
    """TOML with fields of a record that no tool wrote down; {} without a file. Raises UserError."""
    if path is None:
        return {}
    try:
        # Dates become text, as JSON has them.
        return json.loads(json.dumps(tomllib.loads(path.read_text("utf-8")), default=str))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}", "check path, encoding and syntax") from error


_stated = conditions  # `read` has a parameter of that name


def _merged(record: dict[str, Any], given: dict[str, Any], path: Path, prefix: str) -> dict[str, Any]:
    merged = dict(record)
    for name, value in given.items():
        where, mine = f"{prefix}{name}", record.get(name)
        if isinstance(value, dict) and isinstance(mine, dict) and name not in ("options", "sampling"):
            merged[name] = _merged(mine, value, path, f"{where}.")
        elif mine is not None and mine != value:
            raise UserError(f"{path}: {where} is {mine!r} there, and given as {value!r}", f"leave {where} out")
        else:
            merged[name] = value
    return merged


def _without_unknown(value: Any, *, keep: bool = False) -> Any:
    """Without what is null or empty, except below `other`, which stays as it stood."""
    if not isinstance(value, dict) or keep:
        return value
    cleaned = {name: _without_unknown(one, keep=name == "other") for name, one in value.items()}
    return {name: one for name, one in cleaned.items() if one is not None and one != {}}
