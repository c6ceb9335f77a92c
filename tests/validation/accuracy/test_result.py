"""From recorded answers to a verdict, and what a person is told."""

import json

import pytest
import recorded_answers as recorded

from fasttrack_validation.accuracy.answers import read
from fasttrack_validation.accuracy.result import judge, lines
from fasttrack_validation.accuracy.rule import Verdict


def run(kind="sample_integers", *, repeats=32, wrong=(0, 0), temperature=0.6, **rule):
    exam = recorded.exam(kind)
    plan = recorded.plan(exam, repeats, **rule)
    arms = [
        recorded.sitting(exam, plan, name, repeats=repeats, wrong_in_100=share, temperature=temperature)
        for name, share in zip(("baseline", "candidate"), wrong, strict=True)
    ]
    found = judge(exam, plan, *arms)
    return found, "\n".join(lines(found, plan))


def test_identical_arms_pass_and_a_clear_loss_fails():
    found, text = run()
    assert found.verdict is Verdict.PASS and found.paired.difference == 0 and "d/SE undefined" in text
    found, text = run(wrong=(0, 40))
    assert found.verdict is Verdict.FAIL and found.paired.difference < -0.3
    assert "this decides" in text and "not within one standard error" in text


def test_noise_is_inconclusive_and_says_what_would_settle_it():
    found, text = run(wrong=(20, 20), repeats=4)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.decision.more_repeats is None or f"about {found.decision.more_repeats} more repeats" in text


def test_every_scorer_counts_what_the_recorder_planted():
    """The recorder draws wrong answers with a known share: means agree within three standard errors of a binomial."""
    for kind in ("sample_integers", "sample_choices", "mrcr_synthetic"):
        found, _ = run(kind, wrong=(0, 30), repeats=64, margin_points=50)
        count = found.paired.generations
        # MRCR gives a wrong answer behind the right prefix a small ratio, not 0.
        slack = 0.03 if kind == "mrcr_synthetic" else 0
        assert abs(found.paired.candidate - 0.7) < 3 * (0.21 / count) ** 0.5 + slack
        assert found.paired.baseline == 1 and found.unparsed == (0, 0)


def test_a_greedy_run_shows_its_flips():
    found, text = run(repeats=1, wrong=(0, 50), temperature=0.0)
    assert found.flips is not None and found.flips.won == 0 < found.flips.lost
    assert f"{found.flips.lost} lost, 0 won of 8" in text
    assert run(repeats=1, wrong=(0, 50))[0].flips is None


def test_bounds_that_are_infinite_have_a_json():
    exam = recorded.exam("mrcr_synthetic", items_each=1)
    plan = recorded.plan(exam)
    found = judge(exam, plan, *(recorded.sitting(exam, plan, name) for name in ("baseline", "candidate")))
    assert found.verdict is Verdict.INCONCLUSIVE and "no standard error" in "\n".join(lines(found, plan))
    assert json.loads(found.model_dump_json())["decision"]["lower"] is None


def test_items_that_share_a_text_are_one_cluster():
    exam = recorded.exam("sample_integers")
    joined = [item.model_copy(update={"cluster": "both"}) for item in exam.items[:2]]
    exam = type(exam)(exam.manifest, (*joined, *exam.items[2:]), exam.keys)
    plan = recorded.plan(exam)
    found = judge(exam, plan, *(recorded.sitting(exam, plan, name) for name in ("baseline", "candidate")))
    assert (found.paired.items, found.paired.clusters, found.paired.df) == (8, 7, 6)


def test_recorded_answers_are_read_as_they_were_written(tmp_path):
    exam = recorded.exam()
    arm = recorded.sitting(exam, recorded.plan(exam), "candidate")
    (tmp_path / "a.jsonl").write_text(arm.dump())
    assert read(tmp_path / "a.jsonl") == arm


def test_the_look_is_the_one_that_the_repeats_were_planned_for():
    exam = recorded.exam("sample_integers")
    plan = recorded.plan(exam, 4, 8)
    arms = {n: [recorded.sitting(exam, plan, name, repeats=n) for name in ("baseline", "candidate")] for n in (4, 6, 8)}
    # Spent at half of the repeats: 2 - 2 Phi(1.959964 / sqrt(0.5)) = 0.005575; the rest at the end.
    assert judge(exam, plan, *arms[4]).decision.level == pytest.approx(0.005575, abs=1e-6)
    assert judge(exam, plan, *arms[8]).decision.level == pytest.approx(0.044425, abs=1e-6)
    unplanned = judge(exam, plan, *arms[6])
    assert unplanned.verdict is Verdict.INVALID and {one.reason for one in unplanned.findings} == {"repeats"}
