"""Several exams decided together, by a rule that is fixed before the first run.

    each     pass: every exam passes at alpha. No correction: a family of which one exam truly loses its margin passes
             with probability <= alpha (intersection-union). Fail: one of m exams fails at alpha / m, so that a family
             without a loss beyond the margin fails with probability <= alpha.
    pooled   pass: the mean difference over exams, equal weights, passes at alpha, and no exam fails. Fail: the mean, or
             one of m exams, fails at alpha / (m + 1).

An invalid exam makes the family invalid. `each` is the stronger statement and costs power: `power.joint_power`.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import sqrt

from pydantic import Field

from ..records import Frozen
from .paired import Paired
from .rule import Verdict, half_width


class FamilyRule(StrEnum):
    """How the exams of a family are decided together."""

    EACH = "each"
    POOLED = "pooled"


class Family(Frozen):
    """Which exams are decided together and how."""

    rule: FamilyRule = FamilyRule.EACH
    exams: tuple[str, ...] = Field(min_length=1)

    @property
    def fail_tests(self) -> int:
        """How many tests share alpha on the failing side: `Rule.fail_tests` of every exam."""
        return len(self.exams) + (self.rule is FamilyRule.POOLED and len(self.exams) > 1)


class Pooled(Frozen):
    """The mean difference over exams, equal weights, as a fraction; `df` by Welch and Satterthwaite."""

    difference: float
    se: float | None
    df: int
    generations: int


def pool(pairs: Mapping[str, Paired]) -> Pooled:
    """The exams of `pairs`, which share no item, as one figure. No standard error where an exam has none."""
    count = len(pairs)
    difference = sum(one.difference for one in pairs.values()) / count
    # Losses L_e leave all answers untouched with prod (1 - L_e)^N_e <= (1 - mean L)^(exams * least N).
    generations = count * min(one.generations for one in pairs.values())
    errors = [(one.se, one.df) for one in pairs.values() if one.se is not None]
    if len(errors) < count:
        return Pooled(difference=difference, se=None, df=0, generations=generations)
    variance = sum(se**2 for se, _ in errors)
    spread = sum(se**4 / df for se, df in errors)
    df = int(variance**2 / spread) if spread else min(df for _, df in errors)
    return Pooled(difference=difference, se=sqrt(variance) / count, df=max(1, df), generations=generations)


def decide_family(
    family: Family, verdicts: Mapping[str, Verdict], pairs: Mapping[str, Paired], *, margin: float, level: float
) -> Verdict:
    """The verdict over all exams of `family`, given each one's own.

    `pairs`, `margin` (a fraction) and `level` (one-sided, of the mean) are read by the pooled rule only. Raises
    ValueError where an exam is missing or is not of the family.
    """
    if verdicts.keys() != set(family.exams):
        odd = sorted(verdicts.keys() ^ set(family.exams))
        raise ValueError(f"the family was fixed beforehand as {', '.join(family.exams)}: {odd[0]} does not fit")
    found = set(verdicts.values())
    if Verdict.INVALID in found:
        return Verdict.INVALID
    if Verdict.FAIL in found:
        return Verdict.FAIL
    if family.rule is FamilyRule.EACH:
        return Verdict.PASS if found == {Verdict.PASS} else Verdict.INCONCLUSIVE
    mean = pool(pairs)
    if mean.difference - half_width(mean.se, mean.df, mean.generations, level) > -margin:
        return Verdict.PASS
    upper = mean.difference + half_width(mean.se, mean.df, mean.generations, level / family.fail_tests)
    return Verdict.FAIL if upper < -margin else Verdict.INCONCLUSIVE
