"""The rule: worked examples by hand, its edges, and its stated errors by simulation."""

from itertools import pairwise
from math import exp, inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fasttrack_validation.accuracy.calibration import Noise, calibrate
from fasttrack_validation.accuracy.family import Family, FamilyRule, decide_family, pool
from fasttrack_validation.accuracy.paired import compare
from fasttrack_validation.accuracy.power import joint_power, power, repeats_needed
from fasttrack_validation.accuracy.rule import Rule, Verdict, decide, half_width, more_repeats, spent, unseen_loss


def arm(rows):
    return {f"i{index:03}": row for index, row in enumerate(rows)}


def rule(repeats=1, **more):
    return Rule(**{"margin_points": 3.0, "looks": (repeats,), **more})


def both_right(items, repeats):
    return compare(arm([[1.0] * repeats] * items), arm([[1.0] * repeats] * items))


def test_an_exam_of_the_size_of_aime_by_hand():
    """SE 0.058395 and t(29) = 1.6991; 30 answers hide 1 - 0.05^(1/30) = 0.095034, h is half of it."""
    baseline = arm([[1.0]] * 27 + [[0.0]] * 3)
    candidate = arm([[0.0]] * 2 + [[1.0]] * 26 + [[0.0]] * 2)
    found = decide(compare(baseline, candidate), rule())
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.lower == pytest.approx(-1 / 30 - 0.157529, abs=2e-6)
    assert found.upper == pytest.approx(-1 / 30 + 0.157529, abs=2e-6)
    assert found.within_one_standard_error is True  # the published phrase would have let this through
    assert found.minimum_detectable_loss == pytest.approx(0.157529 + 0.841621 * 0.058395, abs=2e-6)
    # -3.33 points stays beyond the margin: with enough repeats that is a failure.
    assert found.more_repeats is not None and found.more_repeats > 100


def test_an_exam_of_the_size_of_gpqa_by_hand():
    """SE = 1 / (6 sqrt(197)), t(197) = 1.65263; 1188 answers hide 0.0025185."""
    half, more, less = [1.0] * 3 + [0.0] * 3, [1.0] * 4 + [0.0] * 2, [1.0] * 2 + [0.0] * 4
    found = decide(compare(arm([half] * 198), arm([more] * 99 + [less] * 99)), rule(6))
    assert found.verdict is Verdict.PASS
    assert found.lower == pytest.approx(-0.0209238, abs=2e-6)


def test_a_large_loss_fails():
    baseline = arm([[1.0] * 8] * 30)
    candidate = arm([[1.0] * 7 + [0.0]] * 15 + [[1.0] * 6 + [0.0] * 2] * 15)
    found = decide(compare(baseline, candidate), rule(8))
    assert found.verdict is Verdict.FAIL and found.more_repeats is None and not found.within_one_standard_error


def test_a_perfect_baseline_is_not_proof_by_itself():
    """SE is 0, and a true loss of 3 points leaves 30 answers untouched four times in ten: 0.97^30 = 0.40."""
    found = decide(both_right(30, 1), rule())
    assert both_right(30, 1).se == 0 and both_right(30, 1).in_standard_errors is None
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.lower == pytest.approx(-(1 - exp(log(0.05) / 30)))
    # 0.97^N <= 0.05 needs N = 99, the next multiple of 30 is 4 repeats.
    assert found.more_repeats == 3
    assert decide(both_right(30, 4), rule(4)).verdict is Verdict.PASS
    assert decide(both_right(30, 3), rule(3)).verdict is Verdict.INCONCLUSIVE
    # All lost, SE 0 as well: that is no tie.
    lost = compare(arm([[1.0]] * 30), arm([[0.0]] * 30))
    assert decide(lost, rule()).verdict is Verdict.FAIL


def test_all_ties_of_a_mixed_baseline_are_ties():
    scores = arm([[1.0, 0.0]] * 99 + [[0.0, 0.0]] * 99)
    found = compare(scores, scores)
    assert (found.difference, found.se) == (0, 0)
    assert decide(found, rule(2)).lower == pytest.approx(-(1 - 0.05 ** (1 / 396)))


def test_one_item_decides_nothing():
    found = decide(both_right(1, 1000), rule(1000))
    assert (found.verdict, found.lower, found.upper) == (Verdict.INCONCLUSIVE, -inf, inf)
    assert found.more_repeats is None and found.minimum_detectable_loss is None


