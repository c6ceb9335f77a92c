"""Per-item means, standard errors, McNemar: by hand, and against a second way to compute them."""

from math import comb, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation.accuracy.distributions import student_cdf, student_quantile
from fasttrack_validation.accuracy.flips import mcnemar
from fasttrack_validation.accuracy.paired import clustered_se, compare, item_means


def arm(rows):
    return {f"i{index:03}": row for index, row in enumerate(rows)}


SCORES = st.floats(0, 1, allow_nan=False).map(lambda value: round(value, 6))


@st.composite
def arms(draw):
    items, repeats = draw(st.integers(2, 8)), draw(st.integers(1, 4))
    rows = st.lists(st.lists(SCORES, min_size=repeats, max_size=repeats), min_size=items, max_size=items)
    return arm(draw(rows)), arm(draw(rows))


@pytest.mark.parametrize(
    ("probability", "df", "value"),
    [(0.975, 1, 12.7062), (0.95, 2, 2.9200), (0.975, 10, 2.2281), (0.95, 29, 1.6991), (0.95, 120, 1.6577)],
)
def test_students_t_is_that_of_the_tables(probability, df, value):
    assert student_quantile(probability, df) == pytest.approx(value, abs=5e-5)
    assert student_quantile(1 - probability, df) == pytest.approx(-value, abs=5e-5)


def test_students_t_for_one_degree_of_freedom_is_cauchys():
    for t in (-3.0, -0.5, 0.0, 0.2, 7.0):
        assert student_cdf(t, 1) == pytest.approx(0.5 + np.arctan(t) / np.pi)


def test_an_exam_of_the_size_of_aime_by_hand():
    """27 of 30 right against 26: two lost, one won. sum d^2 = 3, so s^2 = (3 - 30 / 900) / 29, SE = s / sqrt(30)."""
    baseline = arm([[1.0]] * 27 + [[0.0]] * 3)
    candidate = arm([[0.0]] * 2 + [[1.0]] * 25 + [[1.0]] + [[0.0]] * 2)
    found = compare(baseline, candidate)
    assert found.difference == pytest.approx(-1 / 30)
    assert found.se == pytest.approx(0.058395, abs=1e-6)
    assert found.in_standard_errors == pytest.approx(-0.57083, abs=1e-4)
    # What lm-eval prints beside 90 %: sqrt(0.9 * 0.1 * 30 / 29 / 30).
    assert found.baseline_se == pytest.approx(sqrt(0.09 / 29))
    assert (found.items, found.clusters, found.df, found.generations) == (30, 30, 29, 30)


def test_an_exam_of_the_size_of_gpqa_by_hand():
    """198 items, 6 repeats; half won one repeat of six, half lost one: s^2 = 198 / 36 / 197, SE = 1 / (6 sqrt(197))."""
    half = [1.0] * 3 + [0.0] * 3
    more, less = [1.0] * 4 + [0.0] * 2, [1.0] * 2 + [0.0] * 4
    found = compare(arm([half] * 198), arm([more] * 99 + [less] * 99))
    assert found.difference == pytest.approx(0, abs=1e-12)
    assert found.se == pytest.approx(1 / 6 / sqrt(197))
    assert found.generations == 198 * 6 and found.items == 198
    # One repeat of the baseline varies by 6/5 * 1/4, of the candidate by 6/5 * 2/9.
    assert found.within == pytest.approx(6 / 5 * (1 / 4 + 2 / 9))
    assert found.between == 0  # 1/36 is less than the noise, 0.5667 / 6


def test_repeats_are_no_items():
    """The trap: k copies of one answer must not make the error smaller."""
    once = compare(arm([[1.0], [0.0], [1.0]]), arm([[0.0], [0.0], [1.0]]))
    copies = compare(arm([[1.0] * 9, [0.0] * 9, [1.0] * 9]), arm([[0.0] * 9, [0.0] * 9, [1.0] * 9]))
    assert copies.se == pytest.approx(once.se)
    # No variance within items: further repeats are expected to bring nothing.
    assert copies.within == 0 and copies.se_at(1000) == pytest.approx(copies.se)
    # From one repeat the parts cannot be told apart.
    assert once.within is None and once.se_at(100) == pytest.approx(once.se / 10)


