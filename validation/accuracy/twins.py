"""An A/A run: the stock path sits the exam twice. What its noise is, and how the planned rule behaves on it."""

from math import sqrt

from ..records import Frozen
from .answers import Answers
from .calibration import Calibration, Noise, calibrate
from .family import Family
from .frozen import Exam
from .guards import baseline_specialised, check
from .paired import Paired, compare, item_means
from .plan import Plan
from .rule import Rule
from .sitting import Sat
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
    texts = [{answer.generation for answer in arm.answers} for arm in (first, second)]
    if texts[0] == texts[1] and first.arm.sampling.temperature:
        findings.append(Finding(reason="copies", message="the second run is a copy of the first"))
    if findings:
        return Twins(findings=tuple(findings))
    scores = sat.scores()
    paired = compare(*scores, {item.id: item.cluster for item in exam.items})
    before, after = map(item_means, scores)
    differences = tuple(after[item] - before[item] for item in sorted(before))
    noise = Noise(differences=differences, generations=paired.generations)
    rule = plan.rule.model_copy(update={"looks": (paired.repeats,), "fail_tests": 1})
    found = calibrate({plan.exam: noise}, Family(exams=(plan.exam,)), rule, draws=draws) if paired.items > 1 else None
    return Twins(paired=paired, noise=noise, calibration=found)


def as_stated(found: Calibration, rule: Rule) -> bool:
    """Whether the errors are at most alpha, within three standard errors of so many draws."""
    limit = rule.alpha + 3 * sqrt(rule.alpha * (1 - rule.alpha) / found.draws)
    return max(found.false_fail, found.false_fail_at_margin, found.false_pass_at_margin) <= limit


def lines(found: Twins, plan: Plan) -> list[str]:
    """The A/A run in words."""
    out = [f"{plan.exam}, stock against stock"] + [f"  {one.reason}: {one.message}" for one in found.findings]
    paired, errors = found.paired, found.calibration
    if paired is None or errors is None:
        return out if paired is None else [*out, "  one item: nothing to calibrate"]
    if paired.within is None:
        out.append("  one repeat: the noise within items cannot be told from that between them")
    else:
        out.append(f"  variance within items {paired.within:.4g} (one repeat, both arms), between {paired.between:.4g}")
    level = plan.rule.alpha
    out.append(f"  identical arms pass {errors.passes:.1%} of the time and fail {errors.false_fail:.1%}")
    out.append(
        f"  at a loss of the margin {errors.false_pass_at_margin:.1%} pass, {errors.false_fail_at_margin:.1%} fail; "
        f"the rule states at most {level:.0%} of each"
    )
    return out
