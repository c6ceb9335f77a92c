"""What an exam can show, before it is sat: power, repeats needed, the power of several exams together."""

from collections.abc import Iterable
from math import prod, sqrt

from .distributions import normal_cdf
from .rule import MOST_REPEATS, Rule, half_width


def power(rule: Rule, *, items: int, repeats: int, within: float, between: float = 0.0, loss: float = 0.0) -> float:
    """The probability that an arm with a true `loss` passes a single look at `repeats`, by the normal approximation.

    `within` is the variance of one repeat, both arms added (for right-or-wrong items twice the mean of p (1 - p)),
    `between` that of the true difference between items; as `paired.Paired` estimates them from A/A runs.
    """
    se = sqrt((between + within / repeats) / items)
    room = rule.margin - loss - half_width(se, items - 1, items * repeats, rule.alpha)
    return normal_cdf(room / se) if se else float(room > 0)


def repeats_needed(rule: Rule, *, items: int, within: float, between: float = 0.0, loss: float = 0.0) -> int | None:
    """Fewest repeats an arm at which `power` reaches the rule's; None where none up to `MOST_REPEATS` does."""

    def enough(repeats: int) -> bool:
        return power(rule, items=items, repeats=repeats, within=within, between=between, loss=loss) >= rule.power

    if not enough(MOST_REPEATS):
        return None
    low, high = 0, MOST_REPEATS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def joint_power(powers: Iterable[float]) -> float:
    """The probability that all of several independent exams pass: three at 80 % do half the time."""
    return prod(powers)
