"""Exams sat by both arms as their plans say: look by look, guards first, and no further than the rule needs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from ..errors import UserError
from ..records import Frozen, sha256
from .answers import Answer, Answers
from .asking import Pace
from .engine import sit
from .family import Family, FamilyRule
from .frozen import Exam
from .generation import Model
from .plan import Plan
from .result import FamilyResult, Result, judge, judge_family
from .rule import Verdict
from .sitting import Sat

Told = Callable[[str, str, int, int], None]
"""(exam, arm, answers that are there, answers in all up to this look)."""


class Cost(Frozen):
    """What one arm's answers took. `seconds` are added up over answers, whatever ran at the same time."""

    answers: int
    attempts: int
    prompt_tokens: int | None
    output_tokens: int | None
    seconds: float


class ArmRecord(Frozen):
    """Where one arm's answers are, and what they took."""

    file: str
    """Relative to the directory of the run."""
    sha256: str
    model: str
    cost: Cost


class ExamRecord(Frozen):
    """One exam as it was planned, sat and decided."""

    plan: Plan
    result: Result
    look: int
    """Repeats an arm that it was decided at."""
    baseline: ArmRecord
    candidate: ArmRecord


class Outcome(Frozen):
    """What came of all exams. Several families pass only if each does."""

    verdict: Verdict
    exams: tuple[ExamRecord, ...]
    families: tuple[tuple[Family, Verdict], ...] = ()


@dataclass(frozen=True)
class Arms:
    """Both models, and how they are asked."""

    baseline: Model
    candidate: Model
    pace: Pace = Pace()
    told: Told = lambda exam, arm, done, of: None


Sitting = tuple[Exam, Plan]


def run(sittings: Sequence[Sitting], arms: Arms, place: Path) -> Outcome:
    """Sits and decides every exam of `sittings`; families together. `place` holds what came, and a run goes on there.

    UserError: an exam is there twice, or a family is not complete; else as `engine.sit`.
    """
    names = [plan.exam for _, plan in sittings]
    if len(set(names)) < len(names):
        raise UserError("an exam is planned twice", "give one plan for each exam")
    for _, plan in sittings:
        lacking = set(plan.family.exams if plan.family else ()) - set(names)
        if lacking:
            raise UserError(f"{plan.exam} is decided together with {sorted(lacking)[0]}", "give its plan as well")
    ordered = sorted(sittings, key=_group)
    groups = [_decide(list(group), arms, place) for _, group in groupby(ordered, key=_group)]
    records = {record.plan.exam: record for _, found in groups for record in found}
    families = tuple(
        (found[0].plan.family, verdict) for verdict, found in groups if found[0].plan.family is not None
    )  # fmt: skip
    verdicts = {verdict for verdict, _ in groups}
    order = (Verdict.INVALID, Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)
    return Outcome(
        verdict=next(one for one in order if one in verdicts), exams=tuple(records[name] for name in names),
        families=families,
    )  # fmt: skip


def _group(sitting: Sitting) -> str:
    plan = sitting[1]
    return plan.family.canonical_json() if plan.family else plan.exam


def _decide(group: list[Sitting], arms: Arms, place: Path) -> tuple[Verdict, list[ExamRecord]]:
    """Exams that are decided together, or one alone, through their looks."""
    family = group[0][1].family
    pooled = family is not None and family.rule is FamilyRule.POOLED
    if pooled and len({len(plan.rule.looks) for _, plan in group}) > 1:
        raise UserError("a pooled family has as many looks in every exam", "correct rule.looks of its plans")
    found: dict[str, tuple[Sat, Result]] = {}
    verdict = Verdict.INCONCLUSIVE
    for look in range(max(len(plan.rule.looks) for _, plan in group)):
        for exam, plan in group:
            known = found.get(plan.exam)
            settled = known is not None and known[1].verdict is not Verdict.INCONCLUSIVE
            if look >= len(plan.rule.looks) or (settled and not pooled):
                continue
            sat = _sat(exam, plan, arms, place, plan.rule.looks[look])
            found[plan.exam] = sat, judge(sat.exam, sat.plan, sat.baseline, sat.candidate)
        if family is None:
            verdict = next(iter(found.values()))[1].verdict
        else:
            verdict = _together([sat for sat, _ in found.values()]).verdict
        if verdict is not Verdict.INCONCLUSIVE:
            break
    return verdict, [_record(sat, result, arms, place) for sat, result in found.values()]


def _together(sat: Sequence[Sat]) -> FamilyResult:
    try:
        return judge_family(sat)
    except ValueError as error:
        raise UserError(f"the family cannot be decided: {error}", "correct the plans") from error


def _sat(exam: Exam, plan: Plan, arms: Arms, place: Path, repeats: int) -> Sat:
    def one(arm: Literal["baseline", "candidate"], model: Model) -> Answers:
        answers = sit(
            exam, plan, model, arm, place / plan.exam / arm, repeats=repeats, pace=arms.pace,
            progress=lambda done, of: arms.told(plan.exam, arm, done, of),
        )  # fmt: skip
        _write(_file(place, plan, arm), answers.dump().encode())
        return answers

    return Sat(exam, plan, one("baseline", arms.baseline), one("candidate", arms.candidate))


def _record(sat: Sat, result: Result, arms: Arms, place: Path) -> ExamRecord:
    def arm(name: Literal["baseline", "candidate"], answers: Answers) -> ArmRecord:
        path = _file(place, sat.plan, name)
        return ArmRecord(
            file=path.relative_to(place).as_posix(), sha256=sha256(path.read_bytes()), model=answers.arm.model,
            cost=cost(answers.answers),
        )  # fmt: skip

    look = len(sat.baseline.answers) // len(sat.exam.items)
    return ExamRecord(
        plan=sat.plan, result=result, look=look, baseline=arm("baseline", sat.baseline),
        candidate=arm("candidate", sat.candidate),
    )  # fmt: skip


def cost(answers: Sequence[Answer]) -> Cost:
    """What `answers` took; a count is None where one of them has none."""

    def total(counts: list[int | None]) -> int | None:
        return None if None in counts else sum(counts)

    return Cost(
        answers=len(answers), attempts=sum(one.attempts or 1 for one in answers),
        prompt_tokens=total([one.prompt_tokens for one in answers]), output_tokens=total([one.tokens for one in answers]),
        seconds=round(sum(one.seconds or 0.0 for one in answers), 3),
    )  # fmt: skip


def _file(place: Path, plan: Plan, arm: str) -> Path:
    return place / plan.exam / f"{arm}.jsonl"


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot write {path}: {error.strerror or error}",
            "free space or correct the permissions, then run the same command again: no answer is lost",
        ) from error
