"""Medians, intervals and exact tests that timing decisions rest on. Pure; nothing here knows what was timed."""

from collections.abc import Sequence
from math import comb, inf

import numpy as np

from ..records import Frozen

RESAMPLES = 4000


class Interval(Frozen):
    """A median with a two-sided interval, in the unit of the samples."""

    median: float
    low: float
    high: float


def median_interval(samples: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Median of `samples` with its percentile bootstrap interval (Efron 1979), for display.

    Raises ValueError without samples. `seed` makes the same samples give the same interval; it says nothing about them.
    """
    values = np.asarray(samples, float)
    if not values.size:
        raise ValueError("no samples")
    drawn = np.random.default_rng(seed).choice(values, (RESAMPLES, values.size))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(median=float(np.median(values)), low=float(low), high=float(high))


def median_bound(samples: Sequence[float], alpha: float) -> float:
    """A lower bound that the true median exceeds with probability of at least 1 - `alpha`; -inf for few samples.

    The order statistic that inverts the sign test: whatever the distribution, the k-th smallest of n independent
    samples lies above the median with probability P(Binomial(n, 1/2) < k). Decisions use this bound and not the
    bootstrap, whose one-sided error at a dozen samples is nearly twice the nominal one (tests measure both).
    """
    values = sorted(samples)
    rank, tail = 0, 0.0
    while rank < len(values):
        tail += comb(len(values), rank) / 2 ** len(values)
        if tail > alpha:
            break
        rank += 1
    return values[rank - 1] if rank else -inf


def tail_probability(successes: int, trials: int, rate: float) -> float:
    """P(X >= `successes`) for X ~ Binomial(`trials`, `rate`): the exact one-sided test of a rate."""
    return 1.0 - sum(comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(successes))


def most_successes(trials: int, rate: float, alpha: float = 0.05) -> int:
    """The largest count that the exact one-sided test at level `alpha` still allows for `rate`.

    27 of 400 at 5 %: 28 or more have a probability of 4.8 %.
    """
    count = 0
    while tail_probability(count + 1, trials, rate) > alpha:
        count += 1
    return count
