"""Signatures over evidence: what attests, and each way a signature can fail to. Keys are made for the test."""

import json
import shutil
from pathlib import Path

import pytest
from fasttrack import attestation, cli, signatures
from fasttrack.attestation import Grade
from fasttrack.evidence import PerformanceCell
from fasttrack.report.gate import render_text
from fasttrack_validation.claims.cells import Measured, NotMeasured
from fasttrack_validation.errors import UserError
from gated_change import INSIDE, KERNEL, M, STATEMENT, ids, judged, statement, statuses, tree
from ssh_keys import Keys

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
SIGNERS = attestation.ALLOWED_SIGNERS
MARK = f"{STATEMENT}.sig"
TIME = Measured(microseconds=7.5, low=7.4, high=7.6, repetitions=5, method="graph", hardware="H200")
CELL = PerformanceCell(hardware="H200", tp=8, bucket="1", candidate=TIME, stock=NotMeasured(reason="no"))
MADE = statement(INSIDE, performance=(CELL,))
GRID = "evidence/grid/h200/tp8-x-r1.json"
RECORD = b'{"outcome":{"kind":"measured"}}\n'


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@needs_ssh
def test_an_honest_signature_attests(forge, keys):
    result = judged(forge, INSIDE | {STATEMENT: MADE, MARK: keys.sign(MADE)}, keys.allow())
    assert result.exit_code == 0 and result.draft_only == ()
    assert statuses(result)["attestation"] == statuses(result)["performance"] == "pass"
    (one,) = result.attestations
    assert (one.grade, one.signer, one.measurements) == (Grade.ATTESTED, "gpu-runner@example.org", 1)
    text = render_text(result)
    assert "1 attested measurements" in text and "(1 attested, 0 self-reported)" in text


def test_without_a_signature_figures_are_shown_as_self_reported_and_not_counted(forge):
    result = judged(forge, INSIDE | {STATEMENT: MADE}, b"")
    assert result.exit_code == 0 and [one.id for one in result.draft_only] == ["performance.self_reported"]
    assert statuses(result)["performance"] == statuses(result)["attestation"] == "not_run"
    text = render_text(result)
    assert "no measurement is attested; 1 self-reported, shown and not counted" in text and "stays a draft" in text


def test_a_gpu_ruling_that_nobody_attests_to_keeps_it_a_draft(forge):
    result = judged(forge, INSIDE | {STATEMENT: statement(INSIDE, executor="gpu NVIDIA H200")}, b"")
    assert [one.id for one in result.draft_only] == ["performance.self_reported"]
    assert "a GPU's ruling" in result.draft_only[0].message
    assert judged(forge, INSIDE | {STATEMENT: statement(INSIDE)}, b"").draft_only == ()


EXPLOITS = {
    "other_bytes": lambda k: (k.sign(statement(INSIDE)), k.allow()),
    "unknown_signer": lambda k: (k.sign(MADE, "other"), k.allow()),
    "expired": lambda k: (k.sign(MADE), k.allow('valid-before="20200101"')),
    "not_yet_valid": lambda k: (k.sign(MADE), k.allow('valid-after="20980101"')),
    "namespace": lambda k: (k.sign(MADE, namespace="git"), k.allow()),
    "namespace (of the key)": lambda k: (k.sign(MADE), k.allow('namespaces="git"')),
    "malformed": lambda k: (k.sign(MADE)[:150], k.allow()),
    "malformed (empty)": lambda k: (b"", k.allow()),
    "malformed (long)": lambda k: (k.sign(MADE) + b"\n" * (signatures.MAX_BYTES + 1), k.allow()),
    "unknown_signer (nobody)": lambda k: (k.sign(MADE), b"# nobody\n"),
    "unknown_signer (broken list)": lambda k: (k.sign(MADE), b"gpu-runner@example.org no key\n"),
    "no_signers": lambda k: (k.sign(MADE), None),
}


