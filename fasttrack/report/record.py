"""What a report says beside evidence, kept as `report/design.json`: who made the change, and words without figures.

Everything else on the page is read from evidence and sources each time it is rendered, so that anybody can render it
again and compare.
"""

import json
from typing import Literal

from pydantic import ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from ..evidence import Name, OpName
from .data import Decision, Exam, Prediction, Provenance
from .prose import Prose

DESIGN = "report/design.json"
MARKDOWN, PAGE = "report/design.md", "report/design.html"


class Touched(Frozen):
    """A file that the change touches, relative to the model directory."""

    path: str
    status: Literal["A", "M", "D", "T"]


class RecordedOp(Frozen):
    """One op that the change is about."""

    op: OpName
    predictions: tuple[Prediction, ...] = ()
    rationale: Prose = ""


class DesignRecord(Frozen):
    """One change, as the report tells it."""

    schema_version: Literal[1] = 1
    model: Name
    problem: Prose
    switch_off: Prose
    ops: tuple[RecordedOp, ...] = ()
    touched: tuple[Touched, ...] = ()
    provenance: Provenance
    decisions: tuple[Decision, ...] = ()
    not_run: tuple[tuple[str, str], ...] = ()
    exams: tuple[Exam, ...] = ()
    stale: tuple[tuple[str, str], ...] = ()
    """(record of the grid, what changed since) where it took the contract to tell"""
    obsolete_when: Prose = ""

    def text(self) -> str:
        """The file's contents."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read(data: bytes, where: str) -> DesignRecord:
    """The record in `data`. UserError names `where`, the key and the fault."""
    try:
        return DesignRecord.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "record"
        raise UserError(f"{where}: {key}: {first['msg']}", "write it again: `fasttrack report MODEL --write`") from error
