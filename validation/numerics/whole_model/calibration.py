"""Tolerances from noise: how one path's errors are held to those of equal runs of the stock path. Pure functions.

Two questions, as gates ask them. Typical error: the ratio of medians, against 1.25 and what chance adds to it over so many
tokens. Largest error: what it may be follows from the noise's own, whose tail is carried on as a power law (Hill's estimator)
to where equal noise would get once in a hundred rungs.

Tokens differ in how hard they are, so an error is first divided by what is usual at that very token: a norm over many
elements by the same norm of the noise; a single number (a change of log-prob) by a norm that it follows from, because
runs of the stock path round at the same places, and where they happen to be right together an honest path that rounds
elsewhere would look wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RATIO = 1.25
MOST, NORMS = 4.0, 2.0
"""Times the largest error seen of equal runs that one may be, whatever their tail says; of norms over many elements the latter"""
LEAST = 3.0
"""Below three times the noise at its token an error says nothing: runs of the stock path round at the same places, and are
closer to each other than to an honest path that rounds elsewhere, which was seen to reach 2.4 times on one of 1600 tokens"""
FALSE_ALARM = 0.01 / 50
"""How often equal noise may exceed the limit of a maximum: once in a hundred rungs of some fifty checks"""
DEVIATIONS = 3.5
"""The same of a median, in standard errors of a normal one"""
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


@dataclass(frozen=True)
class Quotients:
    """Errors over what is usual at their tokens, of runs that went to the oracle's experts there."""

    own: np.ndarray
    """[rows]: the candidate's"""
    rows: np.ndarray
    """[rows]: their tokens"""
    others: tuple[np.ndarray, ...]
    """Of each equal run: over what is usual of the other ones"""
    tokens: tuple[np.ndarray, ...]
    """Of each: its tokens"""

    def of(self, mask: np.ndarray) -> "Quotients":
        """Those of the tokens that `mask` [tokens] names."""
        kept = [mask[tokens] for tokens in self.tokens]
        return Quotients(
            self.own[mask[self.rows]], self.rows[mask[self.rows]],
            tuple(other[mask_] for other, mask_ in zip(self.others, kept, strict=True)),
            tuple(tokens[mask_] for tokens, mask_ in zip(self.tokens, kept, strict=True)),
        )  # fmt: skip


@dataclass(frozen=True)
class Median:
    """The median quotient, held to that of equal runs."""

    ratio: float
    limit: float
    """1.25, times what chance may make of a median of so many"""

    @property
    def exceeded(self) -> bool:
        """Whether that is more than equal runs do."""
        return not self.ratio <= self.limit


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


