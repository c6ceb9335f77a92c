"""Figures in what a change writes for people, held against claims: a multiplier is derived, never typed.

Texts and claims are written out as data, read, and judged by the rules of claims; nothing of them runs.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from fasttrack_validation.claims.documents import PROSE
from fasttrack_validation.claims.review import review
from fasttrack_validation.errors import UserError

from .git import display
from .report.record import MARKDOWN
from .stages import Reason, StageResult, StageStatus

CLAIMS = "evidence/claims/"
BODY = "pull request body"


def stage(files: Mapping[str, bytes], directory: str, body: str | None = None) -> StageResult:
    """The gate's stage: every text of the model directory, every claim in it, and the pull request's `body`.

    The rendered report is left out: it is held against evidence byte for byte (see report/fresh.py).
    """
    texts = {name: data for name, data in files.items() if name.endswith(PROSE) and name != MARKDOWN}
    claims = {name: data for name, data in files.items()
              if name.startswith(CLAIMS) and name.endswith((".json", ".jsonl"))}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="fasttrack-claims-") as folder:
        names: dict[str, str] = {}
        for number, (name, data) in enumerate(sorted({**texts, **claims}.items())):
            path = Path(folder) / f"{number}{Path(name).suffix}"
            path.write_bytes(data)
            names[str(path)] = f"{directory}/{display(name)}"
        if body is not None:
            path = Path(folder) / "body.md"
            path.write_text(body, "utf-8")
            names[str(path)] = BODY
        try:
            found = review(map(Path, names))
        except UserError as error:
            what = error.what
            for path, name in names.items():
                what = what.replace(path, name)
            reason = Reason(id="claims.unreadable", message=what, remedy=error.how)
            return StageResult(stage="claims", status=StageStatus.FAIL, summary=what, reasons=(reason,))
    reasons = tuple(
        Reason(
            id=f"claims.{one.rule}", message=one.message, remedy=one.remedy,
            status=StageStatus.FAIL if one.level == "error" else StageStatus.PASS,
            path=None if names[one.path] == BODY else names[one.path], line=one.line,
        )
        for one in found.located
    )  # fmt: skip
    bad = sum(reason.status is StageStatus.FAIL for reason in reasons)
    told = f"{len(texts) + (body is not None)} texts, {len(found.items)} claims and records"
    summary = f"{told}: {bad} figures may not stand" if bad else f"{told}: no figure without its claim"
    return StageResult(stage="claims", status=StageStatus.FAIL if bad else StageStatus.PASS, summary=summary, reasons=reasons)
