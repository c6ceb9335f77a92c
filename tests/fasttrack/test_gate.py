"""The gate: each way a change can fail or stay open, beside an honest change that passes."""

import json

import pytest
from fasttrack import evidence
from fasttrack.gate import policy_files
from fasttrack.git import Repository
from fasttrack.report.gate import render_annotations, render_json, render_text
from fasttrack_validation.claims.cells import Measured, NotMeasured
from fasttrack_validation.digests import judge_digest
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import CheckResult, Outcome
from gated_change import (
    CONTRACT, INSIDE, KERNEL, M, MANIFEST, PASSED, POLICY, STATEMENT, gate, ids, parse_manifest, run_gate, statement,
    statuses, tree,
)  # fmt: skip


def test_an_honest_change_passes(forge):
    result = gate(forge, INSIDE | {STATEMENT: statement(INSIDE)})
    assert result.exit_code == 0
    assert statuses(result) == {
        "confinement": "pass",
        "manifest": "pass",
        "lifetime": "pass",
        "dispatch": "pass",
        "arrows": "pass",
        "evidence": "pass",
        "attestation": "not_run",
        "performance": "not_run",
        "claims": "pass",
        "report": "not_run",
        "decision": "not_run",
        "recheck": "not_run",
    }
    assert result.policy == "base tree" and result.draft_only == ()


def changed(**change) -> bytes:
    return statement(INSIDE, **change)


FAILURES = [
    ("missing", {STATEMENT: None}, 1),
    ("malformed", {STATEMENT: b"{}\n"}, 1),
    ("stale", {"kernels/shared.py": b"A = 2\n"}, 1),
    ("stale", {"__init__.py": b""}, 1),
    ("stale", {STATEMENT: changed(contract_digest="0" * 64)}, 1),
    ("stale", {STATEMENT: changed(judge_digest="0" * 64)}, 1),
    ("rejected", {STATEMENT: changed(status="rejected", reason="C1.error", message="off by 3")}, 1),
    ("invalid", {STATEMENT: changed(status="invalid")}, 1),
    ("inconclusive", {STATEMENT: changed(status="inconclusive")}, 3),
    ("not_run", {STATEMENT: changed(status="not_run")}, 3),
    ("inconsistent", {STATEMENT: changed(checks=())}, 1),
    (
        "inconsistent",
        {STATEMENT: changed(checks=(*PASSED, CheckResult(check="C2", title="x", outcome=Outcome.FAIL)))},
        1,
    ),
    ("other_op", {STATEMENT: changed(model="beta")}, 1),
    ("other_kernels", {STATEMENT: changed(kernels=("kernels/shared.py",))}, 1),
    ("misplaced", {"evidence/statements/other.judge.json": statement(INSIDE)}, 1),
    ("raw", {STATEMENT: changed(raw=(evidence.RawFile(path="evidence/raw.json", sha256="0" * 64),))}, 1),
    ("unresolved", {"kernels/shared.py": None}, 1),
]


# A second op, which the base has no evidence for.
OTHER = {
    "fasttrack.toml": MANIFEST + b'[ops.other]\nkernels = ["kernels/other.py"]\n',
    "kernels/other.py": b"from . import base\n", "kernels/base.py": b"B = 1\n", "dispatch/other.toml": b"",
}  # fmt: skip


def gate_over_other(forge, change):
    base = forge.commit(tree({"README.md": b"# alpha\n"} | INSIDE | OTHER))
    inside = INSIDE | OTHER | {KERNEL: b"from . import shared  # better\n"}
    inside |= {STATEMENT: statement(inside)} | change
    head = forge.commit(tree({"README.md": b"# alpha\n"} | inside), base)
    return run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest)


def test_an_op_that_the_change_leaves_alone_owes_no_evidence(forge):
    result = gate_over_other(forge, {})
    assert result.exit_code == 0 and ids(result, "evidence") == ["evidence.untouched"]
    (stage,) = (one for one in result.stages if one.stage == "evidence")
    assert "1 of 2 ops" in stage.summary and "1 that the change does not touch" in stage.summary


