"""A kept verdict of the numerics ladder with records of tokens beside it, as the files of a model directory."""

import gzip
import hashlib
import json
from collections.abc import Sequence

import token_records
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, UnitRecords

SOURCE = "evidence/numerics/h200.json"


def packed(unit: UnitRecords) -> bytes:
    """The lines of a finished unit, compressed."""
    lines = [one.canonical_json() for one in (unit.header, *unit.steps, unit.end)]
    return gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0)


def kept(units: Sequence[UnitRecords], more: dict[str, str] = {}) -> dict[str, bytes]:
    """The files of `units`, named in order, and of a verdict that names them and `more`."""
    records = {f"unit-{number}.jsonl.gz": packed(unit) for number, unit in enumerate(units)}
    evidence = {name: hashlib.sha256(data).hexdigest() for name, data in records.items()} | more
    files = {f"{SOURCE.removesuffix('.json')}/{name}": data for name, data in records.items()}
    return files | {SOURCE: json.dumps({"rungs": [], "evidence": evidence}).encode()}


def unit(count: int = 24, *, message: str = "", moved: int = 0, **made) -> UnitRecords:
    """Made-up tokens; the last third lies `moved` positions farther, and at token 3 the candidate chooses another one."""
    def spoil(position, row, exact):
        if position == 3:
            row["logits"][CANDIDATE] = -exact

    found = token_records.unit(count, spoil=spoil, **made)
    steps = [
        step.model_copy(update={"tokens": tuple(token.model_copy(
            update={"position": token.position + moved * (token.position >= 2 * count // 3)}) for token in step.tokens)})
        for step in found.steps
    ]  # fmt: skip
    header = found.header.model_copy(update={"unit": found.header.unit + message})
    return found.model_copy(update={"steps": tuple(steps), "header": header})
