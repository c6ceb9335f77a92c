"""Everything has an end: a model directory's dates of review and removal, held against the day of the gate."""

import datetime
from collections.abc import Iterator
from typing import Any

from .confinement.names import MANIFEST
from .stages import Reason, StageResult, StageStatus

WARNING = datetime.timedelta(days=31)
_DATES = (
    ("review_by", "review", "a person looks at the directory again, and moves the date in a change of its own"),
    ("remove_by", "removal", "remove the directory, or let a person move the date in a change of its own"),
)


def stage(manifest: Any, old: Any, today: datetime.date, directory: str) -> tuple[StageResult, list[Reason]]:
    """The gate's stage, and what a person has to look at before the change leaves draft.

    `old` is the base's manifest, or None. The earlier of both dates counts: a change does not prolong its own life.
    """
    reasons, notices = [], []
    for key, what, remedy in _DATES:
        now, then = getattr(manifest.model, key), getattr(old.model, key) if old else None
        for reason in _date(key, what, remedy, now, then, today):
            reason = reason.model_copy(update={"path": f"{directory}/{MANIFEST}"})
            (reasons if reason.status is StageStatus.FAIL else notices).append(reason)
    dates = f"review by {manifest.model.review_by}, removal by {manifest.model.remove_by}"
    status = StageStatus.FAIL if reasons else StageStatus.PASS
    return StageResult(stage="lifetime", status=status, summary=dates, reasons=tuple(reasons)), notices


def _date(
    key: str, what: str, remedy: str, now: datetime.date, then: datetime.date | None, today: datetime.date
) -> Iterator[Reason]:
    due = min(now, then) if then else now
    if today > due:
        yield Reason(id=f"lifetime.{what}", message=f"{key} was {due}", remedy=remedy)
    elif today >= due - WARNING:
        yield Reason(id=f"lifetime.{what}_soon", message=f"{key} is {due}, in {(due - today).days} days", remedy=remedy,
                     status=StageStatus.PASS)  # fmt: skip
    if then and now > then:
        yield Reason(id="lifetime.moved", message=f"the change moves {key} from {then} to {now}",
                     remedy="the owner confirms the new date", status=StageStatus.PASS)  # fmt: skip
