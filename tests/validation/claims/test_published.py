"""Published figures: complete, they give exactly the findings that they should, with the numbers worked out by hand;
as published, with most conditions unknown, no multiplier."""

import re

import claim_records as records
import pytest

from fasttrack_validation.claims.check import check
from fasttrack_validation.claims.conditions import required
from fasttrack_validation.claims.findings import Status
from fasttrack_validation.claims.measurement import Metric
from fasttrack_validation.claims.render import markdown


def checked(name, **changes):
    return check(records.parsed(records.merged(records.PUBLISHED[name](), changes)))


def rules(found):
    return {finding.rule for finding in found.findings}


def multipliers(text):
    return re.findall(r"\d+\.\d\dx", text)


def test_forced_acceptance_at_batch_one():
    found = checked("forced_single_stream")
    assert rules(found) == {"P3", "P4", "P7"} and found.status is Status.FAILS
    (row,) = found.rows
    # 6 / 842 and 6 / 488 seconds
    assert found.metric is Metric.STEP_TIME
    assert (round(row.candidate * 1e3, 2), round(row.baseline * 1e3, 2)) == (7.13, 12.30)
    text = markdown(found)
    assert "| 7.13 ms | 12.30 ms | 1.73x" in text and "single stream; acceptance forced" in text
    assert set(multipliers(text)) == {"1.73x"}


def test_twice_the_gpus():
    found = checked("twice_the_gpus")
    assert rules(found) == {"P2"} and found.status is Status.FAILS
    # 403.2 / 223.7 per user; (403.2 / 16) / (223.7 / 8) per GPU, concurrency being equal
    assert round(found.suppressed[0].ratio.value, 2) == 1.80
    assert round(found.rows[0].ratio.value, 2) == 0.90
    text = markdown(found)
    assert "403.2 tok/s/user against 223.7 tok/s/user, without a multiplier" in text
    assert set(multipliers(text)) == {"0.90x"}


def test_decode_only():
    found = checked("decode_only")
    assert rules(found) == {"P6", "P8"} and found.status is Status.FAILS
    text = markdown(found)
    # 1 / (0.5 + 0.5 / 1.36) and 1 / (0.5 + 0.5 / 1.75)
    assert "End to end that comes to 1.15x to 1.27x, derived from a phase that takes 50% of the time" in text
    assert "Worst 1.36x, geometric mean 1.54x, best 1.75x" in text and "(decode only)" in text


def test_release_against_release():
    found = checked("release_against_release")
    assert rules(found) == set() and found.status is Status.PASSES
    assert set(multipliers(markdown(found))) == {"1.68x"}


def test_whole_range():
    found = checked("whole_range")
    assert rules(found) == set() and found.status is Status.PASSES
    assert "Worst 1.62x, geometric mean 1.66x, best 1.71x" in markdown(found)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("release_against_release", "workload.concurrency"),
        ("release_against_release", "speculation.method"),
        ("release_against_release", "speculation.acceptance_length"),
        ("release_against_release", "speculation.forced"),
        ("whole_range", "hardware.driver"),
        ("whole_range", "hardware.sm_clock_mhz"),
        ("whole_range", "result.repetitions"),
        ("twice_the_gpus", "workload.concurrency"),
        ("forced_single_stream", "speculation.forced"),
    ],
)
@pytest.mark.parametrize("arm", ["candidate", "baseline"])
def test_withheld_while_something_is_unknown(name, path, arm):
    data = records.PUBLISHED[name]()
    data["pairs"] = [{**pair, arm: records.merged(pair[arm], {path: None})} for pair in data["pairs"]]
    found = check(records.parsed(data))
    assert "P1" in rules(found) and path in next(one for one in found.findings if one.rule == "P1").message
    assert multipliers(markdown(found)) == [] and "no multiplier (P1)" in markdown(found)


@pytest.mark.parametrize("name", ["release_against_release", "whole_range"])
def test_the_honest_ones_are_withheld_for_every_single_field(name):
    data = records.PUBLISHED[name]()
    (first, *others) = data["pairs"]
    for arm in ("candidate", "baseline"):
        paths = set(required(records.record(first[arm]), Metric.TOK_S_USER))
        assert len(paths) > 45
        for path in paths:
            bare = {**first, arm: records.merged(first[arm], {path: None})}
            found = check(records.parsed({**data, "pairs": [bare, *others]}))
            assert "P1" in rules(found) and found.summary is None and multipliers(markdown(found)) == [], path


@pytest.mark.parametrize("name", records.PUBLISHED)
def test_as_published(name):
    """What the texts say and nothing else: figures, batch or GPUs, acceptance; no multiplier of anything."""
    stated = {"scope", "schema_version"}, {"workload.concurrency", "hardware.gpus", "speculation.forced",
                                           "speculation.acceptance_length", "timed.phase"}  # fmt: skip
    data = records.PUBLISHED[name]()
    for pair in data["pairs"]:
        pair.pop("swap")
        for arm in ("candidate", "baseline"):
            full, bare = pair[arm], {key: pair[arm][key] for key in stated[0]}
            for path in stated[1]:
                section, field = path.split(".")
                if field in full[section]:
                    bare = records.merged(bare, {path: full[section][field]})
            pair[arm] = records.merged(bare, {"result.tok_s_user": full["result"]["tok_s_user"]})
    found = check(records.parsed(data))
    assert "P1" in rules(found) and multipliers(markdown(found)) == []
    assert found.status is (Status.WITHHELD if name in ("release_against_release", "whole_range") else Status.FAILS)
