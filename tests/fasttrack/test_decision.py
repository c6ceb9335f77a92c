"""Decisions: a person's approval of this very report counts, and nothing that only looks like one."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from fasttrack import cli, signatures
from fasttrack.decision import NAMESPACE, RECORD, report_digest
from gated_change import INSIDE, STATEMENT, ids, parse_manifest, run_gate, statement, statuses, tree
from ssh_keys import Keys

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
REPORT = {"report/owner.md": b"# alpha\n"}
SIGNERS = ".github/allowed_signers"


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def record(**change) -> bytes:
    """A decision written here, field by field."""
    fields = {"schema_version": 1, "model": "alpha", "ruling": "approve", "note": "reads well", "day": "2026-01-02",
              "report": report_digest(REPORT)}  # fmt: skip
    return json.dumps(fields | change).encode()


def judged(forge, keys, made: bytes | None, mark: bytes | None, *, report=REPORT, options="", signed=True, earlier=()):
    own = {RECORD: made, f"{RECORD}.sig": mark}
    inside = INSIDE | {STATEMENT: statement(INSIDE)} | report | {name: data for name, data in own.items() if data}
    trust = {SIGNERS: keys.allow(options)} if signed else {}
    base = forge.commit(tree({"README.md": b"# alpha\n"} | dict(earlier)) | trust)
    head = forge.commit(tree({"README.md": b"# alpha\n"} | inside) | trust, base)
    return run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest)


@needs_ssh
def test_an_approval_of_this_report_counts(forge, keys):
    result = judged(forge, keys, record(), keys.sign(record(), namespace=NAMESPACE))
    assert (result.exit_code, statuses(result)["decision"]) == (0, "pass")
    (stage,) = (one for one in result.stages if one.stage == "decision")
    assert stage.summary == "gpu-runner@example.org approved this report on 2026-01-02"


@needs_ssh
def test_without_a_decision_none_is_asked_for(forge, keys):
    result = judged(forge, keys, None, None)
    assert (result.exit_code, statuses(result)["decision"]) == (0, "not_run")


@needs_ssh
def test_the_decision_on_an_earlier_report_stands_in_nobodys_way_and_approves_nothing(forge, keys):
    mark = keys.sign(record(), namespace=NAMESPACE)
    earlier = REPORT | {RECORD: record(), f"{RECORD}.sig": mark}
    result = judged(forge, keys, record(), mark, report={**REPORT, "report/owner.md": b"# alpha 2\n"}, earlier=earlier)
    assert (result.exit_code, statuses(result)["decision"]) == (0, "not_run")


EVIDENCE_ONLY = f'namespaces="{signatures.NAMESPACE}"'
EXPLOITS = {
    "unsigned": lambda k: dict(made=record(), mark=None),
    "unsigned (nobody is trusted)": lambda k: dict(
        made=record(), mark=k.sign(record(), namespace=NAMESPACE), signed=False
    ),
    "other_bytes": lambda k: dict(made=record(), mark=k.sign(record(ruling="reject"), namespace=NAMESPACE)),
    "unknown_signer": lambda k: dict(made=record(), mark=k.sign(record(), "other", NAMESPACE)),
    "namespace": lambda k: dict(made=record(), mark=k.sign(record())),
    "namespace (a runner's key)": lambda k: dict(
        made=record(), mark=k.sign(record(), namespace=NAMESPACE), options=EVIDENCE_ONLY
    ),
    "changed_report": lambda k: dict(
        made=record(), mark=k.sign(record(), namespace=NAMESPACE), report=REPORT | {"report/owner.md": b"# alpha 2\n"}
    ),
    "changed_report (a page more)": lambda k: dict(
        made=record(), mark=k.sign(record(), namespace=NAMESPACE), report=REPORT | {"report/more.md": b"x\n"}
    ),
    "rejected": lambda k: dict(made=record(ruling="reject"), mark=k.sign(record(ruling="reject"), namespace=NAMESPACE)),
    "other_model": lambda k: dict(made=record(model="beta"), mark=k.sign(record(model="beta"), namespace=NAMESPACE)),
    "malformed": lambda k: dict(made=record(note=" "), mark=k.sign(record(note=" "), namespace=NAMESPACE)),
    "malformed (no record)": lambda k: dict(made=None, mark=k.sign(record(), namespace=NAMESPACE)),
}  # fmt: skip


@needs_ssh
@pytest.mark.parametrize("name", EXPLOITS)
def test_a_decision_that_does_not_count_fails_for_its_reason(forge, keys, name):
    result = judged(forge, keys, **EXPLOITS[name](keys))
    assert ids(result, "decision") == [f"decision.{name.split(' ')[0]}"]
    assert result.exit_code == 1


@needs_ssh
def test_unchecked_is_no_pass(forge, keys, monkeypatch):
    monkeypatch.setattr("fasttrack.decision.signatures.installed", lambda: False)
    result = judged(forge, keys, record(), b"a signature\n")
    assert ids(result, "decision") == ["decision.unchecked"] and result.exit_code == 3


@needs_ssh
def test_the_command_writes_what_the_gate_reads(forge, keys, tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    model = checkout / "models/kimi_k3"
    (model / "report").mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "models/kimi_k3/fasttrack.toml", model)
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    monkeypatch.chdir(checkout)
    asked = ["decide", "kimi_k3", "approve", "--key", str(keys.place / "trusted"), "--note"]
    assert cli.run([*asked, "why"]) == 2, "there is no report yet"
    for name, data in REPORT.items():
        (model / name).write_bytes(data)
    assert cli.run([*asked, " "]) == 2 and cli.run([asked[0], asked[1], "maybe", *asked[3:], "why"]) == 2
    assert not (model / RECORD).exists()
    assert cli.run([*asked, "reads well"]) == 0
    made, mark = ((model / name).read_bytes() for name in (RECORD, f"{RECORD}.sig"))
    told = json.loads(made)
    assert (told["model"], told["ruling"], told["note"]) == ("kimi_k3", "approve", "reads well")
    assert told["report"] == report_digest(REPORT)
    assert signatures.verify(made, mark, keys.allow(), NAMESPACE) == signatures.Signed(signer="gpu-runner@example.org")
    # Deciding again on the same report replaces the decision, and does not count the old one as part of the report.
    assert cli.run([*asked, "still"]) == 0 and json.loads((model / RECORD).read_bytes())["report"] == told["report"]