@pytest.mark.parametrize(
    "change",
    [
        {"kernels/base.py": b"B = 2\n"},
        {"dispatch/other.toml": b"# another pick\n"},
        {"fasttrack.toml": OTHER["fasttrack.toml"] + b'dispatch = "dispatch/else.toml"\n'},
        {"fasttrack.toml": OTHER["fasttrack.toml"] + b'[[envelope]]\nhardware = "h200"\ntp = 8\nrows = [1, 3]\n'},
        {"evidence/statements/other.judge.json": b"{}\n"},
    ],
)  # fmt: skip
def test_an_op_that_the_change_touches_owes_it(forge, change):
    result = gate_over_other(forge, change)
    assert result.exit_code == 1
    assert "evidence.untouched" not in ids(result, "evidence")


def test_an_op_that_is_new_owes_evidence(forge):
    result = gate(forge, INSIDE | OTHER | {STATEMENT: statement(INSIDE | OTHER)})
    assert result.exit_code == 1 and "evidence.missing" in ids(result, "evidence")


@pytest.mark.parametrize(("reason", "change", "code"), FAILURES)
def test_evidence_that_does_not_count(forge, reason, change, code):
    inside = {
        name: data for name, data in (INSIDE | {STATEMENT: statement(INSIDE)} | change).items() if data is not None
    }
    result = gate(forge, inside)
    assert f"evidence.{reason}" in ids(result, "evidence")
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "manifest.missing"),
        (b"[model]\nname = 'beta'\n", "manifest.model"),
        (b"[model]\nname='alpha'\n[x]\n", "manifest.invalid"),
    ],
)
def test_manifest(forge, manifest, reason):
    inside = {name: data for name, data in (INSIDE | {"fasttrack.toml": manifest}).items() if data is not None}
    result = gate(forge, inside)
    assert ids(result, "manifest") == [reason]
    assert (result.exit_code, statuses(result)["evidence"]) == (1, "not_run")


def test_manifest_without_ops_proves_nothing(forge):
    result = gate(forge, INSIDE | {"fasttrack.toml": MANIFEST.split(b"[ops")[0]})
    assert (result.exit_code, statuses(result)["evidence"]) == (3, "not_run")


def test_nothing_to_check(forge):
    assert gate(forge, {}).exit_code == 4


def test_conflict_leaves_the_rest_not_run(forge):
    fork = forge.commit(tree(INSIDE))
    one, two = (forge.commit(tree(INSIDE | {KERNEL: text}), fork) for text in (b"A\n", b"B\n"))
    result = run_gate(forge.path, one, two, "alpha", parse_manifest=parse_manifest)
    assert (result.exit_code, statuses(result)["manifest"]) == (1, "not_run")


def test_escaping_change_fails_although_its_evidence_is_good(forge):
    base = forge.commit(tree({}))
    inside = INSIDE | {STATEMENT: statement(INSIDE)}
    head = forge.commit(tree(inside) | {"core.py": b"A = 1\n"}, base)
    result = run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest)
    assert (result.exit_code, statuses(result)["evidence"]) == (1, "pass")
    assert ids(result, "confinement") == ["confinement.outside"]


def test_policy_of_the_head_is_not_asked(forge):
    """The head weakens the judge and brings evidence made with that judge."""
    weak = POLICY | {"judge/verdict.py": b"JUDGE = 0\n"}
    made = statement(INSIDE, judge_digest=judge_digest(weak))
    base = forge.commit(tree({}))
    head = forge.commit(tree(INSIDE | {STATEMENT: made}, weak), base)
    result = run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest)
    assert ids(result, "confinement") == ["confinement.policy_change"]
    assert ids(result, "evidence") == ["evidence.stale"]