@needs_ssh
@pytest.mark.parametrize("name", EXPLOITS)
def test_a_signature_that_does_not_count_fails_for_its_reason(forge, keys, name):
    mark, signers = EXPLOITS[name](keys)
    result = judged(forge, INSIDE | {STATEMENT: MADE, MARK: mark}, signers)
    assert ids(result, "attestation") == [f"signature.{name.split()[0]}"]
    assert result.exit_code == 1 and result.attestations[0].grade is Grade.SELF_REPORTED
    assert "performance.self_reported" in [one.id for one in result.draft_only]


@needs_ssh
def test_signers_of_the_head_are_not_asked(forge, keys):
    """The head names its own key and signs with it."""
    inside = INSIDE | {STATEMENT: MADE, MARK: keys.sign(MADE, "other")}
    result = judged(forge, inside, keys.allow(), head_signers=keys.allow(key="other"))
    assert ids(result, "confinement") == ["confinement.policy_change"]
    assert ids(result, "attestation") == ["signature.unknown_signer"]
    # The same list in the base is what makes that key count.
    assert judged(forge, inside, keys.allow(key="other")).attestations[0].grade is Grade.ATTESTED


@needs_ssh
def test_a_signature_of_another_statement_does_not_move(forge, keys):
    """The signature is a good one, over a statement about sources that are no longer there."""
    old = INSIDE | {KERNEL: b"from . import shared  # older\n"}
    signed_and_stale = statement(old, performance=(CELL,))
    result = judged(forge, INSIDE | {STATEMENT: MADE, MARK: keys.sign(signed_and_stale)}, keys.allow())
    assert ids(result, "attestation") == ["signature.other_bytes"]
    result = judged(forge, INSIDE | {STATEMENT: signed_and_stale, MARK: keys.sign(signed_and_stale)}, keys.allow())
    assert ids(result, "evidence") == ["evidence.stale"] and result.exit_code == 1
    assert result.attestations[0].grade is Grade.ATTESTED and statuses(result)["performance"] == "not_run"
    assert "no measurement is attested; 1 that are not about these sources" in render_text(result)


@needs_ssh
def test_a_signer_whose_time_ended_is_no_reason_against_a_change_that_does_not_touch_it(forge, keys):
    signed = INSIDE | {STATEMENT: MADE, MARK: keys.sign(MADE)}
    ended = keys.allow('valid-before="20200101"')
    result = judged(forge, signed | {"notes.md": b"more\n"}, ended, base_inside=signed)
    assert result.exit_code == 0 and result.attestations[0].grade is Grade.SELF_REPORTED
    assert ids(result, "attestation") == ["signature.expired"]
    assert statuses(result)["performance"] == "not_run"


@needs_ssh
def test_taking_a_signature_away_brings_the_draft_back(forge, keys):
    signed = INSIDE | {STATEMENT: MADE, MARK: keys.sign(MADE)}
    unsigned = {name: data for name, data in signed.items() if name != MARK}
    result = judged(forge, unsigned, keys.allow(), base_inside=signed)
    assert "performance.self_reported" in [one.id for one in result.draft_only]


def test_a_signature_of_nothing(forge):
    result = judged(forge, INSIDE | {STATEMENT: statement(INSIDE), "evidence/statements/x.json.sig": b"x\n"}, b"")
    assert ids(result, "attestation") == ["signature.orphan"] and result.exit_code == 1


@needs_ssh
def test_records_of_the_grid_are_graded_like_statements(forge, keys):
    inside = INSIDE | {STATEMENT: statement(INSIDE), GRID: RECORD}
    told = judged(forge, inside, keys.allow())
    assert [one.path for one in told.draft_only] == [f"{M}/{GRID}"] and statuses(told)["performance"] == "not_run"
    vouched = judged(forge, inside | {f"{GRID}.sig": keys.sign(RECORD)}, keys.allow())
    assert vouched.draft_only == () and statuses(vouched)["attestation"] == "pass"
    # Whether a record is about these sources is not known here, so it is told and does not count.
    assert statuses(vouched)["performance"] == "not_run"
    assert "records of the grid: 1 attested, 0 self-reported" in render_text(vouched)
    not_run = judged(forge, inside | {GRID: b'{"outcome":{"kind":"not_run"}}\n'}, keys.allow())
    assert not_run.draft_only == ()


