"""Whatever a claim looks like: no multiplier while a required condition is unknown or differs; ratios know no units, and
exchanging the arms inverts them."""

import re

import claim_records as records
import pytest
from claim_records import DRAFT, NATURAL, merged, parsed, server, simple
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrack_validation.claims.check import check
from fasttrack_validation.claims.claim import MAY_DIFFER, Subject
from fasttrack_validation.claims.conditions import OUTCOMES, REQUIRED, conditions, required
from fasttrack_validation.claims.derive import ratio
from fasttrack_validation.claims.measurement import Measurement, Metric, Scope, known
from fasttrack_validation.claims.prose import remarks
from fasttrack_validation.claims.render import figures, markdown
from fasttrack_validation.claims.units import Unit

COMPLETE = {
    "plain": simple(), "speculative": simple(**NATURAL), "by step": merged(simple(**NATURAL), {"metric": "step_time"}),
    "decode": records.decode_only(), "range": records.whole_range(), "GPUs": records.twice_the_gpus(),
    "forced": records.forced_single_stream(),
    "shard": simple(scope="rank_shard", collectives=[], timed__phase="decode", workload__context=1024),
}  # fmt: skip


def multipliers(found):
    return re.findall(r"\d(?:\.\d+)?\s?[x×](?![\w])", markdown(found)) + [
        one for one in figures(found) if one[0] == "ratio"
    ]


def test_complete_claims_have_one():
    assert all(multipliers(check(parsed(data))) for data in COMPLETE.values())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_multiplier_while_a_required_condition_is_unknown(data):
    claim = data.draw(st.sampled_from(sorted(COMPLETE)).map(COMPLETE.get))
    index = data.draw(st.integers(0, len(claim["pairs"]) - 1))
    arm = data.draw(st.sampled_from(["candidate", "baseline"]))
    pair = claim["pairs"][index]
    measurement = Measurement.model_validate(pair[arm])
    path = data.draw(st.sampled_from(sorted(required(measurement, Metric(claim["metric"])))))
    others = data.draw(st.lists(st.sampled_from(sorted(conditions())), max_size=3))
    bare = pair[arm]
    for one in [path, *others]:
        bare = merged(bare, {one: None})
    pairs = [{**one, arm: bare} if number == index else one for number, one in enumerate(claim["pairs"])]
    found = check(parsed({**claim, "pairs": pairs}))
    assert multipliers(found) == [] and "P1" in {one.rule for one in found.findings}


@pytest.mark.parametrize("name", COMPLETE)
def test_exchanging_the_arms_inverts_what_is_shown(name):
    claim = parsed(COMPLETE[name])
    found, turned = check(claim), check(claim.swapped())
    assert turned.metric is found.metric
    for row, back in zip(found.rows, turned.rows, strict=True):
        assert back.ratio.value == pytest.approx(1 / row.ratio.value)
        assert (back.candidate, back.baseline) == (row.baseline, row.candidate)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_rendered_stands_in_a_text_and_nothing_else_does(data):
    claim = data.draw(st.sampled_from(sorted(COMPLETE)).map(COMPLETE.get))
    index = data.draw(st.integers(0, len(claim["pairs"]) - 1))
    pair = claim["pairs"][index]
    for path in data.draw(st.lists(st.sampled_from(sorted(conditions())), max_size=2)):
        pair = {**pair, "candidate": merged(pair["candidate"], {path: None})}
    pairs = [pair if number == index else one for number, one in enumerate(claim["pairs"])]
    found = check(parsed({**claim, "pairs": pairs}))
    text = markdown(found)
    assert remarks(f"Before.\n\n{text}\nAfter.\n", {found.claim.id: found}) == ()
    bare = "\n".join(text.splitlines()[1:-1])
    # Without its markers it is a text like any other, and its figures have no claim.
    assert remarks(bare, {}) or not figures(found)


def other(value):
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return {"end_to_end": "prefill", "unlimited": 3.5, "mean": "median", "1/tpot": "output_tokens/request_latency",
                "off": "mtp"}.get(value, value + " other")  # fmt: skip
    if isinstance(value, list):
        return [*value, 77]
    return {**value, "other": 1}


