"""What a stage of the gate answers: a status, and reasons with stable ids and a way on."""

from enum import StrEnum

from fasttrack_validation.records import Frozen


class StageStatus(StrEnum):
    """What came of a stage."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not_run"
    EMPTY = "empty"


class Reason(Frozen):
    """One reason for a status, with a stable id and what to do about it."""

    id: str
    message: str
    remedy: str
    status: StageStatus = StageStatus.FAIL
    path: str | None = None
    line: int | None = None
    op: str | None = None


class StageResult(Frozen):
    """One stage of the gate. A stage that is not required never decides; it says what was left out."""

    stage: str
    status: StageStatus
    summary: str
    required: bool = True
    reasons: tuple[Reason, ...] = ()
