"""Verdicts of the numerics ladder as evidence: bound to their records, signed, and told as what they are."""

import gzip
import hashlib
import json
import shutil
from importlib.resources import files

import pytest
from fasttrack import cli, ladder_evidence
from fasttrack.attestation import Grade
from gated_change import INSIDE, STATEMENT, ids, judged, statement
from ssh_keys import Keys

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
VERDICT = "evidence/numerics/h200.json"
RECORDS = {name: gzip.compress(b"{}\n", mtime=number) for number, name in enumerate(("op.jsonl.gz", "long.jsonl.gz"))}
CHANGE = INSIDE | {STATEMENT: statement(INSIDE)}


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def verdict(device="NVIDIA H200", records=RECORDS, **more) -> bytes:
    evidence = {name: hashlib.sha256(data).hexdigest() for name, data in records.items()}
    return json.dumps({
        "subject": {"machine": {"device": device}}, "rungs": [], "result": "pass", "not_run": [], "evidence": evidence, **more,
    }).encode()  # fmt: skip


def beside(records=RECORDS, device="NVIDIA H200"):
    run = {"run.json": json.dumps({"machine": {"device": device}}).encode()}
    return {f"evidence/numerics/h200/{name}": data for name, data in {**records, **run}.items()}


WRONG = {
    "one is missing": ({VERDICT: verdict()} | beside({"op.jsonl.gz": RECORDS["op.jsonl.gz"]}), "numerics.records", "long.jsonl.gz is missing"),
    "one is another": ({VERDICT: verdict()} | beside(RECORDS | {"op.jsonl.gz": RECORDS["long.jsonl.gz"]}), "numerics.records", "op.jsonl.gz is missing or not"),
    "all are missing": ({VERDICT: verdict()}, "numerics.records", "long.jsonl.gz is missing"),
    "of another run": (
        {VERDICT: verdict()} | {f"evidence/numerics/cpu/{name}": data for name, data in RECORDS.items()}, "numerics.records", "missing",
    ),
    "it names none": ({VERDICT: verdict(records={})}, "numerics.records", "names no records"),
    "one is not named": (
        {VERDICT: verdict(records={"op.jsonl.gz": RECORDS["op.jsonl.gz"]})} | beside(), "numerics.records",
        "long.jsonl.gz lies among its records",
    ),
    "it ran elsewhere": ({VERDICT: verdict("cpu")} | beside(), "numerics.records", "run.json beside it does not say the same"),
    "nobody says what ran": (
        {VERDICT: verdict()} | {k: v for k, v in beside().items() if not k.endswith("run.json")}, "numerics.records", "run.json",
    ),
    "no result": ({VERDICT: verdict(result="passed")} | beside(), "numerics.malformed", "no verdict"),
    "a name that leads away": ({VERDICT: verdict(evidence={"../cpu/op.jsonl.gz": "0" * 64})} | beside(), "numerics.malformed", "no verdict"),
    "half a character": ({VERDICT: verdict(evidence={"\ud800": "0" * 64})} | beside(), "numerics.malformed", "no verdict"),
    "a name that ends early": ({VERDICT: verdict(evidence={"a\0.jsonl.gz": "0" * 64})} | beside(), "numerics.malformed", "no verdict"),
    "it is no verdict": ({VERDICT: b"{}"}, "numerics.malformed", "no verdict of the numerics ladder"),
    "it is nothing": ({VERDICT: b"\xff" * 9}, "numerics.malformed", "no verdict"),
    "digests are no text": ({VERDICT: verdict(evidence={"op": 3})}, "numerics.malformed", "no verdict"),
    "deep": ({VERDICT: b"[" * 100_000}, "numerics.malformed", "no verdict"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_verdict_that_is_not_about_the_records_beside_it_fails(forge, name):
    inside, reason, said = WRONG[name]
    result = judged(forge, CHANGE | inside, b"")
    assert ids(result, "attestation") == [reason] and result.exit_code == 1
    (stage,) = [one for one in result.stages if one.stage == "attestation"]
    assert said in stage.reasons[0].message and VERDICT in stage.reasons[0].message


def test_an_honest_one_is_self_reported_and_a_gpus_keeps_a_change_a_draft(forge):
    result = judged(forge, CHANGE | {VERDICT: verdict()} | beside(), b"")
    assert result.exit_code == 0 and ids(result, "attestation") == []
    assert [one.id for one in result.draft_only] == ["performance.self_reported"]
    assert VERDICT in result.draft_only[0].message and "a GPU's ruling" in result.draft_only[0].message
    # What a CPU computed anybody can repeat.
    assert judged(forge, CHANGE | {VERDICT: verdict("cpu")} | beside(device="cpu"), b"").draft_only == ()


def test_what_was_wrong_at_the_base_is_told_and_stops_no_change(forge):
    broken = {VERDICT: verdict()} | beside({"op.jsonl.gz": RECORDS["op.jsonl.gz"]})
    result = judged(forge, CHANGE | broken, b"", base_inside=broken)
    (stage,) = [one for one in result.stages if one.stage == "attestation"]
    assert result.exit_code == 0 and "as at the base" in stage.reasons[0].message
    # One more record missing is a change.
    less = {path: data for path, data in broken.items() if not path.endswith("run.json")}
    assert judged(forge, CHANGE | less, b"", base_inside=broken).exit_code == 1


@needs_ssh
def test_a_signature_over_it_counts_and_over_other_bytes_does_not(forge, keys):
    inside = CHANGE | {VERDICT: verdict()} | beside()
    mark = f"{VERDICT}.sig"
    result = judged(forge, inside | {mark: keys.sign(verdict())}, keys.allow())
    grades = {one.path: one.grade for one in result.attestations}
    assert grades[VERDICT] is Grade.ATTESTED and result.draft_only == ()
    result = judged(forge, inside | {mark: keys.sign(verdict(result="fail"))}, keys.allow())
    assert ids(result, "attestation") == ["signature.other_bytes"] and result.exit_code == 1
    # Nor does a good one make up for records that are gone.
    result = judged(forge, CHANGE | {VERDICT: verdict(), mark: keys.sign(verdict())}, keys.allow())
    assert ids(result, "attestation") == ["numerics.records"]


KEPT = files("fasttrack_models.kimi_k3") / "evidence/numerics"


@needs_ssh
def test_only_a_whole_verdict_whose_records_lie_beside_it_is_signed(tmp_path, keys, capsys):
    file, key = tmp_path / "cpu.json", str(keys.place / "trusted")

    def sign(*more):
        code = cli.run(["evidence", "sign", str(file), "--key", key, *more])
        return code, capsys.readouterr().err

    file.write_bytes(verdict())
    assert sign() == (2, sign()[1]) and "is no verdict of the numerics ladder" in sign()[1]
    whole = (KEPT / "cpu.json").read_bytes()
    file.write_bytes(whole)
    code, said = sign()
    assert code == 2 and "put run.json and all records that it follows from into" in said and not list(tmp_path.glob("*.sig"))
    shutil.copytree(KEPT / "cpu", tmp_path / "cpu")
    assert "is a numerics" in sign("--kind", "grid")[1]
    file.write_bytes(json.dumps({**json.loads(whole), "evidence": {}}).encode())
    assert "names no records" in sign()[1]
    file.write_bytes(whole)
    assert sign()[0] == 0 and (tmp_path / "cpu.json.sig").is_file()


def test_those_that_are_kept_are_about_the_records_beside_them():
    kept = {f"evidence/numerics/{one.name}": one.read_bytes() for one in KEPT.iterdir() if one.is_file()}
    for folder in (one for one in KEPT.iterdir() if one.is_dir()):
        kept |= {f"evidence/numerics/{folder.name}/{one.name}": one.read_bytes() for one in folder.iterdir()}
    assert len([path for path in kept if ladder_evidence.VERDICTS.fullmatch(path)]) >= 3
    assert list(ladder_evidence.reasons(kept, "models/kimi_k3")) == []