def test_items_that_truly_differ_are_not_settled_by_repeats():
    """No noise within items, a spread between them: only more items help."""
    found = compare(arm([[1.0] * 5] * 10), arm([[1.0] * 5] * 9 + [[0.0] * 5]))
    assert decide(found, rule(5)).verdict is Verdict.INCONCLUSIVE
    assert more_repeats(found, rule(5)) is None


@pytest.mark.parametrize(("lost", "exact"), [(0, 2.996), (1, 4.744), (2, 6.296), (5, 10.513), (10, 16.962)])
def test_few_losses_are_bounded_as_poisson_counts_are(lost, exact):
    """The exact upper 95 % limits of a Poisson mean, from tables; one repeat of 2000 items."""
    found = compare(arm([[1.0]] * 2000), arm([[0.0]] * lost + [[1.0]] * (2000 - lost)))
    assert -decide(found, rule()).lower * 2000 == pytest.approx(exact, rel=0.01)


def test_the_errors_at_the_margin_by_simulation():
    """A perfect baseline, a candidate that loses exactly the margin: passes at most 5 %; by SE alone far more do."""
    random = np.random.default_rng(3)
    passes = by_se_alone = 0
    for _ in range(2000):
        scores = (random.random((30, 4)) >= 0.03).astype(float)
        found = compare(arm([[1.0] * 4] * 30), arm(scores.tolist()))
        passes += decide(found, rule(4)).verdict is Verdict.PASS
        by_se_alone += found.difference - 1.6991 * found.se > -0.03
    assert passes / 2000 < 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    assert by_se_alone / 2000 > 0.10


def test_repeats_needed_for_the_published_sizes():
    """Without t and h: k = V (1.6449 + 0.8416)^2 / (n m^2). Items 30, V 0.122: 28; 198, 0.172: 6."""
    for items, within, plain in ((30, 0.122, 27.94), (198, 0.172, 5.97)):
        assert within * (1.644854 + 0.841621) ** 2 / (items * 0.03**2) == pytest.approx(plain, abs=0.01)
        needed = repeats_needed(rule(), items=items, within=within)
        assert plain < needed < 1.35 * plain
        assert power(rule(), items=items, repeats=needed, within=within) >= 0.8
        assert power(rule(), items=items, repeats=needed - 1, within=within) < 0.8
    assert repeats_needed(rule(), items=30, within=0.1, between=0.05) is None
    assert repeats_needed(rule(), items=30, within=0.1, loss=0.03) is None


def test_the_power_that_is_stated_is_there():
    """Simulated: items that are right with 0.065 or 0.935, p (1 - p) = 0.0608."""
    random = np.random.default_rng(5)
    rates = np.repeat([0.065, 0.935], [6, 24])
    within = 2 * 0.065 * 0.935
    repeats = repeats_needed(rule(), items=30, within=within)
    passed = sum(
        decide(compare(*(
            arm((random.random((repeats, 30)) < rates).T.astype(float).tolist()) for _ in range(2)
        )), rule(repeats)).verdict is Verdict.PASS
        for _ in range(500)
    )  # fmt: skip
    assert passed / 500 == pytest.approx(0.8, abs=0.06)


def test_joint_power():
    assert joint_power([0.8, 0.8, 0.8]) == pytest.approx(0.512)


def test_error_spending_by_hand():
    """Half of the repeats at two-sided-looking alpha 0.05: 2 - 2 Phi(1.959964 / sqrt(0.5)) = 0.005575."""
    planned = rule(looks=(4, 8))
    assert planned.level(0) == pytest.approx(0.005575, abs=1e-6)
    assert planned.level(1) == pytest.approx(0.05 - 0.005575, abs=1e-6)
    with pytest.raises(ValueError, match="not planned"):
        planned.level(2)
    with pytest.raises(ValueError, match="planned at 4 repeats, there are 5"):
        decide(both_right(30, 5), planned)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8, unique=True).map(sorted), st.floats(0.001, 0.4))
def test_looks_spend_alpha_and_no_more(looks, alpha):
    planned = rule(looks=tuple(looks), alpha=alpha)
    levels = [planned.level(look) for look in range(len(looks))]
    assert sum(levels) == pytest.approx(alpha) and all(level >= 0 for level in levels)
    assert spent(alpha, 0.3) <= spent(alpha, 0.6) <= alpha


