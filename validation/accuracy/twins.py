"""An A/A run: the stock path sits the exam twice. What its noise is, and how the planned rule behaves on it."""

from ..records import Frozen
from .answers import Answers
from .calibration import Calibration, Noise, calibrate
from .family import Family
from .frozen import Exam
from .guards import Sat, baseline_specialised, check
from .paired import Paired, compare, item_means
from .plan import Plan
from .verify import Finding


class Twins(Frozen):
    """What two sittings of the stock path show. Where there are findings there is no figure."""

    findings: tuple[Finding, ...] = ()
    paired: Paired | None = None
    """Its `within` and `between` are what `power.power` needs."""
    noise: Noise | None = None
    calibration: Calibration | None = None
    """Of this exam decided alone, at the look that the runs have the repeats of."""


def judge_twins(exam: Exam, plan: Plan, first: Answers, second: Answers, *, draws: int = 2000) -> Twins:
    """Two stock runs by one plan, through the guards that do not ask for a candidate."""
    sat = Sat(exam, plan, first, second)
    findings = list(check(sat, without=frozenset({"arms", "kernels_inactive"})))
    findings += [
        Finding(reason="arms", message=f"the {name} run was recorded as {arm.arm.arm}: both have to be the stock path")
        for name, arm in (("first", first), ("second", second)) if arm.arm.arm != "baseline"
    ]  # fmt: skip
    findings += [
        Finding(reason="baseline_specialised", message=message)
        for message in baseline_specialised(Sat(exam, plan, second, first))
    ]
    if {answer.generation for answer in first.answers} == {answer.generation for answer in second.answers}:
        findings.append(Finding(reason="copies", message="the second run is a copy of the first"))
    if findings:
        return Twins(findings=tuple(findings))
    scores = sat.scores()
    paired = compare(*scores, {item.id: item.cluster for item in exam.items})
    before, after = map(item_means, scores)
    noise = Noise(differences=tuple(after[item] - before[item] for item in sorted(before)), generations=paired.generations)
    rule = plan.rule.model_copy(update={"looks": (paired.repeats,), "fail_tests": 1})
    found = calibrate({plan.exam: noise}, Family(exams=(plan.exam,)), rule, draws=draws) if paired.items > 1 else None
    return Twins(paired=paired, noise=noise, calibration=found)
