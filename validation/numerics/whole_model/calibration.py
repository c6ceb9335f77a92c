"""Tolerances from noise: how one path's errors are held to those of equal runs of the stock path. Pure functions.

Two questions, as gates ask them. Typical error: the ratio of medians, against 1.25, with a bound from resampled tokens, so
that few tokens give "inconclusive" and not a verdict. Largest error: what it may be follows from the noise's own, whose
tail is carried on as a power law (Hill's estimator) to where equal noise would get once in a hundred rungs.

Tokens differ in how hard they are, so an error is first divided by what is usual at that very token: a norm over many
elements by the same norm of the noise; a single number (a change of log-prob) by a norm that it follows from, because
runs of the stock path round at the same places, and where they happen to be right together an honest path that rounds
elsewhere would look wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

RATIO, MOST = 1.25, 4.0
LEAST = 3.0
"""Below three times the noise at its token an error says nothing: runs of the stock path round at the same places, and are
closer to each other than to an honest path that rounds elsewhere, which was seen to reach 2.4 times on one of 1600 tokens"""
FALSE_ALARM = 0.01 / 50
"""How often equal noise may exceed the limit of a maximum: once in a hundred rungs of some fifty checks"""
RESAMPLES, BLOCK = 2000, 8
"""Tokens are resampled in blocks: neighbours' errors hang together"""
_EASY = 0.1
"""Of the usual noise: tokens with less are not taken to be easier than that"""
_TAIL, _LEAST = 0.05, 20
_LOWER = 0.001


@dataclass(frozen=True)
class Typical:
    """Medians, or other quantiles."""

    candidate: float
    noise: float
    ratio: float
    lower: float
    """The ratio is larger than this with 99.9 % confidence"""

    @property
    def exceeded(self) -> bool | None:
        """None: too few tokens to tell."""
        if self.ratio <= RATIO:
            return False
        return True if self.lower > RATIO else None

    @property
    def equal(self) -> bool:
        """Whether the two may be alike for all that these tokens show."""
        return self.lower <= 1


@dataclass(frozen=True)
class Largest:
    """Quotients of an error and the noise, at its token or as it usually is."""

    quotient: float
    limit: float
    row: int
    """Of the largest"""
    first: int | None
    """The first row beyond the limit"""

    @property
    def exceeded(self) -> bool:
        """Beyond what equal noise does once in a hundred tables."""
        return not self.quotient <= self.limit


def typical(candidate: np.ndarray, noise: Mapping[str, np.ndarray], seed: int = 0) -> Typical:
    """Of columns [tokens], finite or not."""
    pooled = np.stack(list(noise.values()))
    own, other = float(np.median(candidate)), float(np.median(pooled))
    floor = np.finfo(np.float32).tiny
    ratio = own / max(other, floor) if own > floor else 0.0
    if ratio <= RATIO:
        return Typical(own, other, ratio, min(ratio, 1.0))
    picks = _picks(len(candidate), seed)
    ratios = np.median(candidate[picks], -1) / np.median(pooled[:, picks], (0, 2)).clip(floor)
    return Typical(own, other, ratio, float(np.quantile(ratios, _LOWER)))


def tail(candidate: np.ndarray, noise: Mapping[str, np.ndarray], seed: int = 0) -> Typical:
    """p99.9 of all values of columns [tokens, values], held to that of the equal run where it is the largest.

    Tokens are resampled, not values: a token that went to other experts has a vocabulary of large errors, and one of them among a
    few hundred tokens is the whole of a pooled p99.9.
    """
    every = np.arange(len(candidate))[None]
    own, other = float(_p999(candidate, every)[0]), max(float(_p999(column, every)[0]) for column in noise.values())
    ratio = own / max(other, np.finfo(np.float32).tiny)
    if ratio <= RATIO:
        return Typical(own, other, ratio, min(ratio, 1.0))
    picks = _picks(len(candidate), seed)
    ratios = _p999(candidate, picks) / np.max([_p999(column, picks) for column in noise.values()], 0)
    return Typical(own, other, ratio, float(np.quantile(ratios, _LOWER)))


