"""Verdicts of the numerics ladder as evidence: each names the digests of the records that it follows from.

    evidence/numerics/NAME.json     the verdict
    evidence/numerics/NAME/         its records

Read as data: whether a verdict follows from its records is worked out by `fasttrack validate MODEL --stage numerics --out
evidence/numerics/NAME --recompute`, which takes the ladder's code.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from fasttrack_validation.records import sha256

from .git import display
from .stages import Reason

VERDICTS = re.compile(r"evidence/numerics/[^/]+\.json")
_AGAIN = "restore them from git, or run the stage again: `fasttrack validate MODEL --stage numerics`"


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Subject(_Read):
    machine: dict[str, str]


class Verdict(_Read):
    """What is read of a verdict here."""

    subject: _Subject
    rungs: tuple[object, ...]
    evidence: dict[str, str]
    """File of records -> SHA-256"""


def read(data: bytes) -> Verdict | None:
    """A verdict's facts; None for what is none."""
    try:
        return Verdict.model_validate(json.loads(data))
    except (ValueError, RecursionError, ValidationError):
        return None


def on_gpu(data: bytes) -> bool:
    """Whether a GPU computed what it is about. One that cannot be read may claim anything."""
    verdict = read(data)
    return verdict is None or verdict.subject.machine.get("device") != "cpu"


def odd(verdict: Verdict, digest_of: Callable[[str], str | None]) -> list[str]:
    """Names of the records that are missing or others. `digest_of`: SHA-256 of the file of that name, None where there is none."""
    return [name for name, digest in sorted(verdict.evidence.items()) if digest_of(name) != digest]


def reasons(files: Mapping[str, bytes], directory: str) -> Iterator[Reason]:
    """Why verdicts among `files` (paths relative to the model directory) are not about the records beside them."""
    for path in sorted(filter(VERDICTS.fullmatch, files)):
        folder, where = path.removesuffix(".json"), f"{directory}/{display(path)}"
        verdict = read(files[path])
        if verdict is None:
            yield Reason(id="numerics.malformed", message=f"{where} is no verdict of the numerics ladder", remedy=_AGAIN, path=where)
            continue

        def digest_of(name: str, folder: str = folder) -> str | None:
            data = files.get(f"{folder}/{name}")
            return None if data is None else sha256(data)

        if not verdict.evidence:
            message = f"{where} names no records that it follows from"
            yield Reason(id="numerics.records", message=message, remedy=_AGAIN, path=where)
        elif wrong := odd(verdict, digest_of):
            message = f"{where} does not follow from the records beside it: {said(wrong)}"
            yield Reason(id="numerics.records", message=message, remedy=_AGAIN, path=where)


def said(names: list[str]) -> str:
    """The first of some records, and how many more there are."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{display(names[0])}{more} {'are' if more else 'is'} missing or not the one that it names"