@given(arms(), st.data())
def test_the_clustered_error_agrees_with_the_quadratic_form(both, data):
    """e' M e / n^2 * G / (G - 1), M the matrix of pairs that share a cluster, written out with numpy."""
    baseline, candidate = both
    names = [data.draw(st.sampled_from("abc")) for _ in baseline]
    d = np.array([np.mean(candidate[item]) - np.mean(baseline[item]) for item in baseline])
    found = compare(baseline, candidate, dict(zip(baseline, names, strict=True)))
    count = len(set(names))
    if count == 1:
        assert found.se is None
        return
    shared = np.equal.outer(np.array(names), np.array(names))
    residual = d - d.mean()
    expected = np.sqrt(max(0.0, residual @ shared @ residual) / len(d) ** 2 * count / (count - 1))
    assert found.se == pytest.approx(expected, abs=1e-9)


@given(arms())
def test_the_paired_error_is_the_usual_one_and_exchanging_the_arms_negates(both):
    found, back = compare(*both), compare(*reversed(both))
    d = np.array([np.mean(both[1][item]) - np.mean(both[0][item]) for item in both[0]])
    assert found.se == pytest.approx(d.std(ddof=1) / np.sqrt(len(d)), abs=1e-9)
    assert back.difference == pytest.approx(-found.difference, abs=1e-12)
    assert back.se == pytest.approx(found.se, abs=1e-12)


@given(arms())
def test_the_order_of_items_does_not_matter(both):
    turned = tuple(dict(reversed(one.items())) for one in both)
    assert compare(*turned) == compare(*both)


@given(arms())
def test_more_repeats_never_widen_the_expected_error(both):
    found = compare(*both)
    errors = [found.se_at(repeats) for repeats in (found.repeats, 2 * found.repeats, 100)]
    assert errors[0] == pytest.approx(found.se) and errors == sorted(errors, reverse=True)


def test_the_parts_of_the_variance_are_recovered():
    """Simulated with known parts: within 2 * p (1 - p), between 0.02."""
    random = np.random.default_rng(7)
    items, repeats = 4000, 5
    shift = random.choice([-0.1, 0.1], items)
    a = random.random((items, repeats)) < 0.5
    b = random.random((items, repeats)) < (0.5 + shift)[:, None]
    found = compare(arm(a.astype(float).tolist()), arm(b.astype(float).tolist()))
    assert found.within == pytest.approx(0.25 + 0.24, abs=0.01)
    assert found.between == pytest.approx(0.01, abs=0.006)


def test_the_clustered_error_of_pairs_that_move_together():
    """Four values in two clusters: as if each cluster were one value, sqrt(2 / 1 * (4 + 4)) / 4 = 1."""
    assert clustered_se([1.0, 1.0, -1.0, -1.0], ["a", "a", "b", "b"]) == pytest.approx(1.0)
    assert clustered_se([1.0, 1.0, -1.0, -1.0], list("abcd")) == pytest.approx(sqrt(4 / 3) / 2)


def test_what_no_mean_can_be_taken_of_is_named():
    good = arm([[1.0], [0.5]])
    for bad, word in (
        ({"i000": [1.0]}, "different items"),
        ({**good, "i001": []}, "i001: no score"),
        ({**good, "i001": [float("nan")]}, "nan"),
        ({**good, "i001": [1.5]}, "1.5"),
        ({**good, "i001": [-0.1]}, "-0.1"),
    ):
        with pytest.raises(ValueError, match=word):
            compare(good, bad)
    with pytest.raises(ValueError, match="no items"):
        item_means({})


def test_unequal_repeats_weigh_items_equally():
    found = compare(arm([[1.0] * 4, [0.0]]), arm([[1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert (found.baseline, found.candidate, found.repeats, found.generations) == (0.5, 0.25, 1, 5)


def test_mcnemar_by_hand():
    """Nine flips, eight of them losses: (9 + 1) / 2^9 one-sided."""
    baseline = {f"i{n}": float(n < 8) for n in range(30)}
    candidate = {f"i{n}": float(n == 8) for n in range(30)}
    found = mcnemar(baseline, candidate)
    assert (found.lost, found.won, found.rate) == (8, 1, 0.3)
    assert found.p_loss == pytest.approx(10 / 512) and found.p_two_sided == pytest.approx(20 / 512)
    assert mcnemar(baseline, baseline).p_two_sided == 1 == mcnemar(baseline, baseline).p_loss
    for bad in ({}, {"i0": 1.0}, {item: 0.5 for item in baseline}):
        with pytest.raises(ValueError):
            mcnemar(baseline, bad)


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_counts_every_outcome_of_even_flips(lost, won):
    flips = lost + won
    baseline = {f"i{n}": float(n < lost) for n in range(flips + 1)}
    candidate = {f"i{n}": float(lost <= n < flips) for n in range(flips + 1)}
    outcomes = sum(comb(flips, count) for count in range(flips + 1) if count >= lost)
    assert mcnemar(baseline, candidate).p_loss == pytest.approx(outcomes / 2**flips)
