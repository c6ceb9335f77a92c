"""Verdicts of the numerics ladder as evidence: each names what ran, and the digests of the records that it follows from.

    evidence/numerics/NAME.json     the verdict
    evidence/numerics/NAME/         its records, and run.json: what ran

Read as data: whether a verdict follows from its records is worked out by `fasttrack validate MODEL --stage numerics --out
evidence/numerics/NAME --recompute`, which takes the ladder's code.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fasttrack_validation.records import sha256

from .git import display
from .stages import Reason, StageStatus

VERDICTS = re.compile(r"evidence/numerics/[^/]+\.json")
RUN = "run.json"
_RECORDS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.jsonl\.gz")
_AGAIN = "restore them from git, or run the stage again: `fasttrack validate MODEL --stage numerics`"

Name = Annotated[str, Field(pattern=f"^{_RECORDS.pattern}$")]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Verdict(BaseModel):
    """What is read of a verdict here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    subject: dict[str, Any]
    result: Literal["pass", "fail", "inconclusive"]
    rungs: tuple[Any, ...]
    evidence: dict[Name, Sha256]
    """File of records -> SHA-256"""

    @property
    def device(self) -> str | None:
        """Where it ran; None where it does not say."""
        machine = self.subject.get("machine")
        return machine.get("device") if isinstance(machine, dict) else None


def read(data: bytes) -> Verdict | None:
    """A verdict's facts; None for what is none."""
    try:
        return Verdict.model_validate(json.loads(data))
    except (ValueError, RecursionError, ValidationError):
        return None


def on_gpu(data: bytes) -> bool:
    """Whether a GPU computed what it is about. One that cannot be read may claim anything."""
    verdict = read(data)
    return verdict is None or verdict.device != "cpu"


def wrong(verdict: Verdict, beside: Mapping[str, bytes]) -> str | None:
    """Why a verdict does not follow from what lies `beside` it (file of its directory -> contents), or None."""
    if not verdict.evidence:
        return "it names no records that it follows from"
    for name, digest in sorted(verdict.evidence.items()):
        if name not in beside or sha256(beside[name]) != digest:
            return f"{name} is missing or not the one that it names"
    if more := _unnamed(verdict, beside):
        return f"{display(more[0])} lies among its records, and it does not name it"
    try:
        ran = json.loads(beside.get(RUN, b""))
    except (ValueError, RecursionError):
        ran = None
    return None if ran == verdict.subject else f"{RUN} beside it does not say the same of what ran"


def _unnamed(verdict: Verdict, beside: Collection[str]) -> list[str]:
    return sorted(name for name in beside if name.endswith(".jsonl.gz") and name not in verdict.evidence)


def reasons(files: Mapping[str, bytes], directory: str, before: Mapping[str, bytes] | None = None) -> Iterator[Reason]:
    """Why verdicts among `files` (paths relative to the model directory) are not about the records beside them.

    What is wrong as it was `before`, in the base's files, is told and fails nothing: the change does not touch it.
    """
    before = before or {}
    for path in sorted(filter(VERDICTS.fullmatch, files)):
        folder, where = f"{path.removesuffix('.json')}/", f"{directory}/{display(path)}"
        beside = {name.removeprefix(folder): data for name, data in files.items() if name.startswith(folder)}
        was = {name.removeprefix(folder): data for name, data in before.items() if name.startswith(folder)}
        untouched = before.get(path) == files[path] and beside == was
        status, as_it_was = (StageStatus.PASS, " (as at the base: the change does not touch it)") if untouched else (StageStatus.FAIL, "")
        verdict = read(files[path])
        if verdict is None:
            message = f"{where} is no verdict of the numerics ladder{as_it_was}"
            yield Reason(id="numerics.malformed", message=message, remedy=_AGAIN, path=where, status=status)
        elif why := wrong(verdict, beside):
            message = f"{where} does not follow from the records beside it: {why}{as_it_was}"
            yield Reason(id="numerics.records", message=message, remedy=_AGAIN, path=where, status=status)
