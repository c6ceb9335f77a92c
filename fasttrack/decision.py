"""A person's decision on a design, as a record: approve or reject, over the digest of the report that was read.

`report/decision.json` holds it, `report/decision.json.sig` the person's SSH signature over its bytes, in a namespace of
its own: a runner that signs evidence does not decide. A changed report is another report, and has no decision.
"""

import datetime
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from pydantic import Field, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, digest_files

from . import signatures
from .signatures import SUFFIX
from .stages import Reason, StageResult, StageStatus

NAMESPACE = "decision@fasttrack.dev"
REPORT = "report"
RECORD = f"{REPORT}/decision.json"
_AGAIN = "the person reads the report and decides again: `fasttrack decide MODEL approve|reject --note TEXT --key KEY`"


class Ruling(StrEnum):
    """What a person decided."""

    APPROVE = "approve"
    REJECT = "reject"


class Decision(Frozen):
    """One decision. Who made it is what the signature says, not a field that anybody could type."""

    schema_version: Literal[1] = 1
    model: str
    ruling: Ruling
    note: str = Field(min_length=1, max_length=4000, pattern=r"\S")
    report: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 over the files of report/, see report_digest")
    day: datetime.date


def report_digest(files: Mapping[str, bytes]) -> str | None:
    """One SHA-256 over all files of `report/` but the decision; None where there is no report.

    `files` maps paths relative to the model directory to contents.
    """
    pages = {name: data for name, data in files.items()
             if name.startswith(f"{REPORT}/") and name not in (RECORD, f"{RECORD}{SUFFIX}")}  # fmt: skip
    return digest_files(pages) if pages else None


def decide(model: str, ruling: Ruling, note: str, files: Mapping[str, bytes], day: datetime.date) -> bytes:
    """The record of a decision on the report in `files`. UserError without a report, or without a note."""
    digest = report_digest(files)
    if digest is None:
        raise UserError(f"{model} has no report to decide on", f"make one: `fasttrack propose {model} --op OP`")
    try:
        made = Decision(model=model, ruling=ruling, note=note, report=digest, day=day)
    except ValidationError as error:
        raise UserError("a decision needs a note of 1 to 4000 characters", "say in --note why") from error
    return (json.dumps(made.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def stage(
    model: str, files: Mapping[str, bytes], before: Mapping[str, bytes], allowed: bytes | None, directory: str
) -> StageResult:
    """The gate's stage: passes for an approval of this report that somebody signed whom the base trusts.

    Without a decision nothing is required of it: it may stand elsewhere, as a review. One that the change brings
    counts; one that lies in the base is about an earlier report and decides nothing any more.
    """
    kept = all(files.get(name) == before.get(name) for name in (RECORD, f"{RECORD}{SUFFIX}"))

    def answer(
        id: str | None, summary: str, status: StageStatus = StageStatus.FAIL, remedy: str = _AGAIN
    ) -> StageResult:
        if id and kept:
            left = f"{summary} (as at the base: nobody decided on this change)"
            return StageResult(stage="decision", status=StageStatus.NOT_RUN, required=False, summary=left)
        path = f"{directory}/{RECORD}"
        reasons = [Reason(id=id, message=summary, remedy=remedy, status=status, path=path)] if id else []
        return StageResult(stage="decision", status=status, summary=summary, reasons=tuple(reasons))

    if RECORD not in files and f"{RECORD}{SUFFIX}" not in files:
        summary = "nobody decided with `fasttrack decide`"
        return StageResult(stage="decision", status=StageStatus.NOT_RUN, required=False, summary=summary)
    try:
        made = Decision.model_validate_json(files.get(RECORD, b""))
    except ValidationError:
        return answer("decision.malformed", f"{RECORD} is no decision")
    if made.model != model:
        return answer("decision.other_model", f"the decision is about {made.model}")
    if f"{RECORD}{SUFFIX}" not in files or allowed is None:
        return answer("decision.unsigned", "nobody whom the base trusts signed the decision")
    if not signatures.installed():
        return answer("decision.unchecked", "ssh-keygen is not installed here, so nobody checked the decision",
                      StageStatus.NOT_RUN, "install OpenSSH (package openssh-client) where the gate runs")  # fmt: skip
    signed = signatures.verify(files[RECORD], files[f"{RECORD}{SUFFIX}"], allowed, NAMESPACE)
    if isinstance(signed, signatures.Refused):
        return answer(f"decision.{signed.reason}", f"the decision's signature does not count: {signed.message}")
    if made.report != report_digest(files):
        return answer("decision.changed_report", f"{signed.signer} decided on another report than this one")
    if made.ruling is Ruling.REJECT:
        return answer("decision.rejected", f"{signed.signer} rejects: {made.note}", remedy="change the design")
    return answer(None, f"{signed.signer} approved this report on {made.day}", StageStatus.PASS)
