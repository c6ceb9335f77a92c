"""One exam, from recorded answers to a verdict, and the lines that a person reads."""

from collections.abc import Callable, Sequence

from ..records import Frozen
from .answers import Answer, Answers
from .family import FamilyRule, decide_family
from .flips import Flips, mcnemar
from .frozen import Exam
from .guards import check
from .paired import Paired, compare
from .plan import Plan
from .rule import Decision, Verdict, decide
from .sitting import Sat
from .verify import Finding


class Result(Frozen):
    """What came of an exam. Where it is invalid there are findings and no figure."""

    exam: str
    exam_sha256: str
    plan_sha256: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    paired: Paired | None = None
    decision: Decision | None = None
    flips: Flips | None = None
    """For one greedy answer an item, right or wrong."""
    unparsed: tuple[float, float] | None = None
    """Shares of answers in which none was found (MRCR: that miss the prefix), baseline and candidate."""
    truncated: tuple[float, float] | None = None


def judge(exam: Exam, plan: Plan, baseline: Answers, candidate: Answers) -> Result:
    """Guards first; only where all hold are scores looked at and the rule applied."""
    sat = Sat(exam, plan, baseline, candidate)
    told = {"exam": exam.manifest.exam, "exam_sha256": exam.digest, "plan_sha256": plan.digest()}
    findings = check(sat)
    if findings:
        return Result(verdict=Verdict.INVALID, findings=findings, **told)
    scores = sat.scores()
    paired = compare(*scores, {item.id: item.cluster for item in exam.items})
    decision = decide(paired, plan.rule, plan.rule.looks.index(paired.repeats))
    single = [{item: values[0] for item, values in held.items()} for held in scores]
    binary = all(value in (0, 1) for held in single for value in held.values())
    greedy = paired.repeats == 1 and not baseline.arm.sampling.temperature
    return Result(
        verdict=decision.verdict, paired=paired, decision=decision,
        flips=mcnemar(*single) if greedy and binary else None,
        unparsed=_shares(sat, lambda answer: not sat.scored(answer).parsed),
        truncated=_shares(sat, lambda answer: answer.truncated), **told,
    )  # fmt: skip


class FamilyResult(Frozen):
    """What came of exams that are decided together."""

    verdict: Verdict
    results: tuple[Result, ...]


def judge_family(sat: Sequence[Sat]) -> FamilyResult:
    """Every exam of one family, and the family as their plans say.

    Raises ValueError where the plans do not name one family, an exam of it is missing or is there twice, or a pooled
    family has several margins.
    """
    families = {one.plan.family for one in sat}
    family = families.pop() if len(families) == 1 else None
    if family is None:
        raise ValueError("the plans do not all name the same family")
    plans = {one.plan.exam: one.plan for one in sat}
    margins = {plan.rule.margin for plan in plans.values()}
    if len(plans) < len(sat):
        raise ValueError("an exam is there twice")
    if family.rule is FamilyRule.POOLED and len(margins) > 1:
        raise ValueError("a pooled family has one margin")
    results = tuple(judge(one.exam, one.plan, one.baseline, one.candidate) for one in sat)
    by_exam = {one.plan.exam: result for one, result in zip(sat, results, strict=True)}
    verdict = decide_family(
        family, {name: one.verdict for name, one in by_exam.items()},
        {name: one.paired for name, one in by_exam.items() if one.paired}, margin=min(margins),
        # Where looks differ between exams the mean is tested at the least that any of them spends.
        level=min((one.decision.level for one in results if one.decision), default=0.0),
    )  # fmt: skip
    return FamilyResult(verdict=verdict, results=results)


def lines(result: Result, plan: Plan) -> list[str]:
    """The result in words: what decides, and beside it what is usually printed."""
    out = [f"{result.exam}: {result.verdict}"]
    out += [f"  {one.reason}: {one.message}" for one in result.findings]
    if result.paired is None or result.decision is None:
        return out
    paired, decision = result.paired, result.decision
    out.append(
        f"  baseline {_points(paired.baseline)}, candidate {_points(paired.candidate)}, "
        f"{paired.items} items, {paired.repeats} repeats"
    )
    confidence = f"{1 - decision.level:.2%} one-sided"
    out.append(
        f"  d = {_points(paired.difference, sign=True)}; lower bound {_points(decision.lower, sign=True)} "
        f"({confidence}), margin {plan.rule.margin_points:g}: this decides"
    )
    if paired.se is None:
        out.append("  no standard error: one cluster")
    else:
        ratio = "undefined" if paired.in_standard_errors is None else f"{paired.in_standard_errors:+.2f}"
        phrase = "within" if decision.within_one_standard_error else "not within"
        out.append(f"  SE (paired) {_points(paired.se)}, d/SE {ratio}: {phrase} one standard error, as often published")
    if decision.minimum_detectable_loss is not None:
        loss = _points(decision.minimum_detectable_loss)
        out.append(f"  minimum detectable loss {loss} at {plan.rule.power:.0%} power")
    if result.flips is not None:
        flips = result.flips
        out.append(f"  {flips.lost} lost, {flips.won} won of {flips.items}; McNemar exact p = {flips.p_two_sided:.3g}")
    if result.verdict is Verdict.INCONCLUSIVE:
        further = decision.more_repeats
        out.append(
            "  no number of repeats settles this: it takes more items" if further is None
            else f"  about {further} more repeats an arm settle it if d stays as it is: at a planned look, or by a new plan"
        )  # fmt: skip
    return out


def _shares(sat: Sat, which: Callable[[Answer], bool]) -> tuple[float, float]:
    first, second = (sum(map(which, arm.answers)) / len(arm.answers) for _, arm in sat.arms())
    return first, second


def _points(fraction: float, *, sign: bool = False) -> str:
    return f"{100 * fraction:{'+' if sign else ''}.2f} points"
