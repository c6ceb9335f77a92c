"""A plan's text reads back as the plan that was meant, whatever its stop strings hold."""

import recorded_answers as recorded
from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation import strict
from fasttrack_validation.accuracy import plans
from fasttrack_validation.accuracy.answers import Sampling
from fasttrack_validation.accuracy.family import Family
from fasttrack_validation.accuracy.plan import Plan

EXAM = recorded.exam()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    stop=st.lists(TEXT, max_size=6), temperature=st.floats(0, 2), top_p=st.floats(0.01, 1),
    margin=st.floats(0.01, 100), looks=st.sets(st.integers(1, 99), min_size=1), pooled=st.booleans(),
)  # fmt: skip
def test_round_trip(stop, temperature, top_p, margin, looks, pooled):
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=7, stop=tuple(stop))
    family = Family(rule="pooled" if pooled else "each", exams=(EXAM.manifest.exam, "another"))
    text = plans.text(EXAM, margin=margin, looks=sorted(looks), sampling=sampling, family=family)
    found = strict.parse(text, Plan, "plan.toml")
    assert found.sampling == sampling and found.family == family
    assert (found.exam, found.exam_sha256, found.items) == (EXAM.manifest.exam, EXAM.digest, len(EXAM.items))
    assert (found.rule.margin_points, found.rule.looks) == (margin, tuple(sorted(looks)))