def quotients(
    candidate: np.ndarray, noise: Mapping[str, np.ndarray], on: Mapping[str, np.ndarray] | None = None,
    scale: np.ndarray | None = None, *, own: np.ndarray | None = None,
) -> Quotients:  # fmt: skip
    """Of columns [tokens] of errors, two of noise at least. `on` [tokens] for each column of noise and `own` for the candidate: where
    they went to the oracle's experts; everywhere if not given. A token counts where at least two other runs did so too.
    `scale` [tokens]: what is usual; by default the other runs' root mean square there."""
    columns = np.stack(list(noise.values()))
    there = np.ones(columns.shape, bool) if on is None else np.stack([on[name] for name in noise])
    here = np.ones(len(candidate), bool) if own is None else own
    usual = columns[there] if there.any() else columns
    floor = max(_EASY * float(np.median(usual)), np.finfo(np.float32).tiny) if usual.size else 1.0

    def over(column: np.ndarray, mask: np.ndarray, arms: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        arms, least = list(arms), min(2, len(arms))
        rows = np.flatnonzero(mask & (there[arms].sum(0) >= least))
        if scale is not None:
            return column[rows] / scale[rows], rows
        some = there[arms][:, rows]
        return column[rows] / np.maximum(np.sqrt((columns[arms][:, rows] ** 2 * some).sum(0) / some.sum(0)), floor), rows

    every = range(len(columns))
    mine, rows = over(candidate, here, every)
    others = [over(columns[i], there[i], [n for n in every if n != i]) for i in every]
    return Quotients(mine, rows, tuple(found for found, _ in others), tuple(at for _, at in others))


def median(of: Quotients) -> Median:
    """The ratio of the candidate's median quotient to the other runs'."""
    others, tiny = np.concatenate(of.others), np.finfo(np.float32).tiny
    if not len(of.own) or not len(others):
        return Median(1.0, np.inf)
    middle = float(np.median(of.own))
    ratio = middle / max(float(np.median(others)), tiny) if middle > tiny else 0.0
    # Of a few tokens the spread is theirs by chance: never less than the other runs'.
    spread = max(_spread(of.own), _spread(others))
    error = np.sqrt(np.pi / 2) * spread / np.sqrt(len(of.own))
    return Median(ratio, RATIO * float(np.exp(min(DEVIATIONS * error, 20.0))))


def _spread(values: np.ndarray) -> float:
    """The standard deviation of logarithms that their median absolute deviation stands for."""
    logs = np.log(np.maximum(values, 1e-12))
    return 1.4826 * float(np.median(np.abs(logs - np.median(logs))))


def extreme(of: Quotients, *, least: float = LEAST, most: float = NORMS) -> Largest:
    """The largest quotient. Nothing is said below `least`, nor let pass beyond `most` times what equal runs have, and 1.25."""
    if not len(of.own):
        return Largest(0.0, RATIO, 0, None)
    limit = max(tail_limit(np.concatenate(of.others), len(of.own), most), least)
    beyond = np.flatnonzero(~(of.own <= limit))
    row = int(np.argmax(np.where(np.isnan(of.own), np.inf, of.own)))
    return Largest(float(of.own[row]), limit, int(of.rows[row]), int(of.rows[beyond[0]]) if len(beyond) else None)


def tail(
    candidate: np.ndarray, noise: Mapping[str, np.ndarray], on: Mapping[str, np.ndarray] | None = None,
    own: np.ndarray | None = None, seed: int = 0,
) -> Typical:  # fmt: skip
    """p99.9 of all values of columns [tokens, values], held to that of the equal run where it is the largest; `on` and `own` as in
    `quotients`. Tokens are resampled, not values: those of one token hang together."""
    here = np.ones(len(candidate), bool) if own is None else own
    pairs = [(column, here if on is None else on[name]) for name, column in noise.items()]
    every = np.arange(len(candidate))[None]
    mine, other = float(_p999(candidate, here, every)[0]), max(float(_p999(*pair, every)[0]) for pair in pairs)
    ratio = mine / max(other, np.finfo(np.float32).tiny)
    if ratio <= RATIO:
        return Typical(mine, other, ratio, min(ratio, 1.0))
    picks = _picks(len(candidate), seed)
    ratios = _p999(candidate, here, picks) / np.max([_p999(*pair, picks) for pair in pairs], 0)
    return Typical(mine, other, ratio, float(np.quantile(ratios, _LOWER)))


def _picks(count: int, seed: int) -> np.ndarray:
    """[resamples, tokens]: which of `count` tokens stand in each."""
    random = np.random.default_rng(seed)
    block = min(BLOCK, max(count // 4, 1))
    starts = random.integers(0, count - block + 1, (RESAMPLES, -(-count // block)))
    return (starts[..., None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]


def _p999(values: np.ndarray, on: np.ndarray, picks: np.ndarray) -> np.ndarray:
    """[resamples]: p99.9, by nearest rank, of the values [tokens, n] of those tokens [resamples, tokens] that are `on` [tokens]."""
    rows = np.flatnonzero(on)
    flat = values[rows].ravel()
    # What any resample has among its largest thousandth lies among the largest of all: 50 times as many are looked at.
    order = np.argsort(-flat, kind="stable")[: max(len(flat) // 20, 1)]
    ordered, token = flat[order], rows[order // values.shape[1]]
    found = []
    for pick in picks:
        drawn = np.bincount(pick, minlength=len(values))
        count = int(drawn[rows].sum()) * values.shape[1]
        rank = count - int(np.ceil(0.999 * count)) + 1
        found.append(ordered[min(int(np.searchsorted(drawn[token].cumsum(), rank)), len(ordered) - 1)])
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


def tail_limit(noise: np.ndarray, count: int, most: float = MOST) -> float:
    """What the largest of `count` values exceeds with probability `FALSE_ALARM`, where single ones are like `noise`.

    `noise` [paths, n]. P(X > x) = (k / n) (x / x_k)^(-alpha) above the k-th largest x_k, with 1 / alpha the mean of
    log(x_i / x_k) over the k largest (Hill 1975), to which its standard error is added. Never below the largest value
    seen, and never above `most` times it: a few values say little about a tail. The tolerance of 1.25 comes on top, as
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
    return RATIO * min(max(limit, float(ordered[0])), most * float(ordered[0]))


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
