"""The rule on recorded A/A answers of the nano model: it errs as often as it states, several exams together included.

Rates come from `calibrate`, and again from a second implementation of rule and bootstrap written here.
"""

import json
from math import hypot, sqrt
from pathlib import Path

import numpy as np
import pytest

from fasttrack_validation.accuracy.calibration import Noise, calibrate
from fasttrack_validation.accuracy.family import Family
from fasttrack_validation.accuracy.paired import compare
from fasttrack_validation.accuracy.rule import Rule
from fasttrack_validation.accuracy.twins import as_stated

RECORDED = json.loads((Path(__file__).parent / "nano_aa.json").read_text())["exams"]
ITEMS, REPEATS, DRAWS, ALPHA = 32, 4, 4000, 0.05
# Student's t with 31 degrees of freedom, one-sided, from a printed table.
T = {0.05: 1.6955, 0.025: 2.0395, 0.05 / 3: 2.2221}


def differences(exam):
    first, second = RECORDED[exam]["first"], RECORDED[exam]["second"]
    assert first.keys() == second.keys() and len(first) == ITEMS
    return np.array([np.mean(second[item]) - np.mean(first[item]) for item in sorted(first)])


NOISE = {
    exam: Noise(differences=tuple(differences(exam)), generations=ITEMS * REPEATS) for exam in RECORDED
}  # fmt: skip


def test_the_recorded_runs_differ_and_show_no_effect():
    for exam, runs in RECORDED.items():
        paired = compare(runs["first"], runs["second"], {item: item for item in runs["first"]})
        assert paired.difference == pytest.approx(differences(exam).mean())
        assert paired.se == pytest.approx(differences(exam).std(ddof=1) / sqrt(ITEMS))
        assert runs["first"] != runs["second"] and abs(paired.difference) < 3 * paired.se
        assert 0.05 < paired.baseline < 0.95


def width(se, level, generations):
    half = (1 - level ** (1 / generations)) / 2
    return half + hypot(T[level] * se, half)


def drawn(exam, random):
    values = differences(exam)
    rows = random.choice(values, (DRAWS, ITEMS)) * random.choice([-1.0, 1.0], (DRAWS, ITEMS))
    return rows.mean(axis=1), rows.std(axis=1, ddof=1) / sqrt(ITEMS)


def close(rate, other):
    """Two estimates of one rate from so many draws each: within four standard errors."""
    spread = sqrt(2 * max(rate * (1 - rate), other * (1 - other), 1 / DRAWS) / DRAWS)
    return abs(rate - other) <= 4 * spread


@pytest.mark.parametrize("exam", RECORDED)
def test_one_exam_errs_as_stated(exam):
    rule = Rule(margin_points=15, looks=(REPEATS,))
    found = calibrate(NOISE, Family(exams=(exam,)), rule, draws=DRAWS)
    assert as_stated(found, rule)
    mean, se = drawn(exam, np.random.default_rng(1))
    bound = np.array([width(one, ALPHA, ITEMS * REPEATS) for one in se])
    assert close(found.passes, float((mean - bound > -0.15).mean()))
    assert close(found.false_fail, float((mean + bound < -0.15).mean()))
    assert close(found.false_pass_at_margin, float((mean - 0.15 - bound > -0.15).mean()))
    assert close(found.false_fail_at_margin, float((mean - 0.15 + bound < -0.15).mean()))
    assert found.false_pass_at_margin > 0 and found.passes > 0.5, "a rule that never decides errs never"


@pytest.mark.parametrize("kind", ["each", "pooled"])
def test_two_exams_together_err_as_stated(kind):
    family = Family(rule=kind, exams=tuple(RECORDED))
    rule = Rule(margin_points=15, looks=(REPEATS,), fail_tests=family.fail_tests)
    found = calibrate(NOISE, family, rule, draws=DRAWS)
    assert as_stated(found, rule)
    assert found.passes > 0.5 and found.false_pass_at_margin > 0


def test_the_joint_rule_against_a_second_implementation():
    """Each: pass where both pass at alpha; fail where one fails at alpha / 2."""
    exams = tuple(RECORDED)
    rule = Rule(margin_points=15, looks=(REPEATS,), fail_tests=2)
    found = calibrate(NOISE, Family(exams=exams), rule, draws=DRAWS)

    def rates(lost):
        random = np.random.default_rng(2)
        passed, failed = np.ones(DRAWS, bool), np.zeros(DRAWS, bool)
        for exam in exams:
            mean, se = drawn(exam, random)
            mean = mean - 0.15 * (exam in lost)
            passed &= mean - [width(one, ALPHA, ITEMS * REPEATS) for one in se] > -0.15
            failed |= mean + [width(one, ALPHA / 2, ITEMS * REPEATS) for one in se] < -0.15
        return float((passed & ~failed).mean()), float(failed.mean())

    passes, false_fail = rates(())
    assert close(found.passes, passes) and close(found.false_fail, false_fail)
    assert close(found.false_fail_at_margin, rates(exams)[1])
    # The family's worst case: one exam loses the margin, the others nothing.
    assert close(found.false_pass_at_margin, max(rates((exam,))[0] for exam in exams))
    assert max(rates((exam,))[0] for exam in exams) <= ALPHA + 4 * sqrt(ALPHA * (1 - ALPHA) / DRAWS)
