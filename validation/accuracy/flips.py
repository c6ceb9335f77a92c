"""A single greedy run: which items changed sides, and McNemar's exact test of whether one side won."""

from collections.abc import Mapping

from ..records import Frozen
from .distributions import binomial_tail


class Flips(Frozen):
    """Items that are right in one arm only."""

    items: int
    lost: int
    won: int
    p_loss: float
    """P(as many losses or more | flips are even), one-sided."""
    p_two_sided: float

    @property
    def rate(self) -> float:
        """Share of items that changed sides. High without a net change it is a finding about numerics, not luck."""
        return (self.lost + self.won) / self.items


def mcnemar(baseline: Mapping[str, float], candidate: Mapping[str, float]) -> Flips:
    """McNemar's exact test (binomial over the flips) for one right-or-wrong answer an item.

    Raises ValueError where items differ, there is none, or a score is neither 0 nor 1.
    """
    if not baseline or baseline.keys() != candidate.keys():
        raise ValueError("both arms need the same items, and at least one")
    odd = [item for arm in (baseline, candidate) for item, score in arm.items() if score not in (0, 1)]
    if odd:
        raise ValueError(f"{odd[0]}: McNemar's test is for answers that are right or wrong")
    lost = sum(baseline[item] > candidate[item] for item in baseline)
    won = sum(baseline[item] < candidate[item] for item in baseline)
    flips = lost + won
    return Flips(
        items=len(baseline), lost=lost, won=won, p_loss=binomial_tail(lost, flips),
        p_two_sided=min(1.0, 2 * binomial_tail(max(lost, won), flips)),
    )  # fmt: skip
