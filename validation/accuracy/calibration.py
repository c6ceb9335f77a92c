"""Stock against stock: how often a rule errs on its exams' own noise, by a bootstrap over recorded A/A items."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..records import Frozen
from .family import Family, FamilyRule, decide_family
from .paired import Paired
from .rule import Rule, Verdict, bounds


class Calibration(Frozen):
    """Shares of the draws. The rule states that all but `passes` are at most alpha."""

    draws: int
    passes: float
    """Identical arms that pass: the power."""
    false_fail: float
    """Identical arms that fail."""
    false_fail_at_margin: float
    """Arms that lose exactly the margin in every exam, which is still allowed, and fail."""
    false_pass_at_margin: float
    """Arms that lose exactly the margin and pass: in one exam alone, the worst of them; pooled, in all of them."""


class Noise(Frozen):
    """An A/A run of one exam: the difference of every item, and how many generations each arm had."""

    differences: tuple[float, ...]
    generations: int


def calibrate(
    noise: Mapping[str, Noise], family: Family, rule: Rule, *, draws: int = 2000, seed: int = 0
) -> Calibration:
    """Draws items of every exam of `family` with a random sign each, and applies the rule and the family's rule.

    Stock has no order, so the sign of an A/A difference carries nothing: with random signs the true difference is 0
    exactly, or the margin once that is taken off every item. Raises ValueError for several looks, and for a run of
    fewer than two items or with one that has no score.
    """
    if len(rule.looks) != 1:
        raise ValueError("calibrate the looks of a schedule one by one")
    random = np.random.default_rng(seed)
    drawn = {name: _draw(noise[name], draws, random) for name in family.exams}

    def shares(shifted: Sequence[str]) -> dict[Verdict, float]:
        verdicts = []
        for draw in range(draws):
            pairs = {
                name: _paired(*drawn[name][draw], -rule.margin if name in shifted else 0.0, noise[name], rule)
                for name in family.exams
            }
            each = {name: bounds(pair, rule, rule.alpha, pair.se, pair.generations)[2] for name, pair in pairs.items()}
            verdicts.append(decide_family(family, each, pairs, margin=rule.margin, level=rule.alpha))
        return {verdict: verdicts.count(verdict) / draws for verdict in Verdict}

    same, worse = shares(()), shares(family.exams)
    hardest = [worse]
    if family.rule is FamilyRule.EACH and len(family.exams) > 1:
        hardest += [shares((name,)) for name in family.exams]
    return Calibration(
        draws=draws, passes=same[Verdict.PASS], false_fail=same[Verdict.FAIL], false_fail_at_margin=worse[Verdict.FAIL],
        false_pass_at_margin=max(one[Verdict.PASS] for one in hardest),
    )  # fmt: skip


def _draw(noise: Noise, draws: int, random: np.random.Generator) -> np.ndarray:
    """Mean and standard error of every draw, (`draws`, 2)."""
    values = np.asarray(noise.differences, float)
    if values.size < 2 or not np.isfinite(values).all():
        raise ValueError("an A/A run of two items or more is needed, all of them scored")
    drawn = random.choice(values, (draws, values.size)) * random.choice([-1.0, 1.0], (draws, values.size))
    return np.stack([drawn.mean(axis=1), drawn.std(axis=1, ddof=1) / np.sqrt(values.size)], axis=1)


def _paired(mean: float, se: float, shift: float, noise: Noise, rule: Rule) -> Paired:
    items = len(noise.differences)
    return Paired(
        items=items, clusters=items, repeats=rule.looks[0], generations=noise.generations, baseline=0.5,
        candidate=0.5 + mean + shift, difference=mean + shift, se=se, baseline_se=None, within=None, between=None,
    )  # fmt: skip