def test_without_validation_the_installed_policy_counts(forge):
    with Repository.open(forge.path).quarantine() as objects:
        source, installed = policy_files(objects, forge.commit({"a": b"1"}))
    assert source == "installed package" and "judge/verdict.py" in installed and "contracts/base.py" in installed
    made = statement(INSIDE, judge_digest=judge_digest(installed))
    result = gate(
        forge,
        INSIDE | {STATEMENT: made},
        {},
        contract_of=lambda model, op, files: CONTRACT,
    )
    assert (result.policy, result.exit_code) == ("installed package", 0)


def test_model_without_contract(forge):
    result = gate(forge, INSIDE | {STATEMENT: statement(INSIDE)}, {"judge/verdict.py": b"JUDGE = 1\n"})
    assert ids(result, "evidence") == ["evidence.unresolved"]
    (reason,) = [reason for stage in result.stages for reason in stage.reasons if stage.stage == "evidence"]
    assert "no contract for model 'alpha'" in reason.message


def test_a_directory_that_comes_before_its_contract_is_told_so(forge):
    result = gate(forge, INSIDE, {"judge/verdict.py": b"JUDGE = 1\n"})
    assert ids(result, "evidence") == ["evidence.no_contract"] and result.exit_code == 1
    (reason,) = [reason for stage in result.stages for reason in stage.reasons if stage.stage == "evidence"]
    assert "validation/contracts/alpha/" in reason.message and "comes first" in reason.remedy
    assert ids(gate(forge, INSIDE), "evidence") == ["evidence.missing"]


def test_self_reported_measurements_keep_it_a_draft(forge):
    measured = Measured(microseconds=7.5, low=7.4, high=7.6, repetitions=5, method="graph", hardware="H200")
    cell = evidence.PerformanceCell(
        hardware="H200", tp=8, bucket="1", candidate=measured, stock=NotMeasured(reason="no")
    )
    result = gate(forge, INSIDE | {STATEMENT: statement(INSIDE, performance=(cell,))})
    assert result.exit_code == 0
    assert [reason.id for reason in result.draft_only] == ["performance.self_reported"]
    assert "stays a draft" in render_text(result)


def test_sources_that_no_evidence_exercises_keep_it_a_draft(forge):
    result = gate(forge, INSIDE | {STATEMENT: statement(INSIDE), "schedule.py": b"A = 1\n"})
    assert result.exit_code == 0
    assert [(reason.id, reason.path) for reason in result.draft_only] == [("evidence.uncovered", f"{M}/schedule.py")]


def test_renderers(forge):
    result = gate(forge, INSIDE | {"kernels/k.py": b"import torch\nimport os\n", "evil\x1b[2K,x.py": b"A = 1\n"})
    text = render_text(result)
    assert text.endswith("\nfail\n") and "models/alpha/kernels/k.py:2: " in text and "[content.import]" in text
    assert text.isascii() and "\x1b" not in text
    data = json.loads(render_json(result))
    assert data["exit_code"] == 1 and data["stages"][0]["reasons"][0]["id"].startswith("con")
    annotations = render_annotations(result)
    assert "::error file=models/alpha/kernels/k.py,line=2,title=content.import::" in annotations
    assert r"::error file=models/alpha/evil\x1b[2K%2Cx.py,title=" in annotations
    assert all(line.startswith(("::error ", "::warning ")) for line in annotations.splitlines())


def test_messages_that_quote_the_head_cannot_write_commands(forge):
    verdict = statement(INSIDE, status="rejected", message="x\n::add-mask::y", reason="C1")
    result = gate(forge, INSIDE | {STATEMENT: verdict})
    assert all(line.startswith(("::error ", "::warning ")) for line in render_annotations(result).splitlines())
    assert not any(line.startswith("::") for line in render_text(result).splitlines())


def test_wrong_usage(forge):
    base = forge.commit(tree({}))
    with pytest.raises(UserError, match="unknown revision"):
        run_gate(forge.path, base, "nowhere", "alpha", parse_manifest=parse_manifest)
    with pytest.raises(UserError, match="cannot name a model directory"):
        run_gate(forge.path, base, base, "../core", parse_manifest=parse_manifest)
