"""Which of two contestants is faster, from interleaved samples. Pure.

Samples come in quads A B B A. A drift that is linear over a quad (temperature, clocks) adds the same to A and to B and
leaves the quad's ratio alone. The decision needs a declared smallest effect: less than that is no difference.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import exp, inf, log, log1p

from pydantic import Field

from ..records import Frozen
from .statistics import median_bound, median_interval

SMALLEST_EFFECT = 0.01
ALPHA = 0.05


class Quad(Frozen):
    """Four samples in the order in which they were taken, in the same unit."""

    a1: float = Field(gt=0)
    b1: float = Field(gt=0)
    b2: float = Field(gt=0)
    a2: float = Field(gt=0)

    @property
    def advantage(self) -> float:
        """Log of B's time over A's (geometric mean of both halves): positive when A is faster."""
        return (log(self.b1) + log(self.b2) - log(self.a1) - log(self.a2)) / 2

    def swapped(self) -> "Quad":
        """The same samples with the contestants' names exchanged."""
        return Quad(a1=self.b1, b1=self.a1, b2=self.a2, a2=self.b2)


class Standing(StrEnum):
    """What the samples show of A against B."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNCLEAR = "unclear"


class Comparison(Frozen):
    """A against B. `ratio` is B's time over A's: above one when A is faster."""

    standing: Standing
    ratio: float
    low: float = Field(description="lower end of the 95 % bootstrap interval of the ratio")
    high: float
    at_least: float = Field(description="the ratio exceeds this with confidence 1 - alpha / tests (0 when too few quads)")
    at_most: float | None = Field(description="and is below this; None when there are too few quads")
    quads: int
    smallest_effect: float
    alpha: float
    tests: int = Field(description="how many comparisons share alpha (Bonferroni)")


def compare(
    quads: Sequence[Quad], *, smallest_effect: float = SMALLEST_EFFECT, alpha: float = ALPHA, tests: int = 1
) -> Comparison:
    """Rules on A against B: faster or slower by more than the smallest effect, equal within it, or unclear.

    One-sided at `alpha / tests` each way, so a contestant against itself is called faster in at most `alpha` of
    the comparisons, whatever the noise, if quads are independent. Swapping the contestants mirrors everything.
    """
    advantages = [quad.advantage for quad in quads]
    margin = log1p(smallest_effect)
    lower = median_bound(advantages, alpha / tests)
    upper = -median_bound([-value for value in advantages], alpha / tests)
    if lower > margin:
        standing = Standing.FASTER
    elif upper < -margin:
        standing = Standing.SLOWER
    elif lower > -margin and upper < margin:
        standing = Standing.EQUAL
    else:
        standing = Standing.UNCLEAR
    shown = median_interval(advantages)
    return Comparison(
        standing=standing, ratio=exp(shown.median), low=exp(shown.low), high=exp(shown.high),
        at_least=exp(lower), at_most=None if upper == inf else exp(upper), quads=len(quads),
        smallest_effect=smallest_effect, alpha=alpha, tests=tests,
    )  # fmt: skip
