"""Every guard has an exploit that it alone refuses, and an honest twin that passes."""

import dataclasses

import pytest
import recorded_answers as recorded

from fasttrack_validation.accuracy import guards
from fasttrack_validation.accuracy.result import judge
from fasttrack_validation.accuracy.rule import Verdict
from fasttrack_validation.accuracy.sitting import Sat

EXAM = recorded.exam()
PLAN = recorded.plan(EXAM)
BASELINE = recorded.sitting(EXAM, PLAN, "baseline")
CANDIDATE = recorded.sitting(EXAM, PLAN, "candidate")


def header(arm, /, **changes):
    return dataclasses.replace(arm, arm=arm.arm.model_copy(update=changes))


def each(arm, change, *, only=lambda answer: True):
    """`change` gives the new fields of every answer that `only` picks."""
    answers = tuple(a.model_copy(update=change(a)) if only(a) else a for a in arm.answers)
    return dataclasses.replace(arm, answers=answers)


def without(arm, drop):
    return dataclasses.replace(arm, answers=tuple(a for a in arm.answers if not drop(a)))


def first(answer):
    return answer.item == EXAM.items[0].id and answer.repeat == 0


def sat(*, exam=EXAM, plan=PLAN, baseline=BASELINE, candidate=CANDIDATE):
    return Sat(exam, plan, baseline, candidate)


def greedy(arm):
    return header(arm, sampling=arm.arm.sampling.model_copy(update={"temperature": 0.0}))


SAMPLING = CANDIDATE.arm.sampling
MORE = recorded.sitting(EXAM, PLAN, "candidate", repeats=5)
FEWER = recorded.exam("sample_integers")
OTHER = EXAM.items[1]
REORDERED = {item.id: item.prompt_sha256 for item in recorded.exam(seed=1).items}

