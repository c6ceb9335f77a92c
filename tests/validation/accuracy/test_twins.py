"""A/A runs: what they measure, and what is no A/A run."""

import dataclasses

import pytest
import recorded_answers as recorded

from fasttrack_validation.accuracy.calibration import Calibration
from fasttrack_validation.accuracy.twins import as_stated, judge_twins

EXAM = recorded.exam("sample_integers")
PLAN = recorded.plan(EXAM, 16)


def stock(run="first"):
    return recorded.sitting(EXAM, PLAN, "baseline", repeats=16, wrong_in_100=20, run=run)


def test_the_noise_is_that_of_the_planted_rate():
    """Right 80 % of the time in both runs: 2 * 0.8 * 0.2 = 0.32 within items, nothing between them."""
    found = judge_twins(EXAM, PLAN, stock(), stock(run="second"), draws=300)
    assert found.findings == ()
    assert found.paired.within == pytest.approx(0.32, abs=0.08) and found.paired.between < 0.02
    assert found.noise.generations == 8 * 16 and len(found.noise.differences) == 8
    assert found.calibration.false_pass_at_margin < 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


def test_what_is_no_aa_run():
    first, second = stock(), stock(run="second")
    specialised = second.arm.model_copy(update={"kernels": {"kda_decode": 69}})
    for reason, other in (
        ("copies", first),
        ("arms", recorded.sitting(EXAM, PLAN, "candidate", repeats=16)),
        ("baseline_specialised", dataclasses.replace(second, arm=specialised)),
        ("items_differ", dataclasses.replace(second, answers=second.answers[1:])),
    ):
        found = judge_twins(EXAM, PLAN, first, other)
        assert reason in {one.reason for one in found.findings}
        assert found.paired is None and found.calibration is None


def test_errors_beyond_what_is_stated_are_seen():
    good = Calibration(draws=1000, passes=0.8, false_fail=0, false_fail_at_margin=0.05, false_pass_at_margin=0.06)
    assert as_stated(good, PLAN.rule)
    assert not as_stated(good.model_copy(update={"false_pass_at_margin": 0.08}), PLAN.rule)
    assert not as_stated(good.model_copy(update={"false_fail": 0.08}), PLAN.rule)
