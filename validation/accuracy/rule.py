"""The rule that decides: non-inferiority at a margin, fixed before the first run, with its errors stated.

One-sided at level alpha. With margin m, difference d and half-width w:

    pass          d - w > -m    an arm that loses m or more passes with probability <= alpha
    fail          d + w < -m    an arm that loses m or less fails with probability <= alpha
    inconclusive  otherwise

The half-width is w = h + sqrt((t SE)^2 + h^2) with Student's t for the clusters, and h half of what N generations can
miss: a loss of 1 - alpha^(1/N) leaves N scores untouched with probability alpha. Where hardly any score differs SE says
nothing, and is 0 where none does; there w is that loss, and for a few losses it follows the exact Poisson bounds.
With hundreds of generations and ordinary noise h does not matter.
"""

from enum import StrEnum
from itertools import pairwise
from math import hypot, inf, sqrt
from typing import Self

from pydantic import Field, model_validator

from ..records import Frozen
from .distributions import normal_cdf, normal_quantile, student_quantile
from .paired import Paired

LEAST_LEVEL = 1e-9
"""At a first look after a tiny share of the repeats less than this is spent: nothing is decided there."""
MOST_REPEATS = 4096
"""Beyond this many repeats of an item nobody waits for an answer."""


class Verdict(StrEnum):
    """What became of an exam. Invalid: no score was read."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"


class Rule(Frozen):
    """The rule for one exam. `looks` are the repeats at which a decision is taken, all of them planned.

    `fail_tests` shares alpha between the tests of a family that can each fail it (`family.py`).
    """

    margin_points: float = Field(gt=0, le=100, allow_inf_nan=False)
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    power: float = Field(default=0.8, gt=0.5, lt=1)
    looks: tuple[int, ...] = Field(min_length=1)
    fail_tests: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _looks_grow(self) -> Self:
        if self.looks[0] < 1 or any(later <= earlier for earlier, later in pairwise(self.looks)):
            raise ValueError("looks are numbers of repeats, each larger than the one before")
        return self

    @property
    def margin(self) -> float:
        """The margin as a fraction."""
        return self.margin_points / 100

    def level(self, look: int) -> float:
        """The one-sided level at the look with index `look`.

        With several looks alpha is spent as 2 - 2 Phi(z / sqrt(share of repeats)), z the 1 - alpha/2 quantile (Lan and
        DeMets 1983, the O'Brien-Fleming type), and each look is tested at what is spent since the last. Together they
        spend alpha whatever the dependence between looks.
        """
        if not 0 <= look < len(self.looks):
            raise ValueError(f"look {look} was not planned: there are {len(self.looks)}")
        before = spent(self.alpha, self.looks[look - 1] / self.looks[-1]) if look else 0.0
        return spent(self.alpha, self.looks[look] / self.looks[-1]) - before


class Decision(Frozen):
    """What the rule says of one comparison. Fractions; `lower` and `upper` are bounds of the difference."""

    verdict: Verdict
    level: float
    lower: float
    upper: float
    minimum_detectable_loss: float | None
    """The true loss that would be seen as one with the rule's power; None where no error could be estimated."""
    more_repeats: int | None
    """Inconclusive: further repeats an arm after which the same difference would be decided; None: no number does."""
    within_one_standard_error: bool | None
    """The published phrase, |d| <= SE; None where there is no SE. It decides nothing."""


def spent(alpha: float, share: float) -> float:
    """The part of `alpha` spent once `share` (0 to 1) of the planned repeats is there."""
    if share >= 1:
        return alpha
    return 2 - 2 * normal_cdf(normal_quantile(1 - alpha / 2) / sqrt(share))


def unseen_loss(generations: int, level: float) -> float:
    """The loss of mean score that leaves `generations` scores in [0, 1] untouched with probability `level`.

    A mean loss of L makes one generation lose something with probability L at least, so all stay with at most
    (1 - L)^N, by the inequality of the means also where items differ.
    """
    return 1 - level ** (1 / generations)


def half_width(se: float | None, df: int, generations: int, level: float) -> float:
    """Distance of the one-sided bound at `level` from the difference; infinite where nothing bounds it."""
    if se is None or df < 1 or level < LEAST_LEVEL:
        return inf
    half = unseen_loss(generations, level) / 2
    return half + hypot(student_quantile(1 - level, df) * se, half)


def decide(paired: Paired, rule: Rule, look: int = 0) -> Decision:
    """The rule applied to `paired` at a planned look.

    Raises ValueError where the look was not planned, or the repeats are not those of the look.
    """
    level = rule.level(look)
    if paired.repeats != rule.looks[look]:
        raise ValueError(f"look {look} was planned at {rule.looks[look]} repeats, there are {paired.repeats}")
    lower, upper, verdict = bounds(paired, rule, level, paired.se, paired.generations)
    detectable = None
    if paired.se is not None:
        width = half_width(paired.se, paired.df, paired.generations, level)
        detectable = width + normal_quantile(rule.power) * paired.se
    return Decision(
        verdict=verdict, level=level, lower=lower, upper=upper, minimum_detectable_loss=detectable,
        more_repeats=more_repeats(paired, rule) if verdict is Verdict.INCONCLUSIVE else None,
        within_one_standard_error=None if paired.se is None else abs(paired.difference) <= paired.se,
    )  # fmt: skip


def more_repeats(paired: Paired, rule: Rule) -> int | None:
    """Fewest further repeats of every item in both arms that decide, if the difference stays as it is.

    At the rule's level for a single look. None where none up to `MOST_REPEATS` does: then only more items can.
    """

    def decided(repeats: int) -> bool:
        generations = paired.generations * repeats // paired.repeats
        return bounds(paired, rule, rule.alpha, paired.se_at(repeats), generations)[2] is not Verdict.INCONCLUSIVE

    low, high = paired.repeats, MOST_REPEATS
    if high <= low or not decided(high):
        return None
    while high - low > 1:  # the width only falls with repeats
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high - paired.repeats


def bounds(
    paired: Paired, rule: Rule, level: float, se: float | None, generations: int
) -> tuple[float, float, Verdict]:
    """Lower and upper bound of the difference of `paired` and the verdict, were `se` and `generations` what it has."""
    lower = paired.difference - half_width(se, paired.df, generations, level)
    upper = paired.difference + half_width(se, paired.df, generations, level / rule.fail_tests)
    if lower > -rule.margin:
        return lower, upper, Verdict.PASS
    return lower, upper, Verdict.FAIL if upper < -rule.margin else Verdict.INCONCLUSIVE

