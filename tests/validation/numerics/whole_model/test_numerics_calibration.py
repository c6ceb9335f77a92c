"""Tolerances that follow from noise: against quantiles worked out by hand, and on noise that is equal."""

import math

import numpy as np
import pytest
from fasttrack_validation.numerics.whole_model import calibration
from fasttrack_validation.numerics.whole_model.calibration import FALSE_ALARM, MOST, RATIO, largest, tail, tail_limit, typical
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


def errors(seed: int, tokens: int = 200, values: int = 512, others: int = 0) -> np.ndarray:
    """[tokens, values] of one path; `others` of its tokens went to other experts, where all errors are fifty times as large."""
    random = np.random.default_rng(seed)
    found = np.abs(random.standard_normal((tokens, values)))
    found[random.permutation(tokens)[:others]] *= 50
    return found


def test_a_tail_is_the_value_that_one_in_a_thousand_exceeds():
    found = tail(errors(0), {"a": errors(1), "b": 0.5 * errors(2)})
    # P(|N| > 3.29) = 0.001.
    assert found.candidate == pytest.approx(3.29, rel=0.03) and found.noise == pytest.approx(3.29, rel=0.03)
    ordered = np.sort(errors(0), axis=None)
    assert found.candidate == ordered[math.ceil(0.999 * ordered.size) - 1]


@pytest.mark.parametrize("seed", range(4))
def test_one_token_of_other_experts_is_no_tail(seed):
    """Its 512 values are five times what a thousandth of 200 tokens holds."""
    noise = {name: errors(10 * seed + number) for number, name in enumerate("abcd")}
    found = tail(errors(10 * seed + 9, others=1), noise)
    assert found.ratio > 5 and not found.exceeded and found.lower <= 1


def test_a_tail_that_is_larger_at_every_token_is():
    noise = {name: errors(number) for number, name in enumerate("abcd")}
    own = errors(9)
    own[:, ::300] *= 9  # two values in 512 of each token: no median shows it
    found = tail(own, noise)
    assert found.exceeded and typical(np.median(own, 1), {k: np.median(v, 1) for k, v in noise.items()}).exceeded is False


def test_many_tokens_of_other_experts_are_a_tail():
    noise = {name: errors(number, others=1) for number, name in enumerate("abcd")}
    assert tail(errors(9, others=30), noise).exceeded in (True, None)
    assert not tail(errors(9, others=1), noise).exceeded
