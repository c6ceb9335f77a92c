"""Quantiles and tails that decisions on exams rest on. Pure Python; sums of some thousand terms at most."""

from functools import lru_cache
from math import atan, comb, cos, pi, sin, sqrt
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_quantile(probability: float) -> float:
    """z with P(Z <= z) = `probability`, for a standard normal Z."""
    return _NORMAL.inv_cdf(probability)


def normal_cdf(z: float) -> float:
    """P(Z <= `z`), for a standard normal Z."""
    return _NORMAL.cdf(z)


def student_cdf(t: float, df: int) -> float:
    """P(T <= `t`) for Student's t with `df` degrees of freedom: the finite sums of Abramowitz and Stegun 26.7.3-4."""
    if df < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {df}")
    theta = atan(abs(t) / sqrt(df))
    cosine, sine = cos(theta), sin(theta)
    odd = df % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for index in range(1 + odd, df, 2):
        total += term
        term *= index / (index + 1) * cosine**2
    inside = (theta + sine * total) * 2 / pi if odd else sine * total
    return 0.5 + inside / 2 if t >= 0 else 0.5 - inside / 2


@lru_cache(maxsize=4096)
def student_quantile(probability: float, df: int) -> float:
    """t with P(T <= t) = `probability`, by bisection of the exact distribution function. 0 < `probability` < 1."""
    if not 0 < probability < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, got {probability}")
    if probability < 0.5:
        return -student_quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < probability:
        low, high = high, high * 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


def binomial_tail(successes: int, trials: int) -> float:
    """P(X >= `successes`) for X ~ Binomial(`trials`, 1/2), exactly."""
    return sum(comb(trials, count) for count in range(successes, trials + 1)) / 2**trials
