"""Planted faults fail for the stated reason, by the stated amount; their honest twins pass."""

import math

import pytest
import torch
from fasttrack_validation.contracts.base import Comparison
from fasttrack_validation.numerics.calibrate import MIN_POOLED, Decision, decide, measure

CALIBRATED = Comparison(tensor="y", kind="calibrated", ratio=1.25, floor=1e-7, max_ratio=4.0, row_axes=1)
EXACT = Comparison(tensor="y", kind="exact")
ROWS, WIDTH = 12, 10_000
OWNERS = (*range(10), None, None)


@pytest.fixture
def trial():
    random = torch.Generator().manual_seed(1)
    expected = torch.randn(ROWS, WIDTH, generator=random, dtype=torch.float64)
    expected[10:] = expected[10:].float().double()

    def noisy(seed, scale=1e-5):
        noise = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        noise[10:] = 0
        return (expected + scale * noise).float()

    return expected, noisy


def rule(expected, plain, got, comparison=CALIBRATED, owners=OWNERS):
    return decide(comparison, [measure(comparison, expected, plain, got, owners)])


def test_equal_noise_passes(trial):
    expected, noisy = trial
    for seed in range(2, 8):
        ruling = rule(expected, noisy(1), noisy(seed))
        assert ruling.decision is Decision.PASS and ruling.reason is None
        assert ruling.candidate.values == 10 * WIDTH


def test_twice_the_noise_fails_at_the_median_by_how_much(trial):
    expected, noisy = trial
    ruling = rule(expected, noisy(1), noisy(2, 2e-5))
    assert (ruling.decision, ruling.reason) == (Decision.FAIL, "numerics.median")
    assert 1.9 < ruling.candidate.median / ruling.plain.median < 2.1
    assert "1.6 times the limit" in ruling.message or "1.59 times the limit" in ruling.message


def test_a_fault_in_three_values_of_a_thousand_fails_at_p999(trial):
    expected, noisy = trial
    got = noisy(2)
    got[:10, ::333] += 8e-5
    ruling = rule(expected, noisy(1), got)
    assert (ruling.decision, ruling.reason) == (Decision.FAIL, "numerics.p999")


def test_a_fault_in_one_value_fails_at_the_maximum_and_is_located(trial):
    expected, noisy = trial
    got = noisy(2)
    got[7, 1234] += 0.5
    ruling = rule(expected, noisy(1), got)
    assert (ruling.decision, ruling.reason) == (Decision.FAIL, "numerics.maximum")
    assert ruling.worst[0].index == (7, 1234) and ruling.worst[0].row == 7
    assert ruling.worst[0].got == format(float(got[7, 1234]), ".9g")
    assert "[7, 1234] (row 7)" in ruling.message


def test_small_pools_leave_p999_to_the_maximum(trial):
    expected, noisy = trial
    few = slice(0, MIN_POOLED // 10 - 1)
    got = noisy(2)
    got[:10, ::333] += 8e-5
    assert rule(expected[:, few], noisy(1)[:, few], got[:, few]).decision is Decision.PASS
    measured = [measure(CALIBRATED, expected[:, few], noisy(1)[:, few], got[:, few], OWNERS) for _ in range(2)]
    assert decide(CALIBRATED, measured).reason == "numerics.p999"


@pytest.mark.parametrize(("error", "decision"), [(0.9e-3, Decision.PASS), (1.1e-3, Decision.FAIL)])
def test_the_floor_stands_in_for_a_plain_path_without_error(trial, error, decision):
    expected, _ = trial
    got = expected.clone()
    got[:10] += error * expected[:10].square().mean(1, keepdim=True).sqrt()
    floored = CALIBRATED.model_copy(update={"floor": 1e-3})
    assert rule(expected, expected, got, floored).decision is decision
    assert rule(expected, expected, got).reason == "numerics.median"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_value_that_is_not_finite(trial, value):
    expected, noisy = trial
    got = noisy(2)
    got[3, 3] = value
    ruling = rule(expected, noisy(1), got)
    assert (ruling.decision, ruling.reason) == (Decision.FAIL, "numerics.not_finite")
    assert ruling.worst[0].index == (3, 3)
    ruling.canonical_json()


def test_a_plain_path_that_is_not_finite_proves_nothing(trial):
    expected, noisy = trial
    plain = noisy(1)
    plain[3, 3] = math.nan
    ruling = rule(expected, plain, noisy(2))
    assert (ruling.decision, ruling.reason) == (Decision.INVALID, "numerics.reference_not_finite")


def test_what_nobody_owns_may_not_change_by_a_bit(trial):
    expected, noisy = trial
    got = noisy(2)
    got[11, 5] = torch.nextafter(got[11, 5], torch.tensor(math.inf))
    ruling = rule(expected, noisy(1), got)
    assert (ruling.decision, ruling.reason) == (Decision.FAIL, "numerics.unowned_changed")
    assert ruling.worst[0].index == (11, 5) and ruling.worst[0].row is None
    # The same change in an owned row is far below the tolerance.
    got = noisy(2)
    got[9, 5] = torch.nextafter(got[9, 5], torch.tensor(math.inf))
    assert rule(expected, noisy(1), got).decision is Decision.PASS


def test_nan_that_nobody_owns_stays_nan(trial):
    expected, noisy = trial
    expected[11] = math.nan
    plain, got = noisy(1), noisy(2)
    assert rule(expected, plain, got).decision is Decision.PASS
    got[11, 0] = 0
    assert rule(expected, plain, got).reason == "numerics.unowned_changed"


def test_exact():
    expected = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    owners = (0, 1, None, 2)
    assert rule(expected, expected, expected.clone(), EXACT, owners).message == "y: equal bit for bit"
    got = expected.clone()
    got[1, 2] = -got[1, 2]
    ruling = rule(expected, expected, got, EXACT, owners)
    assert (ruling.reason, ruling.worst[0].index) == ("numerics.not_exact", (1, 2))
    assert "1 elements" in ruling.message
    got = expected.clone()
    got[2] = 0
    assert rule(expected, expected, got, EXACT, owners).reason == "numerics.unowned_changed"


def test_no_live_row_leaves_only_the_exact_part():
    zero = torch.zeros(2, 4, dtype=torch.float64)
    assert rule(zero, zero.float(), zero.float(), owners=(None, None)).decision is Decision.PASS
    assert rule(zero, zero.float(), -zero.float(), owners=(None, None)).reason == "numerics.unowned_changed"


def test_shapes_that_do_not_fit_together():
    zero = torch.zeros(2, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="do not fit together"):
        measure(CALIBRATED, zero, zero.float(), zero.float(), (0,))
