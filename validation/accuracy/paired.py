"""Two arms over the same items: per-item means over repeats, their paired difference and its standard error.

Items are the clusters: n is the number of items, never items times repeats (Miller 2024, "Adding Error Bars to Evals").
Scores lie in [0, 1].
"""

from collections.abc import Iterable, Mapping, Sequence
from math import fsum, isfinite, sqrt

from ..records import Frozen

Scores = Mapping[str, Sequence[float]]
"""The scores of every item, one for each repeat, by item id."""


class Paired(Frozen):
    """Candidate against baseline. All figures are fractions of a point of score in [0, 1].

    `se` and what follows from it is None where one cluster leaves nothing to estimate it from. The variances within
    items are None unless every item has at least two repeats in both arms.
    """

    items: int
    clusters: int
    repeats: int
    """The fewest repeats that any item has in either arm."""
    generations: int
    """Scores in the arm that has fewer of them."""
    baseline: float
    candidate: float
    difference: float
    """Candidate less baseline: a loss is negative."""
    se: float | None
    """Standard error of the difference: paired by item, clustered where clusters were given."""
    baseline_se: float | None
    """Between the baseline's items, what lm-eval prints beside a mean of per-item means."""
    within: float | None
    """Mean over items of the variance of one repeat, both arms added: falls with repeats."""
    between: float | None
    """Variance between items of the true difference: no number of repeats lowers it."""

    @property
    def df(self) -> int:
        """Degrees of freedom of `se`."""
        return self.clusters - 1

    @property
    def in_standard_errors(self) -> float | None:
        """d / SE; None where the standard error is 0 or unknown."""
        return self.difference / self.se if self.se else None

    def se_at(self, repeats: int) -> float | None:
        """The standard error to expect with `repeats` of every item in both arms; None where it cannot be known.

        With one repeat an item the parts of the variance cannot be told apart: then all of it counts as falling with
        repeats, which is the hopeful end.
        """
        if self.se is None:
            return None
        if self.within is None or self.between is None:
            return self.se * sqrt(self.repeats / repeats)
        now = self.between + self.within / self.repeats
        return self.se * sqrt((self.between + self.within / repeats) / now) if now else self.se


def item_means(scores: Scores) -> dict[str, float]:
    """The mean over repeats of every item. ValueError names the item without scores, or with one outside [0, 1]."""
    if not scores:
        raise ValueError("no items")
    for item, values in scores.items():
        if not len(values):
            raise ValueError(f"{item}: no score")
        for value in values:
            if not (isfinite(value) and 0 <= value <= 1):
                raise ValueError(f"{item}: {value} is not a score in [0, 1]")
    return {item: sum(values) / len(values) for item, values in scores.items()}


def clustered_se(values: Sequence[float], clusters: Sequence[str]) -> float | None:
    """Standard error of the mean of `values` whose errors are shared within a cluster; None for a single cluster.

    sqrt(G / (G - 1) * sum over clusters of (sum in it of (x - mean))^2) / n, for G clusters and n values: the sandwich
    estimator with its correction for few clusters. With one value a cluster it is the usual s / sqrt(n).
    """
    mean = sum(values) / len(values)
    sums: dict[str, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    if len(sums) < 2:
        return None
    return sqrt(len(sums) / (len(sums) - 1) * sum(total**2 for total in sums.values())) / len(values)


def compare(baseline: Scores, candidate: Scores, clusters: Mapping[str, str] | None = None) -> Paired:
    """The two arms, paired by item; `clusters` names the cluster of every item, by default the item itself.

    Raises ValueError where the arms do not hold the same items, or as `item_means` does.
    """
    if baseline.keys() != candidate.keys():
        odd = sorted(baseline.keys() ^ candidate.keys())
        raise ValueError(f"the arms hold different items: {odd[0]} is in one of them only")
    before, after = item_means(baseline), item_means(candidate)
    items = sorted(before)
    names = [clusters[item] if clusters else item for item in items]
    differences = [after[item] - before[item] for item in items]
    counts = [len(arm[item]) for arm in (baseline, candidate) for item in items]
    within = between = None
    if len(items) > 1 and min(counts) > 1:
        variances = [(_variance(baseline[item]), _variance(candidate[item])) for item in items]
        within = sum(a + b for a, b in variances) / len(items)
        noise = sum(
            a / len(baseline[item]) + b / len(candidate[item]) for item, (a, b) in zip(items, variances, strict=True)
        )
        between = max(0.0, _variance(differences) - noise / len(items))
    return Paired(
        items=len(items), clusters=len(set(names)), repeats=min(counts),
        generations=min(sum(counts[: len(items)]), sum(counts[len(items) :])),
        baseline=_mean(before[item] for item in items), candidate=_mean(after[item] for item in items),
        difference=_mean(differences),
        se=clustered_se(differences, names), baseline_se=clustered_se([before[item] for item in items], items),
        within=within, between=between,
    )  # fmt: skip


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)