# reason -> what somebody could hand in.
EXPLOITS = {
    "arms": sat(baseline=header(BASELINE, arm="candidate")),
    "other_exam": sat(candidate=header(CANDIDATE, exam_sha256="0" * 64)),
    "other_plan": sat(candidate=header(CANDIDATE, plan_sha256=recorded.plan(EXAM, 4, margin_points=9).digest())),
    "item_count": sat(
        exam=dataclasses.replace(EXAM, items=tuple(item for item in EXAM.items if item != OTHER)),
        baseline=without(BASELINE, lambda a: a.item == OTHER.id),
        candidate=without(CANDIDATE, lambda a: a.item == OTHER.id),
    ),
    "prompt_differs": sat(
        baseline=each(BASELINE, lambda a: {"prompt_sha256": "1" * 64}, only=first),
        candidate=each(CANDIDATE, lambda a: {"prompt_sha256": "1" * 64}, only=first),
    ),
    "items_differ": sat(candidate=dataclasses.replace(MORE, arm=CANDIDATE.arm), plan=PLAN),
    "answered_twice": sat(candidate=each(CANDIDATE, lambda a: {"repeat": 1}, only=first)),
    "repeats": sat(baseline=without(BASELINE, first), candidate=without(CANDIDATE, first)),
    "transport": sat(candidate=each(CANDIDATE, lambda a: {"error": "HTTP 500"}, only=first)),
    "null_content": sat(
        baseline=each(BASELINE, lambda a: {"text": None}, only=first),
        candidate=each(CANDIDATE, lambda a: {"text": None}, only=first),
    ),
    "thinking": sat(candidate=each(CANDIDATE, lambda a: {"text": f"<think>hm</think>\n{a.text}"}, only=first)),
    "model_changed": sat(candidate=each(CANDIDATE, lambda a: {"model": "another"}, only=first)),
    "sampling_differs": sat(candidate=header(CANDIDATE, sampling=SAMPLING.model_copy(update={"max_tokens": 256}))),
    "stop_dropped": sat(baseline=header(BASELINE, stop_sent=recorded.STOPS[:4])),
    "stop_ignored": sat(candidate=each(CANDIDATE, lambda a: {"text": f"{a.text}\n<c>Next question:"}, only=first)),
    "kernels_inactive": sat(candidate=header(CANDIDATE, kernels={"kda_decode": 69, "experts": 0})),
    "baseline_specialised": sat(baseline=header(BASELINE, kernels={"kda_decode": 1})),
    "acceptance_forced": sat(candidate=header(CANDIDATE, acceptance_forced=True)),
    "seeds": sat(candidate=each(CANDIDATE, lambda a: {"seed": 1234})),
    "copies": sat(candidate=each(CANDIDATE, lambda a: {"reasoning": "one and the same"})),
    "length_ratio": sat(candidate=each(CANDIDATE, lambda a: {"tokens": a.tokens * 8 // 10})),
    "truncated": sat(candidate=each(CANDIDATE, lambda a: {"finish_reason": "length"}, only=first)),
    "unparsed": sat(candidate=each(CANDIDATE, lambda a: {"text": "It is the second one."}, only=first)),
    "score_missing": sat(candidate=each(CANDIDATE, lambda a: {"score": "N/A"}, only=first)),
    "score_disagrees": sat(candidate=each(CANDIDATE, lambda a: {"score": 0.0}, only=first)),
}
# An exploit that another guard would refuse as well.
ALSO = {"items_differ": {"repeats"}, "answered_twice": {"repeats", "items_differ"}}

# Other ways of the same kind.
MORE_EXPLOITS = [
    ("other_exam", sat(exam=FEWER)),
    ("other_plan", sat(plan=recorded.plan(EXAM, 4, alpha=0.2))),
    # Another machine ordered the options otherwise.
    ("other_exam", sat(exam=recorded.exam(seed=1))),
    ("prompt_differs", sat(candidate=each(CANDIDATE, lambda a: {"prompt_sha256": REORDERED[a.item]}))),
    # Only the first repeat was kept, in both arms.
    ("repeats", sat(baseline=without(BASELINE, lambda a: a.repeat > 0),
                    candidate=without(CANDIDATE, lambda a: a.repeat > 0))),
    ("item_count", sat(candidate=without(CANDIDATE, lambda a: True))),
    ("items_differ", sat(candidate=without(CANDIDATE, first))),
    ("repeats", sat(plan=recorded.plan(EXAM, 8), baseline=header(BASELINE, plan_sha256=recorded.plan(EXAM, 8).digest()),
                    candidate=header(CANDIDATE, plan_sha256=recorded.plan(EXAM, 8).digest()))),
    ("transport", sat(candidate=each(CANDIDATE, lambda a: {"finish_reason": None}, only=first))),
    ("null_content", sat(baseline=each(BASELINE, lambda a: {"text": ""}, only=first))),
    ("thinking", sat(baseline=each(BASELINE, lambda a: {"text": f"hm</think>{a.text}"}, only=first))),
    # In both arms alike; in the reasoning; at the limit; the stop string kept at the end.
    ("stop_ignored", sat(baseline=each(BASELINE, lambda a: {"text": f"<a>{a.text}"}),
                         candidate=each(CANDIDATE, lambda a: {"text": f"<a>{a.text}"}))),
    ("stop_ignored", sat(baseline=each(BASELINE, lambda a: {"reasoning": f"{a.reasoning}<e>and"}, only=first))),
    ("stop_ignored", sat(candidate=each(CANDIDATE, lambda a: {"text": None, "reasoning": "<b>" + a.reasoning,
                                                              "finish_reason": "length"}, only=first))),
    ("stop_ignored", sat(candidate=each(CANDIDATE, lambda a: {"text": f"{a.text}<b>"}, only=first))),
    ("kernels_inactive", sat(candidate=header(CANDIDATE, kernels=None))),
    ("kernels_inactive", sat(candidate=header(CANDIDATE, kernels={}))),
    ("baseline_specialised", sat(baseline=header(BASELINE, kernels=None))),
    ("acceptance_forced", sat(baseline=header(BASELINE, acceptance_forced=None))),
    ("seeds", sat(candidate=each(CANDIDATE, lambda a: {"seed": None}, only=first))),
    ("copies", sat(candidate=each(CANDIDATE, lambda a: {"reasoning": "same"},
                                  only=lambda a: a.item == OTHER.id and a.repeat < 2))),
    ("copies", sat(candidate=each(CANDIDATE, lambda a: {"reasoning": "", "tokens": 6}),
                   baseline=each(BASELINE, lambda a: {"tokens": 6}))),
    ("length_ratio", sat(candidate=each(CANDIDATE, lambda a: {"tokens": a.tokens * 12 // 10}))),
    ("length_ratio", sat(candidate=each(CANDIDATE, lambda a: {"tokens": None}, only=first))),
    ("truncated", sat(candidate=each(CANDIDATE, lambda a: {"finish_reason": "length", "text": None}, only=first))),
    ("score_missing", sat(candidate=each(CANDIDATE, lambda a: {"score": float("nan")}, only=first))),
]  # fmt: skip


def reasons(sitting):
    return {finding.reason for finding in guards.check(sitting)}


def test_honest_arms_pass():
    assert guards.check(sat()) == ()
    result = judge(EXAM, PLAN, BASELINE, CANDIDATE)
    # 8 items of 4 repeats, all right: 32 answers hide a loss of 1 - 0.05^(1/32) = 8.9 points.
    assert result.verdict is Verdict.INCONCLUSIVE and result.paired.difference == 0


def test_every_guard_has_an_exploit():
    assert list(EXPLOITS) == [*guards.IDENTITY, *guards.CONTENT]


@pytest.mark.parametrize("reason", list(EXPLOITS))
def test_an_exploit_is_refused_for_its_reason_and_by_no_other_guard(reason, monkeypatch):
    exploit = EXPLOITS[reason]
    assert reason in reasons(exploit)
    found = judge(exploit.exam, exploit.plan, exploit.baseline, exploit.candidate)
    assert found.verdict is Verdict.INVALID and found.paired is None and found.decision is None
    for table in (guards.IDENTITY, guards.CONTENT):
        for name in {reason} | ALSO.get(reason, set()):
            if name in table:
                monkeypatch.delitem(table, name)
    assert reasons(exploit) == set()


@pytest.mark.parametrize(("reason", "exploit"), MORE_EXPLOITS)
def test_other_ways_are_refused_too(reason, exploit):
    assert reason in reasons(exploit)


@pytest.mark.parametrize(
    "twin",
    [
        # Cut off by the limit without content: a truncated answer in both arms, not a missing one.
        sat(baseline=each(BASELINE, lambda a: {"finish_reason": "length", "text": None}, only=first),
            candidate=each(CANDIDATE, lambda a: {"finish_reason": "length", "text": None}, only=first)),
        # Greedy: repeats may coincide, and need no seed.
        sat(baseline=greedy(each(BASELINE, lambda a: {"reasoning": "", "seed": None})),
            candidate=greedy(each(CANDIDATE, lambda a: {"reasoning": "", "seed": None}))),
        # Two short answers of one item may coincide.
        sat(candidate=each(CANDIDATE, lambda a: {"reasoning": "", "tokens": 63},
                           only=lambda a: a.item == OTHER.id and a.repeat < 2)),
        # Tokens within the corridor; the engine's scores where they are right.
        sat(candidate=each(CANDIDATE, lambda a: {"tokens": a.tokens * 95 // 100, "score": 1.0})),
        # The candidate is cut off less often than the baseline.
        sat(baseline=each(BASELINE, lambda a: {"finish_reason": "length"}, only=first)),
        # Stopped, and a part of a stop string is left; or the text of one that was never asked for.
        sat(candidate=each(CANDIDATE, lambda a: {"text": f"{a.text}\n<c"}, only=first),
            baseline=each(BASELINE, lambda a: {"text": f"{a.text}\n<f>"}, only=first)),
        # The reasoning may hold whatever it likes.
        sat(candidate=each(CANDIDATE, lambda a: {"reasoning": a.reasoning + "<think>"})),
    ],
)  # fmt: skip
def test_honest_twins_pass(twin):
    assert reasons(twin) == set()


def test_right_answers_to_mrcr_coincide_and_wrong_ones_do_not():
    exam = recorded.exam("mrcr_synthetic")
    plan = recorded.plan(exam)
    arms = [recorded.sitting(exam, plan, name) for name in ("baseline", "candidate")]
    terse = [each(arm, lambda a: {"reasoning": ""}) for arm in arms]
    assert reasons(Sat(exam, plan, *terse)) == set()
    wrong = each(terse[1], lambda a: {"text": a.text[:40]}, only=lambda a: a.item == exam.items[0].id)
    assert reasons(Sat(exam, plan, terse[0], wrong)) == {"copies"}


def test_no_finding_quotes_an_answer():
    exam = recorded.exam("mrcr_synthetic")
    plan = recorded.plan(exam)
    arms = [recorded.sitting(exam, plan, name) for name in ("baseline", "candidate")]
    broken = each(arms[1], lambda a: {"text": " " + a.text, "score": 0.5, "finish_reason": "odd", "seed": None})
    text = judge(exam, plan, arms[0], broken).model_dump_json()
    assert not any(key.answer[10:40] in text for key in exam.keys.values())