def _picks(count: int, seed: int) -> np.ndarray:
    """[resamples, tokens]: which of `count` tokens stand in each."""
    random = np.random.default_rng(seed)
    block = min(BLOCK, max(count // 4, 1))
    starts = random.integers(0, count - block + 1, (RESAMPLES, -(-count // block)))
    return (starts[..., None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]


def _p999(values: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """[resamples]: p99.9, by nearest rank, of the values [tokens, n] of the tokens [resamples, tokens]."""
    flat = values.ravel()
    # What any resample has among its largest thousandth lies among the largest of all: 50 times as many are looked at.
    order = np.argsort(-flat, kind="stable")[: max(len(flat) // 20, 1)]
    ordered, token = flat[order], order // values.shape[1]
    rank = len(flat) - int(np.ceil(0.999 * len(flat))) + 1
    found = []
    for pick in picks:
        seen = np.bincount(pick, minlength=len(values))[token].cumsum()
        found.append(ordered[min(int(np.searchsorted(seen, rank)), len(ordered) - 1)])
    return np.array(found)


def largest(
    candidate: np.ndarray, noise: Mapping[str, np.ndarray], scale: np.ndarray | None = None, *, least: float | None = None
) -> Largest:  # fmt: skip
    """Of columns [tokens] of errors, at least two of noise. `scale` [tokens]: what is usual; by default the noise's.
    `least`: below so many times that nothing is said, `LEAST` if not given."""
    columns = np.stack(list(noise.values()))
    if not columns.size:
        return Largest(0.0, RATIO, 0, None)
    floor = max(_EASY * float(np.median(columns)), np.finfo(np.float32).tiny)
    if scale is not None:
        quotients, others = candidate / scale, columns / scale
    else:
        quotients = candidate / _scale(columns, floor)
        others = np.stack([columns[i] / _scale(np.delete(columns, i, 0), floor) for i in range(len(columns))])
    limit = max(tail_limit(others, len(candidate)), LEAST if least is None else least)
    beyond = np.flatnonzero(~(quotients <= limit))
    row = int(np.argmax(np.where(np.isnan(quotients), np.inf, quotients)))
    return Largest(float(quotients[row]), limit, row, int(beyond[0]) if len(beyond) else None)


def tail_limit(noise: np.ndarray, count: int) -> float:
    """What the largest of `count` values exceeds with probability `FALSE_ALARM`, where single ones are like `noise`.

    `noise` [paths, n]. P(X > x) = (k / n) (x / x_k)^(-alpha) above the k-th largest x_k, with 1 / alpha the mean of
    log(x_i / x_k) over the k largest (Hill 1975), to which its standard error is added. Never below the largest value
    seen, and never above four times it: a few values say little about a tail. The tolerance of 1.25 comes on top, as
    for the typical error.
    """
    ordered = np.sort(noise[np.isfinite(noise)], axis=None)[::-1]
    if not len(ordered) or ordered[0] <= 0:
        return RATIO * float(np.finfo(np.float32).tiny)
    k = min(max(int(_TAIL * len(ordered)), _LEAST), len(ordered) // 4)
    if k < 1 or ordered[k] <= 0:
        return RATIO * float(ordered[0])
    slope = float(np.mean(np.log(ordered[:k] / ordered[k]))) * (1 + k**-0.5)
    expected = count * k / len(ordered)
    limit = float(ordered[k]) * max(expected / FALSE_ALARM, 1.0) ** slope
    return RATIO * min(max(limit, float(ordered[0])), MOST * float(ordered[0]))


def poisson_tail(count: int, mean: float) -> float:
    """P(X >= count) for a Poisson variable."""
    if count == 0:
        return 1.0
    terms = np.arange(count)
    logs = terms * np.log(mean) - mean - np.array([np.sum(np.log(np.arange(1, t + 1))) for t in terms])
    return float(max(1.0 - np.exp(logs).sum(), 0.0))


def _scale(columns: np.ndarray, floor: float) -> np.ndarray:
    """What the noise is at each token: its root mean square there, or the floor, if that is more."""
    return np.maximum(np.sqrt(np.mean(columns**2, 0)), floor)
