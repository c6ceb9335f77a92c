"""JSON as it is written down, and no more: no key twice, no NaN, no infinity, nothing so deep or so long that it cannot be read."""

import json
import math


def loads(data: bytes | str) -> object:
    """The value in `data`. ValueError for whatever is not strict JSON in UTF-8; nothing else is raised."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:40]} is larger than any number here")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")
