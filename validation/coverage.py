"""What a model's validation consists of, and what of it ran here: nothing is left out, "not run" is never a pass."""

import tomllib
from collections.abc import Iterable, Set
from enum import StrEnum
from importlib.resources import files

from pydantic import ValidationError

from .accuracy.exams import Exam
from .errors import UserError
from .judge.verdict import Outcome, Status, Verdict
from .numerics.ladder import Rung
from .records import Frozen


class Stage(StrEnum):
    """The three stages of validation on the model."""

    NUMERICS = "numerics"
    ACCURACY = "accuracy"
    PERFORMANCE = "performance"


class ValidationPlan(Frozen):
    """All that has to be shown for a model, with the facilities that each item needs."""

    numerics: tuple[Rung, ...]
    accuracy: tuple[Exam, ...]
    needs: dict[str, str]


class Row(Frozen):
    """One item of the plan and what became of it."""

    stage: Stage
    item: str
    title: str
    outcome: Outcome
    reason: str = ""


def load_plan(model: str) -> ValidationPlan:
    """The validation plan of `model` (contracts/<model>/validation.toml)."""
    path = files(__package__) / "contracts" / model / "validation.toml"
    try:
        plan = ValidationPlan(**tomllib.loads(path.read_text("utf-8")))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise UserError(f"{path}: {error}", "correct the validation plan of the contract") from error
    for item in (*plan.numerics, *plan.accuracy):
        unknown = set(item.needs) - set(plan.needs)
        if unknown:
            raise UserError(f"{path}: need {sorted(unknown)[0]!r} is not described", "add it under [needs]")
    return plan


def coverage(plan: ValidationPlan, verdicts: Iterable[Verdict], available: Set[str]) -> tuple[Row, ...]:
    """Every item of `plan` with its outcome, given the op-level verdicts and the facilities at hand.

    The op rung passes when every verdict is an acceptance. An item whose needs are met but for which no result was
    handed in is still not run.
    """
    verdicts = tuple(verdicts)
    rows = [
        _op_row(rung, verdicts) if rung.rung == "op" else _open_row(Stage.NUMERICS, rung.rung, rung, plan, available)
        for rung in plan.numerics
    ]
    rows += [_open_row(Stage.ACCURACY, exam.exam, exam, plan, available) for exam in plan.accuracy]
    for verdict in verdicts:
        for timed in verdict.cells:
            key, cell = f"{timed.hardware}/{timed.workload}", timed.cell
            measured = cell.kind == "measured"
            rows.append(Row(
                stage=Stage.PERFORMANCE, item=f"{verdict.op}/{key}", title=f"{verdict.op} on {key}",
                outcome=Outcome.PASS if measured else Outcome.NOT_RUN, reason="" if measured else cell.reason,
            ))  # fmt: skip
    return tuple(rows)


def _op_row(rung: Rung, verdicts: tuple[Verdict, ...]) -> Row:
    failed = [v for v in verdicts if v.status is not Status.ACCEPTED]
    if not verdicts:
        outcome, reason = Outcome.NOT_RUN, "no candidate was confirmed"
    elif failed:
        outcome, reason = Outcome.FAIL, failed[0].message
    else:
        outcome, reason = Outcome.PASS, ""
    return Row(stage=Stage.NUMERICS, item=rung.rung, title=rung.title, outcome=outcome, reason=reason)


def _open_row(stage: Stage, item: str, entry: Rung | Exam, plan: ValidationPlan, available: Set[str]) -> Row:
    missing = [need for need in entry.needs if need not in available]
    reason = "needs " + "; ".join(plan.needs[need] for need in missing) if missing else "no result was handed in"
    return Row(stage=stage, item=item, title=entry.title, outcome=Outcome.NOT_RUN, reason=reason)
