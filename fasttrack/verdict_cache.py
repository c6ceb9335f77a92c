"""Verdicts of `fasttrack evaluate`, kept by what they depend on. The lane never reads them: a pick is judged afresh.

An entry is one file, written whole and durable the moment a verdict is known. One that is damaged, or of another
form, is as good as none.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from fasttrack_validation.judge.verdict import Outcome, Status, Verdict
from fasttrack_validation.records import canonical_json, sha256

from .storage import write_file

# Bump when an entry comes to mean something else.
_SCHEMA = 1


def key(judged: Mapping[str, object], judge: Mapping[str, object]) -> str:
    """The name of an entry: `judged` says what was ruled on and what was asked, `judge` who rules, and where."""
    return sha256(canonical_json({"schema": _SCHEMA, "judged": dict(judged), "judge": dict(judge)}).encode())


def keeps(verdict: Verdict, timed_on: str | None = None) -> bool:
    """Whether a verdict would be the same again: accepted with every check run, or rejected.

    Where plans are timed on a card, `timed_on`, an accepted one also has a figure for each of that card's cells: what
    kept it from being measured may be over by now.
    """
    if verdict.status is Status.REJECTED:
        return True
    run = all(check.outcome is not Outcome.NOT_RUN for check in verdict.checks)
    measured = all(one.cell.kind == "measured" for one in verdict.cells if one.hardware == timed_on)
    return verdict.status is Status.ACCEPTED and run and measured


def read(folder: Path, name: str) -> Verdict | None:
    """The verdict that is kept under `name`, or None."""
    try:
        entry = json.loads((folder / f"{name}.json").read_bytes())
        text = entry["verdict"]
        if entry["key"] != name or entry["digest"] != sha256(text.encode()):
            return None
        return Verdict.model_validate_json(text)
    except (OSError, KeyError, TypeError, AttributeError, ValueError, ValidationError):
        return None


def write(folder: Path, name: str, verdict: Verdict) -> None:
    """Keeps a verdict. Raises UserError where it cannot be written."""
    text = verdict.model_dump_json()
    entry = {"key": name, "digest": sha256(text.encode()), "verdict": text}
    write_file(folder / f"{name}.json", json.dumps(entry).encode())