def test_five_looks_without_a_plan_err_three_times_as_often():
    """At a loss of exactly the margin, one-sided: unplanned 5 % becomes 13 % and more, planned stays below 5 %."""
    random = np.random.default_rng(1)
    looks = (10, 20, 30, 40, 50)
    planned = rule(looks=looks)
    steps = random.normal(0, 1, (4000, 5)).cumsum(axis=1) / np.sqrt(np.arange(1, 6))
    unplanned = (steps > 1.644854).any(axis=1).mean()
    from statistics import NormalDist

    bounds = [NormalDist().inv_cdf(1 - planned.level(look)) for look in range(5)]
    spending = (steps > bounds).any(axis=1).mean()
    assert 0.12 < unplanned < 0.15
    assert spending < 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5


def test_a_first_look_that_spends_next_to_nothing_decides_nothing():
    planned = rule(looks=(1, 500))
    lost = compare(arm([[1.0]] * 30), arm([[0.0]] * 30))
    assert planned.level(0) < 1e-9 and decide(lost, planned).verdict is Verdict.INCONCLUSIVE


def test_rules_that_make_no_sense_are_refused():
    for wrong in ({"looks": ()}, {"looks": (4, 4)}, {"looks": (8, 4)}, {"looks": (0,)}, {"margin_points": 0},
                  {"alpha": 0.5}, {"margin_points": float("nan")}):  # fmt: skip
        with pytest.raises(ValidationError):
            rule(**wrong)


@given(st.floats(0, 0.5), st.integers(1, 200), st.integers(1, 5000), st.floats(0.001, 0.3))
def test_the_half_width_holds_both_parts(se, df, generations, level):
    width = half_width(se, df, generations, level)
    assert width >= unseen_loss(generations, level) * (1 - 1e-9)
    assert width <= half_width(se * 2 + 0.01, df, generations, level)
    assert width >= half_width(se, df, generations * 2, level)


@given(st.data())
def test_a_wider_margin_never_turns_a_pass(data):
    rows = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=2), min_size=6, max_size=6)
    found = compare(arm(data.draw(rows)), arm(data.draw(rows)))
    order = [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS]
    verdicts = [order.index(decide(found, rule(2, margin_points=m)).verdict) for m in (1, 5, 20, 60, 100)]
    assert all(a <= b for a, b in pairwise(verdicts))


ALONE = Family(exams=("a",))


def aa(seed=11, items=198, repeats=6):
    """Stock against stock: right with rates between 0 and 1, repeats of both runs independent."""
    random = np.random.default_rng(seed)
    rates = random.beta(0.5, 0.25, items)
    runs = [(random.random((repeats, items)) < rates).mean(axis=0) for _ in range(2)]
    return Noise(differences=tuple(runs[1] - runs[0]), generations=items * repeats)


@pytest.mark.parametrize(("items", "repeats"), [(30, 32), (198, 6), (60, 2)])
def test_a_bootstrap_over_aa_items_gives_the_errors_that_the_rule_states(items, repeats):
    found = calibrate({"a": aa(2, items, repeats)}, ALONE, rule(repeats))
    limit = 0.05 + 3 * (0.05 * 0.95 / found.draws) ** 0.5
    assert found.false_pass_at_margin < limit and found.false_fail_at_margin < limit
    assert found.false_fail <= found.false_fail_at_margin
    # Near the level, not just below it: a rule that never decides would pass the line above.
    assert found.false_pass_at_margin > 0.015


def test_calibration_sees_a_rule_that_errs_more_often():
    """Two-sided 68 % in place of one-sided 95 %: "within one standard error" as a rule."""
    loose = calibrate({"a": aa()}, ALONE, rule(6, alpha=0.16))
    assert loose.false_pass_at_margin > 0.10


def test_calibration_refuses_what_is_no_aa_run():
    for wrong in ((0.1,), (0.1, float("nan"))):
        with pytest.raises(ValueError, match="two items or more"):
            calibrate({"a": Noise(differences=wrong, generations=2)}, ALONE, rule())
    with pytest.raises(ValueError, match="one by one"):
        calibrate({"a": aa()}, ALONE, rule(looks=(1, 2)))


THREE = Family(exams=("a", "b", "c"))


