"""Stock against stock: how often the rule errs on this exam's own noise, by a bootstrap over recorded A/A items."""

from collections.abc import Sequence

import numpy as np

from ..records import Frozen
from .paired import Paired
from .rule import Rule, Verdict, decide


class Calibration(Frozen):
    """Shares of the draws. The rule states `false_fail`, `false_fail_at_margin` and `false_pass_at_margin` <= alpha."""

    draws: int
    passes: float
    """Identical arms that pass: the power."""
    false_fail: float
    """Identical arms that fail."""
    false_fail_at_margin: float
    """Arms that lose exactly the margin, which is still allowed, and fail."""
    false_pass_at_margin: float
    """Arms that lose exactly the margin and pass."""


def calibrate(
    differences: Sequence[float], rule: Rule, *, generations: int, draws: int = 2000, seed: int = 0
) -> Calibration:
    """Draws exams from the per-item `differences` of an A/A run, each with a random sign, and applies the rule.

    Stock has no order, so the sign of an A/A difference carries nothing: with random signs the true difference is 0
    exactly, or the margin once that is taken off every item. For rules with one look. Raises ValueError for fewer than
    two items.
    """
    values = np.asarray(differences, float)
    if values.size < 2 or not np.isfinite(values).all():
        raise ValueError("an A/A run of two items or more is needed, all of them scored")
    if len(rule.looks) != 1:
        raise ValueError("calibrate the looks of a schedule one by one")
    random = np.random.default_rng(seed)
    drawn = random.choice(values, (draws, values.size)) * random.choice([-1.0, 1.0], (draws, values.size))
    means, errors = drawn.mean(axis=1), drawn.std(axis=1, ddof=1) / np.sqrt(values.size)

    def shares(shift: float) -> dict[Verdict, float]:
        verdicts = [
            _verdict(float(d) + shift, float(se), values.size, generations, rule)
            for d, se in zip(means, errors, strict=True)
        ]
        return {verdict: verdicts.count(verdict) / draws for verdict in Verdict}

    same, worse = shares(0.0), shares(-rule.margin)
    return Calibration(
        draws=draws, passes=same[Verdict.PASS], false_fail=same[Verdict.FAIL],
        false_fail_at_margin=worse[Verdict.FAIL], false_pass_at_margin=worse[Verdict.PASS],
    )  # fmt: skip


def _verdict(difference: float, se: float, items: int, generations: int, rule: Rule) -> Verdict:
    paired = Paired(
        items=items, clusters=items, repeats=rule.looks[0], generations=generations, baseline=0.5,
        candidate=0.5 + difference, difference=difference, se=se, baseline_se=None, within=None, between=None,
    )  # fmt: skip
    return decide(paired, rule).verdict