OTHER = {"released": "2026-08-11", "collectives": ["all_gather"], "phase": "prefill", "options": {"other": "1"}}
LEAVES = sorted(
    path for path in conditions()
    if known(Measurement.model_validate(server(1.0, **NATURAL)), path) is not None and path != "speculation.method"
)  # fmt: skip


@pytest.mark.parametrize("subject", Subject)
@pytest.mark.parametrize("path", LEAVES)
def test_no_multiplier_where_a_condition_differs_outside_the_declared_difference(path, subject):
    claim = simple(**NATURAL)
    (pair,) = claim["pairs"]
    pair["baseline"]["identity"]["commit"] = "a1"
    value = pair["baseline"]
    for name in path.split("."):
        value = value[name]
    changed = merged(pair["baseline"], {path: OTHER.get(path.rpartition(".")[2]) or other(value)})
    under_test = {"subject": subject, "options": ["none-of-these"] if subject is Subject.OPTION else []}
    found = check(parsed({**claim, "pairs": [{**pair, "baseline": changed}], "under_test": under_test}))
    if path in MAY_DIFFER[subject] and path != "hardware.gpus":
        assert not {"P2", "P13", "P19", "P20"} & {one.rule for one in found.findings}
    elif path in MAY_DIFFER[subject]:
        assert found.metric is Metric.TOK_S_GPU
    else:
        assert multipliers(found) == [], found.findings


def test_what_is_no_outcome_is_a_condition():
    """A field that is added to a record has to be equal until somebody lists it as an outcome."""
    fields = set()

    def walk(model, prefix):
        for name, field in model.model_fields.items():
            path = f"{prefix}{name}"
            if path not in OUTCOMES and hasattr(field.annotation, "model_fields"):
                walk(field.annotation, f"{path}.")
            else:
                fields.add(path)

    walk(Measurement, "")
    assert fields == set(conditions()) | OUTCOMES
    asked = {path for paths in REQUIRED.values() for path in paths}
    assert asked <= fields and set(REQUIRED) == set(Scope)


TIMES = [unit for unit in Unit if unit.is_time]
RATES = [unit for unit in Unit if not unit.is_time]
FIGURES = st.lists(st.floats(1e-3, 1e6), min_size=5, max_size=12)


@settings(max_examples=100, deadline=None)
@given(FIGURES, st.data())
def test_ratios_know_no_units_and_invert(candidate, data):
    baseline = data.draw(st.lists(st.floats(1e-3, 1e6), min_size=len(candidate), max_size=len(candidate)))
    time = data.draw(st.booleans())
    metric, units = ("tpot", TIMES) if time else ("tok_s_user", RATES)

    def arm(values, unit):
        repeated = {"metric": metric, "interleaved": True,
                    "series": {"unit": unit, "values": [one / unit.factor for one in values]}}  # fmt: skip
        return {f"result__{metric}": None, "result__repetitions": repeated}

    def made(mine, theirs):
        claim = simple(candidate=arm(candidate, mine), baseline=arm(baseline, theirs))
        return parsed({**claim, "metric": metric})

    first = made(data.draw(st.sampled_from(units)), data.draw(st.sampled_from(units)))
    second = made(units[0], units[0])
    (one,), (two,) = first.pairs, second.pairs
    found, again = ratio(one, first.metric), ratio(two, second.metric)
    assert (found.value, found.low, found.high) == pytest.approx((again.value, again.low, again.high), rel=1e-9)
    (turned,) = first.swapped().pairs
    back = ratio(turned, first.metric)
    assert (back.value, back.low, back.high) == pytest.approx(
        (1 / found.value, 1 / found.high, 1 / found.low), rel=1e-9
    )


@settings(max_examples=30, deadline=None)
@given(st.floats(1.05, 3), st.floats(1.5, 7))
def test_the_product_of_the_split_is_the_whole(factor, tokens):
    """tok/s/user = acceptance length / step time, in both arms."""
    arms = {
        "candidate": {"speculation__acceptance_length": tokens},
        "baseline": {"speculation__acceptance_length": 1.2},
    }
    found = check(parsed(simple(factor, **{**DRAFT, "speculation__forced": False}, **arms)))
    (split,) = found.splits
    assert split.step_time * split.acceptance == pytest.approx(found.rows[0].ratio.value)