@pytest.mark.parametrize(
    ("verdicts", "joint"),
    [("pass pass pass", "pass"), ("pass pass inconclusive", "inconclusive"), ("pass fail inconclusive", "fail"),
     ("fail pass invalid", "invalid"), ("inconclusive inconclusive inconclusive", "inconclusive")],
)  # fmt: skip
def test_each_exam_has_to_pass(verdicts, joint):
    given_verdicts = dict(zip("abc", map(Verdict, verdicts.split()), strict=True))
    assert decide_family(THREE, given_verdicts, {}, margin=0.03, level=0.05) == joint


def test_a_family_is_fixed_beforehand():
    with pytest.raises(ValueError, match="c does not fit"):
        decide_family(THREE, {"a": Verdict.PASS, "b": Verdict.PASS}, {}, margin=0.03, level=0.05)
    assert (THREE.fail_tests, ALONE.fail_tests) == (3, 1)
    assert Family(rule=FamilyRule.POOLED, exams=("a", "b")).fail_tests == 3


@pytest.mark.parametrize("kind", list(FamilyRule))
def test_the_joint_rule_errs_as_stated(kind):
    """Three exams from A/A items. At a loss of the margin in all of them, or in one alone, at most 5 % err."""
    family = Family(rule=kind, exams=("a", "b", "c"))
    noise = {"a": aa(1), "b": aa(2, 60, 20), "c": aa(3)}
    found = calibrate(noise, family, rule(6, fail_tests=family.fail_tests), draws=1000)
    limit = 0.05 + 3 * (0.05 * 0.95 / found.draws) ** 0.5
    assert found.false_fail_at_margin < limit and found.false_pass_at_margin < limit
    assert found.false_fail <= found.false_fail_at_margin


def test_three_exams_that_share_no_alpha_err_more_often():
    """What the family's share of alpha is for: each exam at 5 %, one of three fails about 14 % of the time."""
    single = [calibrate({"a": aa(seed)}, ALONE, rule(6)).false_fail_at_margin for seed in (1, 2, 3)]
    kept = 1.0
    for share in single:
        kept *= 1 - share
    assert 1 - kept > 0.09


def test_within_one_standard_error_is_no_rule():
    """Two-sided an identical arm is outside one time in three, however many items: 2 Phi(-1) = 0.317."""
    random = np.random.default_rng(9)
    for items in (30, 198):
        outside = 0
        for _ in range(1500):
            runs = (random.random((2, items, 6)) < 0.7).astype(float)
            found = compare(arm(runs[0].tolist()), arm(runs[1].tolist()))
            outside += not decide(found, rule(6)).within_one_standard_error
        assert outside / 1500 == pytest.approx(0.317, abs=0.04)


def test_pooling_by_hand_and_its_verdict():
    """Two exams: d 0 and -2 points, SE of both 1 / (6 sqrt(197)): the mean is -1 point with SE / sqrt(2)."""
    half, more, less = [1.0] * 3 + [0.0] * 3, [1.0] * 4 + [0.0] * 2, [1.0] * 2 + [0.0] * 4
    even = compare(arm([half] * 198), arm([more] * 99 + [less] * 99))
    worse = even.model_copy(update={"difference": -0.02})
    mean = pool({"a": even, "b": worse})
    assert mean.difference == pytest.approx(-0.01) and mean.se == pytest.approx(even.se / 2**0.5) and mean.df == 394
    pooled = Family(rule=FamilyRule.POOLED, exams=("a", "b"))
    planned = rule(6, fail_tests=3)
    verdicts = {"a": decide(even, planned).verdict, "b": decide(worse, planned).verdict}
    assert verdicts == {"a": Verdict.PASS, "b": Verdict.INCONCLUSIVE}
    mean = {"margin": 0.03, "level": 0.05}
    assert decide_family(pooled, verdicts, {"a": even, "b": worse}, **mean) is Verdict.PASS
    assert decide_family(Family(exams=("a", "b")), verdicts, {}, **mean) is Verdict.INCONCLUSIVE
    # An exam that fails on its own is not averaged away.
    assert decide_family(pooled, {"a": Verdict.PASS, "b": Verdict.FAIL}, {}, **mean) is Verdict.FAIL
    lone = compare(arm([[1.0] * 6]), arm([[1.0] * 6]))
    assert pool({"a": even, "b": lone}).se is None
