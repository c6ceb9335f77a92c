"""What a stage of the gate answers: a status, and reasons with stable ids and a way on."""

from enum import StrEnum

from pydantic import field_validator

from fasttrack_validation.records import Frozen

from .git import display


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

    @field_validator("path")
    @classmethod
    def _printable_path(cls, value: str | None) -> str | None:
        """A head chooses its names: whoever prints a reason prints no control character and no broken UTF-8."""
        return None if value is None else display(value)

    @field_validator("message", "remedy")
    @classmethod
    def _encodable(cls, value: str) -> str:
        return value.encode("utf-8", "backslashreplace").decode()


class StageResult(Frozen):
    """One stage of the gate. A stage that is not required never decides; it says what was left out."""

    stage: str
    status: StageStatus
    summary: str
    required: bool = True
    reasons: tuple[Reason, ...] = ()