def test_a_gate_without_ssh_keygen_does_not_pass_what_it_could_not_check(forge, monkeypatch):
    monkeypatch.setattr(signatures.shutil, "which", lambda name: None)
    result = judged(forge, INSIDE | {STATEMENT: MADE, MARK: b"a signature\n"}, b"# somebody\n")
    assert ids(result, "attestation") == ["signature.unchecked"] and result.exit_code == 3
    for call in (lambda: signatures.sign(b"x", Path(__file__)), lambda: signatures.verify(b"x", b"y", b"z")):
        with pytest.raises(UserError, match="ssh-keygen is not installed") as caught:
            call()
        assert "openssh-client" in caught.value.how


@needs_ssh
def test_commands(forge, keys, tmp_path, capsys):
    path = tmp_path / "decode.judge.json"
    path.write_bytes(MADE)
    assert cli.run(["evidence", "sign", str(path), "--key", str(keys.place / "trusted")]) == 0
    mark = Path(f"{path}.sig").read_bytes()
    capsys.readouterr()
    files = tree(INSIDE | {STATEMENT: MADE}) | {SIGNERS: keys.allow()}
    base = forge.commit(files)

    def verified(own: dict[str, bytes]) -> tuple[int, dict]:
        head = forge.commit(files | {f"{M}/{name}": data for name, data in own.items()}, base)
        arguments = ["evidence", "verify", "alpha", "--base", base, "--head", head, "--repo", str(forge.path), "--json"]
        code = cli.run(arguments)
        told = json.loads(capsys.readouterr().out)
        assert told["exit_code"] == code
        return code, told

    code, told = verified({MARK: mark})
    assert (code, told["files"][0]["grade"], told["files"][0]["signer"]) == (0, "attested", "gpu-runner@example.org")
    assert verified({})[0] == 3
    code, told = verified({MARK: keys.sign(MADE, "other")})
    assert (code, told["reasons"][0]["id"]) == (1, "signature.unknown_signer")
    empty = forge.commit({SIGNERS: keys.allow()})
    assert cli.run(["evidence", "verify", "alpha", "--base", empty, "--head", empty, "--repo", str(forge.path)]) == 4


@needs_ssh
def test_only_evidence_is_signed_and_all_or_nothing(keys, tmp_path):
    good, bad = tmp_path / "a.json", tmp_path / "b.json"
    good.write_bytes(MADE)
    key = str(keys.place / "trusted")
    for data in (b"not json", b"{}", b'{"outcome":{"kind":"measured"}}'):
        bad.write_bytes(data)
        assert cli.run(["evidence", "sign", str(good), str(bad), "--key", key]) == 2
    assert cli.run(["evidence", "sign", str(good), str(tmp_path / "absent.json"), "--key", key]) == 2
    assert cli.run(["evidence", "sign", str(good), "--key", str(tmp_path / "absent")]) == 2
    assert cli.run(["evidence", "sign", str(good), "--key", str(good)]) == 2
    # What came from a machine that measures the grid cannot slip in a judge's statement.
    for kind in ("grid", "unheard-of"):
        assert cli.run(["evidence", "sign", str(good), "--kind", kind, "--key", key]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]
    assert cli.run(["evidence", "sign", str(good), "--kind", "statement", "--key", key]) == 0


@needs_ssh
def test_a_record_of_the_grid_is_signed(keys, tmp_path):
    """A record of the repository: the newest that is kept, whatever it says."""
    kept = sorted((Path(__file__).parents[2] / "models/kimi_k3/evidence/grid").rglob("*.json"))
    if not kept:
        pytest.skip("the repository keeps no record of the grid")
    copy = tmp_path / kept[0].name
    copy.write_bytes(kept[0].read_bytes())
    assert cli.run(["evidence", "sign", str(copy), "--kind", "grid", "--key", str(keys.place / "trusted")]) == 0
    mark = Path(f"{copy}.sig").read_bytes()
    signed = signatures.verify(copy.read_bytes(), mark, keys.allow())
    assert signed == signatures.Signed(signer="gpu-runner@example.org")
