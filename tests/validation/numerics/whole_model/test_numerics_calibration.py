"""Tolerances that follow from noise: against quantiles worked out by hand, and on noise that is equal."""

import math

import numpy as np
import pytest
from fasttrack_validation.numerics.whole_model import calibration
from fasttrack_validation.numerics.whole_model.calibration import FALSE_ALARM, MOST, RATIO, largest, tail_limit, typical
from hypothesis import given, settings
from hypothesis import strategies as st


def pareto(alpha: float, shape, seed: int) -> np.ndarray:
    return (1 - np.random.default_rng(seed).random(shape)) ** (-1 / alpha)


def test_the_tail_of_a_pareto_variable_is_carried_on_to_its_own_quantile(monkeypatch):
    """P(max of n > x) = n x^-alpha = FALSE_ALARM, so x = (n / FALSE_ALARM)^(1 / alpha)."""
    monkeypatch.setattr(calibration, "MOST", math.inf)
    alpha, count = 4.0, 500
    right = (count / FALSE_ALARM) ** (1 / alpha)
    found = tail_limit(pareto(alpha, (4, 20_000), 1), count) / RATIO
    assert right < found < 1.4 * right


def test_few_values_say_little_about_a_tail():
    noise = pareto(0.5, (4, 10), 2)
    assert tail_limit(noise, 10) <= RATIO * MOST * noise.max()
    assert tail_limit(noise, 10) >= RATIO * noise.max()


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_equal_noise_passes_and_a_single_far_token_is_named(seed):
    random = np.random.default_rng(seed)
    hard = random.lognormal(0, 1.5, 200)
    columns = [hard * np.sqrt(np.mean(random.normal(size=(200, 64)) ** 2, -1)) for _ in range(5)]
    noise = dict(zip("abcd", columns, strict=False))
    assert not largest(columns[4], noise).exceeded
    spoiled = columns[4].copy()
    # An easy token, whose error is still below that of many others.
    row = int(np.argsort(hard)[20])
    spoiled[row] *= 8
    assert spoiled[row] < np.max(columns[4])
    found = largest(spoiled, noise)
    assert found.exceeded and found.row == row == found.first


def test_a_value_that_is_not_finite_is_the_largest():
    noise = {name: np.ones(30) for name in "ab"}
    for odd in (np.inf, np.nan):
        column = np.ones(30)
        column[7] = odd
        found = largest(column, noise)
        assert found.exceeded and found.row == found.first == 7


@pytest.mark.parametrize(("factor", "exceeded"), [(1.0, False), (1.2, False), (2.0, True)])
def test_the_typical_error_is_held_to_one_and_a_quarter(factor, exceeded):
    random = np.random.default_rng(3)
    noise = {name: random.lognormal(0, 0.3, 400) for name in "abcd"}
    assert typical(factor * random.lognormal(0, 0.3, 400), noise).exceeded is exceeded


def test_a_few_tokens_do_not_decide_that_a_path_is_worse():
    random = np.random.default_rng(5)
    noise = {name: random.lognormal(0, 1.5, 6) for name in "abcd"}
    own = 1.5 * np.median(np.stack(list(noise.values())), 0)
    found = typical(own, noise)
    assert found.ratio > RATIO and found.exceeded is None


def test_no_error_at_all_is_no_excess():
    assert typical(np.zeros(20), {"a": np.zeros(20), "b": np.zeros(20)}).exceeded is False


@pytest.mark.parametrize(("count", "mean", "right"), [(0, 2.0, 1.0), (1, 2.0, 1 - math.exp(-2)), (3, 1.0, 0.0803014)])
def test_poisson_tails(count, mean, right):
    assert calibration.poisson_tail(count, mean) == pytest.approx(right, abs=1e-6)
