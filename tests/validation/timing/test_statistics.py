"""Intervals and exact tests against hand calculations, published figures and simulation."""

from math import inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation.timing.comparison import Quad, Standing, compare
from fasttrack_validation.timing.statistics import median_bound, median_interval, most_successes, tail_probability

positive = st.floats(0.1, 1e6)
quads = st.lists(st.builds(Quad, a1=positive, b1=positive, b2=positive, a2=positive), min_size=1, max_size=30)


def test_exact_tail_by_hand():
    assert tail_probability(0, 10, 0.5) == 1.0
    assert tail_probability(10, 10, 0.5) == pytest.approx(2**-10)
    assert tail_probability(9, 10, 0.5) == pytest.approx(11 / 1024)


def test_promotions_allowed_in_four_hundred_trials():
    # Against scipy.stats.binom(400, 0.05): sf(26) = 0.0728, sf(27) = 0.0480.
    assert most_successes(400, 0.05) == 27
    assert tail_probability(28, 400, 0.05) == pytest.approx(0.0480, abs=5e-5)


@pytest.mark.parametrize(
    ("count", "alpha", "rank"),
    # Sign-test ranks from the classical table: n = 8 at 5 % one-sided is the 2nd smallest (9/256), n = 12 the 3rd
    # (79/4096 = 1.9 %), n = 5 the smallest (1/32), n = 4 none (1/16).
    [(4, 0.05, None), (5, 0.05, 1), (8, 0.05, 2), (12, 0.05, 3), (12, 0.01, 2)],
)
def test_rank_of_the_bound(count, alpha, rank):
    samples = [float(i) for i in range(1, count + 1)]
    assert median_bound(samples[::-1], alpha) == (-inf if rank is None else float(rank))


def test_bound_holds_where_the_bootstrap_does_not():
    """One-sided error at 12 samples of a heavy-tailed law, by simulation: the reason for two kinds of interval."""
    rng = np.random.default_rng(5)
    exact = boot = 0
    for _ in range(1500):
        samples = rng.standard_t(2, 12)
        exact += median_bound(samples, 0.05) > 0
        boot += float(np.quantile(np.median(rng.choice(samples, (400, 12)), axis=1), 0.05)) > 0
    assert exact <= most_successes(1500, 0.05)
    assert boot > exact


def test_interval_of_a_known_distribution():
    samples = np.random.default_rng(1).normal(10.0, 1.0, 4001)
    found = median_interval(samples)
    # The standard error of a normal median is 1.2533 sigma / sqrt(n) = 0.0198.
    assert found.low < found.median < found.high
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 0.0198, rel=0.15)
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_linear_drift_cancels_in_a_quad():
    # A takes 10, B takes 11, and the card slows by 7 % a step.
    drift = [1.0, 1.07, 1.07**2, 1.07**3]
    quad = Quad(a1=10 * drift[0], b1=11 * drift[1], b2=11 * drift[2], a2=10 * drift[3])
    assert quad.advantage == pytest.approx(log(1.1))


@given(quads)
def test_swapping_the_contestants_flips_the_sign_and_nothing_else(samples):
    one = compare(samples)
    other = compare([quad.swapped() for quad in samples])
    mirrored = {
        Standing.FASTER: Standing.SLOWER, Standing.SLOWER: Standing.FASTER,
        Standing.EQUAL: Standing.EQUAL, Standing.UNCLEAR: Standing.UNCLEAR,
    }  # fmt: skip
    assert other.standing is mirrored[one.standing]
    assert other.ratio == pytest.approx(1 / one.ratio)
    if one.at_most is not None:
        assert other.at_least == pytest.approx(1 / one.at_most)


@given(quads, st.floats(0.01, 100))
def test_units_do_not_matter(samples, unit):
    scaled = [Quad(**{k: v * unit for k, v in q.model_dump().items()}) for q in samples]
    assert compare(scaled).ratio == pytest.approx(compare(samples).ratio)


@pytest.mark.parametrize(
    ("ratio", "standing"),
    [(1.10, Standing.FASTER), (0.90, Standing.SLOWER), (1.0, Standing.EQUAL), (1.01, Standing.UNCLEAR)],
)
def test_standing(ratio, standing):
    rng = np.random.default_rng(3)
    noise = lambda: float(np.exp(rng.normal(0, 0.004)))  # noqa: E731
    samples = [
        Quad(a1=10 * noise(), b1=10 * ratio * noise(), b2=10 * ratio * noise(), a2=10 * noise()) for _ in range(16)
    ]
    assert compare(samples).standing is standing


def test_few_quads_decide_nothing():
    few = [Quad(a1=1.0, b1=2.0, b2=2.0, a2=1.0)] * 4
    assert compare(few).standing is Standing.UNCLEAR
    assert compare([*few, few[0]]).standing is Standing.FASTER


def test_more_comparisons_need_more_evidence():
    six = [Quad(a1=1.0, b1=2.0, b2=2.0, a2=1.0)] * 6
    assert compare(six).standing is Standing.FASTER  # 1/64
    assert compare(six, tests=4).standing is Standing.UNCLEAR  # needs 1/80
