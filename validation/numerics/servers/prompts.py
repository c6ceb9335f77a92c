"""The token streams that are compared: JSON lines, read one at a time, and how a long one is cut."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from ...errors import UserError
from .forms import Form


def prompts(file: Path) -> Iterator[tuple[str, list[int]]]:
    """(id, token ids) of each line, which is {"id": ..., "tokens": [...]} or a bare list. UserError names the line."""
    seen = set()
    try:
        lines = file.open(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}", "name a file of token ids, one prompt a line") from error
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            name, tokens = _prompt(file, number, line)
            if name in seen:
                raise UserError(f"{file}:{number}: the id {name!r} is taken", "give every prompt its own")
            seen.add(name)
            yield name, tokens
    if not seen:
        raise UserError(f"{file}: no prompts", 'write lines like {"id": "a", "tokens": [1, 2, 3]}')


def digest(file: Path) -> str:
    """SHA-256 of the file, read in parts."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def cuts(count: int, size: int, form: Form) -> list[tuple[int, int]]:
    """[start, end) of the pieces in which a prompt of `count` tokens is scored; place 0 has no score.

    SGLang scores any stretch, so pieces are of `size`. vLLM scores a prompt from its beginning each time, so ends
    double: all requests together are at most twice the longest, and a run that stops loses at most the second half.
    """
    ends, end = [], size
    while end < count:
        ends.append(end)
        end = end + size if form is Form.SGLANG else 2 * end
    return list(zip([1, *ends], [*ends, count], strict=True))


def _prompt(file: Path, number: int, line: str) -> tuple[str, list[int]]:
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            found = {"tokens": found}
        name, tokens = found.get("id", str(number)), found["tokens"]
        fine = isinstance(tokens, list) and all(type(token) is int and token >= 0 for token in tokens)
    except (ValueError, KeyError) as error:
        raise UserError(f"{file}:{number}: {error!r}", 'write {"id": "a", "tokens": [1, 2, 3]}') from error
    if not fine or len(tokens) < 2:
        raise UserError(f"{file}:{number}: no list of two or more token ids", "write token ids, not texts")
    return str(name), tokens
