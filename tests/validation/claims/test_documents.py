"""Claims and records in files: where they stand, and errors that name file, line and key."""

import json

import claim_records as records
import pytest
from pydantic import ValidationError

from fasttrack_validation.claims.documents import fences, read
from fasttrack_validation.claims.review import review
from fasttrack_validation.errors import UserError


def write(path, data, **options):
    path.write_text(data if isinstance(data, str) else json.dumps(data, **options))
    return path


def test_kinds_and_lines(tmp_path):
    one, other = records.simple(), records.server(100.0)
    listed = write(tmp_path / "a.json", "[\n" + json.dumps(one) + ",\n" + json.dumps(other) + "\n]")
    assert [(item.value.schema_version, item.line) for item in read(listed)[1]] == [
        ("fasttrack.claim/1", 2), ("fasttrack.measurement/1", 3),
    ]  # fmt: skip
    lines = write(tmp_path / "a.jsonl", json.dumps(other) + "\n\n" + json.dumps(other) + "\n")
    assert [item.line for item in read(lines)[1]] == [1, 3]
    text = write(
        tmp_path / "a.md", "# T\n\n```claim\n" + json.dumps(one) + '\n```\n\n~~~claim\n{"file": "a.json"}\n~~~\n'
    )
    assert [(item.path.name, item.line) for item in read(text)[1]] == [("a.md", 4), ("a.json", 2), ("a.json", 3)]


def test_a_text_that_stands_for_itself(tmp_path):
    for name in ("a.md", 7):
        path = write(tmp_path / "a.md", "```claim\n" + json.dumps({"file": name}) + "\n```\n")
        with pytest.raises(UserError, match="is no file of claims"):
            read(path)
    with pytest.raises(UserError, match="schema_version"):
        read(write(tmp_path / "a.json", {"file": "a.json"}))


@pytest.mark.parametrize("text", ["[1 2]", "[1,", "{} x", "", "[{}] []", "[,]"])
def test_what_is_no_json(tmp_path, text):
    with pytest.raises(UserError, match="not valid JSON|schema_version"):
        read(write(tmp_path / "a.json", text))


def test_fences():
    text = "```python\n```\n````claim\n```\n````\n    ```claim\n~~~ claim extra\nx\n"
    assert [(one.language, one.first, one.last, one.text) for one in fences(text)] == [
        ("python", 1, 2, ""), ("claim", 3, 5, "```"), ("claim", 7, 8, "x"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.replace('"gb300"', "7", 1), "pairs.0.candidate.hardware.sku"),
        (lambda d: d.replace('"driver"', '"drivers"', 1), "pairs.0.candidate.hardware.drivers: is not a known key"),
        (lambda d: d.replace("claim/1", "claim/2"), "schema_version: 'fasttrack.claim/2' is not known"),
        (lambda d: d.replace('"metric": "tok_s_user"', '"metric": "speed"', 1), "metric"),
        (lambda d: d.replace('"id"', '"title": "x", "id"', 1), "set twice"),
        (lambda d: d.replace("{", "", 1), "not valid JSON"),
    ],
)
def test_misfits(tmp_path, change, where):
    for path, text in (
        (tmp_path / "a.json", "\n\n" + change(json.dumps(records.simple(), indent=1))),
        (tmp_path / "a.md", "x\n\n```claim\n" + change(json.dumps(records.simple())) + "\n```\n"),
    ):
        with pytest.raises(UserError) as caught:
            read(write(path, text))
        assert where in caught.value.what and caught.value.what.startswith(f"{path}:")
    # In the text everything of the block stands on its one line.
    assert caught.value.what.startswith(f"{path}:4:")


def test_a_line_far_down_is_named(tmp_path):
    data = records.simple()
    data["pairs"][0]["baseline"]["hardware"]["gpus"] = -1
    text = json.dumps(data, indent=1)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if '"gpus": -1' in one)
    with pytest.raises(UserError, match=rf"a.json:{line}: pairs.0.baseline.hardware.gpus"):
        read(write(tmp_path / "a.json", text))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"title": "Decode, 1.8x faster"}, "is typed"),
        ({"pairs": [{**records.simple()["pairs"][0], "cell": "b4, 1.8x"}]}, "is typed"),
        ({"end_to_end_metric": "ttft"}, "not of whole requests"),
        ({"pairs": []}, "pairs"),
        ({"id": "No Spaces"}, "id"),
        ({"under_test": {"subject": "option"}}, "name the options"),
        ({"under_test": {"subject": "workload"}}, "subject"),
    ],
)
def test_claims_that_cannot_be(change, words):
    with pytest.raises(ValidationError, match=words):
        records.parsed(records.merged(records.simple(), change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"result.tpot": {"value": 3, "unit": "tok/s"}}, "is not in"),
        ({"result.tok_s_user": {"value": 300, "unit": "tok/s"}}, "outside its own repetitions"),
        ({"speculation.acceptance_length": 2.0}, "where speculation is off"),
        ({"speculation.forced": True}, "where speculation is off"),
        ({"timed.phase": "op"}, "an op"),
        ({"topology.disaggregated": True, "hardware.gpus_prefill": 4, "hardware.gpus_decode": 8}, "sum"),
        ({"workload.request_rate": "fast"}, "request_rate"),
        ({"result.tpot": {"value": 0, "unit": "ms"}}, "greater than 0"),
        ({"hardware.colour": "green"}, "colour"),
    ],
)
def test_records_that_cannot_be(change, words):
    with pytest.raises(ValidationError, match=words):
        records.record(records.merged(records.server(100.0), change))


def test_records_read_back_as_what_they_were():
    claim = records.parsed(records.decode_only())
    assert type(claim).model_validate_json(claim.model_dump_json()) == claim


def test_review(tmp_path):
    claim = {**records.simple(1.73), "id": "one"}
    text = write(tmp_path / "t.md", "It is 1.73x faster [claim:one].\n")
    data = write(tmp_path / "c.json", claim)
    assert review([text, data]).code == 0 and review([text]).code == 1
    assert review([write(tmp_path / "empty.json", [])]).code == 4
    assert review([write(tmp_path / "plain.md", "nothing here\n")]).code == 0
    held = write(tmp_path / "h.json", {**records.simple(hardware__driver=None), "id": "two"})
    assert review([held]).code == 3 and review([held, data]).code == 3
    assert review([held, write(tmp_path / "f.json", {**records.decode_only(), "id": "three"})]).code == 1
    twin = write(tmp_path / "twin.json", {**records.simple(1.9), "id": "one"})
    with pytest.raises(UserError, match="another claim is called 'one'"):
        review([data, twin])
    bad = write(tmp_path / "m.json", records.server(100.0, result__failed=2, hardware__driver=None))
    (item,) = review([bad]).items
    assert (
        review([bad]).code == 1
        and [one.rule for one in item.findings] == ["P10"]
        and item.unknown == ("hardware.driver",)
    )
