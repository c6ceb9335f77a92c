"""The gate's stages of arrows, claims, report and re-check; and that nothing of a head runs outside the sandbox."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from fasttrack import arrows, figures, recheck
from fasttrack.report.gate import render_annotations, render_text
from fasttrack.report.gate_sarif import render_sarif
from fasttrack.report.gate_summary import render_summary
from fasttrack.stages import StageStatus
from fasttrack_validation.contracts.base import Cost
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import KernelAudit, Status, Verdict
from gated_change import INSIDE, KERNEL, M, STATEMENT, TABLE, gate, ids, parse_manifest, run_gate, statement, statuses, tree



# Arrows

ARROWS = [
    ("import", b"import fasttrack\n", b"import torch\n"),
    ("import", b"from fasttrack_validation.judge import judge\n", b"from . import shared\n"),
    ("import", b"from fasttrack_models.beta import k\n", b"from triton import language\n"),
    ("import", b"import numpy\n", b"import math\n"),
    ("import", b"from ...beta import k\n", b"from ..kernels import shared\n"),
    ("unresolved", b"from . import absent\n", b"from .shared import A\n"),
    ("unresolved", b"from ..absent import k\n", b"from . import shared as s\n"),
    ("syntax", b"def (\n", b"def f(): pass\n"),
]


@pytest.mark.parametrize(("id", "exploit", "honest"), ARROWS)
def test_arrows(id, exploit, honest):
    files = {"__init__.py": b"", "kernels/shared.py": b"A = 1\n"}
    answer = arrows.stage(files | {KERNEL: exploit}, files, M)
    assert answer.status is StageStatus.FAIL and {one.id for one in answer.reasons} == {f"arrows.{id}"}
    assert arrows.stage(files | {KERNEL: honest}, files, M).reasons == ()


def test_an_arrow_of_the_base_is_told_and_is_no_reason():
    files = {KERNEL: b"import numpy\n"}
    (reason,) = arrows.stage(files, files, M).reasons
    assert reason.status is StageStatus.PASS and "as at the base" in reason.message
    # Another file of the directory that stood still: what it imports was taken away.
    files = {"a.py": b"from . import b\n", "b.py": b"B = 1\n"}
    answer = arrows.stage({"a.py": files["a.py"]}, files, M)
    assert answer.status is StageStatus.FAIL and answer.reasons[0].path == f"{M}/a.py"


def test_an_include_that_is_not_there():
    assert arrows.stage({"k.cu": b'#include "x.cuh"\n'}, {}, M).status is StageStatus.FAIL
    assert arrows.stage({"k.cu": b'#include "x.cuh"\n', "x.cuh": b"\n"}, {}, M).status is StageStatus.PASS


# Claims


def test_a_typed_multiplier_fails_by_line():
    answer = figures.stage({"README.md": b"# alpha\n\nThis path is 1.8x faster than stock.\n"}, M)
    assert answer.status is StageStatus.FAIL
    (reason,) = answer.reasons
    assert (reason.id, reason.path, reason.line) == ("claims.prose.unbacked", f"{M}/README.md", 3)
    assert figures.stage({"README.md": b"# alpha\n\nOne launch less. sm_90, 93 layers, TP8.\n"}, M).reasons == ()


def test_the_body_of_the_pull_request_is_a_text_too():
    (reason,) = figures.stage({}, M, "It serves 840 tokens per second.").reasons
    assert (reason.id, reason.path, reason.line) == ("claims.prose.unbacked", None, 1)


def test_a_claim_that_cannot_be_read_fails_under_its_own_name():
    answer = figures.stage({"evidence/claims/one.json": b'{"schema_version": "no"}'}, M)
    (reason,) = answer.reasons
    assert reason.id == "claims.unreadable" and f"{M}/evidence/claims/one.json" in reason.message
    assert "/tmp" not in reason.message


def test_the_gate_holds_texts_and_body_against_claims(forge):
    good = INSIDE | {STATEMENT: statement(INSIDE)}
    assert gate(forge, good, body="One launch less.").exit_code == 0
    assert ids(gate(forge, good, body="Now 2.1x faster."), "claims") == ["claims.prose.unbacked"]
    assert gate(forge, good | {"NOTES.md": b"3x speedup\n"}).exit_code == 1


# Re-check, with a judge of our own making


def audit(kernel: str, target: str) -> KernelAudit:
    return KernelAudit(kernel=kernel, target=target, registers=32, spill_store_bytes=0, spill_load_bytes=0, stack_bytes=0,
                       shared_bytes=0, threads=128, mma_types=(), conversions={}, code_bytes=1, compiler="x")  # fmt: skip


BOTH = (audit("k", "sm_90"), audit("k", "sm_103"))


def how(verdict: dict, seen: list, *, same: bool = True, minutes: float = 1.0) -> recheck.Recheck:
    """A re-check whose judge answers with `verdict` and writes down what it was asked."""
    workloads = [SimpleNamespace(name=f"tp8-b{rows}", axes={"tp": 8, "rows": rows}) for rows in (4, 1)]
    examined = SimpleNamespace(small=lambda: (), workloads=lambda: workloads,
                               cost=lambda one: Cost(bytes_read=one.axes["rows"], bytes_written=0, flops=1))  # fmt: skip
    limit = SimpleNamespace(tp=(8,), min_rows=1, max_rows=64, verify_width=(1,), weights="bf16", conv_state="bf16",
                            recurrent_state="fp32")  # fmt: skip
    contract = SimpleNamespace(op=lambda name: examined, envelope={"h200": limit})

    class Judge:
        def confirm(self, candidate, names):
            seen.append((candidate, names))
            return Verdict(**{"model": "alpha", "op": candidate.op, "status": Status.ACCEPTED, "candidate_digest": "a" * 64,
                              "contract_digest": "b" * 64, "judge_digest": "c" * 64, "config": {}, "checks": (),
                              "executor": "interpreter", "sandbox": "namespaces", "audits": BOTH} | verdict)  # fmt: skip

    @contextmanager
    def judge(contract):
        yield Judge()

    return recheck.Recheck(lambda name: contract, judge, lambda *of: same, minutes)


CHANGE = INSIDE | {STATEMENT: statement(INSIDE), "fasttrack.toml": INSIDE["fasttrack.toml"].replace(
    b'name = "alpha"', b'name = "alpha"\ncontract = "alpha"')}  # fmt: skip


def test_touched_ops_are_judged_again_at_their_least_workload(forge):
    seen = []
    result = gate(forge, CHANGE, again=how({}, seen))
    assert result.exit_code == 0 and {k: statuses(result)[k] for k in ("compile", "recheck")} == {
        "compile": "pass", "recheck": "pass"}  # fmt: skip
    ((candidate, names),) = seen
    assert names == ("tp8-b1",) and candidate.files == {KERNEL: INSIDE[KERNEL].decode()}


@pytest.mark.parametrize(
    ("verdict", "stage", "id", "code"),
    [
        ({"status": "rejected", "reason": "C1.error", "message": "off"}, "recheck", "recheck.rejected", 1),
        ({"status": "invalid", "reason": "x"}, "recheck", "recheck.invalid", 1),
        ({"status": "inconclusive", "reason": "x"}, "recheck", "recheck.inconclusive", 3),
        ({"audits": BOTH[:1]}, "compile", "compile.failed", 3),
        ({"audits": (), "status": "rejected", "reason": "compile.ptxas"}, "compile", "compile.failed", 1),
        ({"status": "not_run", "reason": "execution.needs_gpu"}, "recheck", "recheck.needs_gpu", 0),
    ],
)
def test_what_a_verdict_means(forge, verdict, stage, id, code):
    result = gate(forge, CHANGE, again=how(verdict, []))
    assert id in ids(result, stage) and result.exit_code == code
    assert ("recheck.needs_gpu" in {one.id for one in result.draft_only}) is (id == "recheck.needs_gpu")


def test_another_judge_than_the_bases_rules_nothing(forge):
    seen = []
    result = gate(forge, CHANGE, again=how({}, seen, same=False))
    assert (ids(result, "recheck"), result.exit_code, seen) == (["recheck.policy"], 3, [])


def test_out_of_time_and_out_of_tools_are_no_pass(forge):
    assert ids(gate(forge, CHANGE, again=how({}, [], minutes=-1)), "recheck") == ["recheck.out_of_time"]

    def missing(name):
        raise UserError("torch is not installed", "install it")

    lacking = recheck.Recheck(missing, None, lambda *of: True)
    result = gate(forge, CHANGE, again=lacking)
    assert (ids(result, "recheck"), result.exit_code) == (["recheck.unavailable"], 3)


WIDE = b'[[envelope]]\nhardware = "h200"\ntp = 8\nrows = [1, ROWS]\n'


def test_a_claim_beyond_the_contract_fails_the_recheck(forge):
    def change(rows):
        inside = CHANGE | {"fasttrack.toml": CHANGE["fasttrack.toml"] + WIDE.replace(b"ROWS", rows),
                           "dispatch/decode.toml": TABLE.replace(b"[1, 4]", b"[1, " + rows + b"]")}  # fmt: skip
        return inside | {STATEMENT: statement(inside)}

    assert gate(forge, change(b"64"), again=how({}, [])).exit_code == 0
    result = gate(forge, change(b"65"), again=how({}, []))
    assert (ids(result, "recheck"), result.exit_code) == (["recheck.claims"], 1)


def test_a_wider_claim_than_the_bases_is_for_people_where_nothing_is_rechecked(forge):
    base = forge.commit(tree(CHANGE))
    for rows, table, told in ((b"3", b"[1, 3]", False), (b"4", b"[1, 4]", False), (b"5", b"[1, 5]", True)):
        inside = CHANGE | {"fasttrack.toml": CHANGE["fasttrack.toml"] + WIDE.replace(b"ROWS", rows),
                           "dispatch/decode.toml": TABLE.replace(b"[1, 4]", table)}  # fmt: skip
        head = forge.commit(tree(inside), base)
        result = run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest)
        assert ("manifest.widened" in {one.id for one in result.draft_only}) is told and result.exit_code == 0


# Dispatch tables and the contract

TABLES = [
    ("missing", None),
    ("invalid", b"garbage ["),
    ("invalid", b"x = " + b"[" * 50_000),
    ("invalid", b"\xff"),
    ("invalid", b""),
    ("invalid", TABLE.replace(b"[1, 4]", b"[1, 3]")),
    ("invalid", TABLE + TABLE),
    ("kernel", TABLE.replace(b"k.py", b"unjudged.py")),
]


@pytest.mark.parametrize(("id", "table"), TABLES)
def test_a_table_that_leads_to_what_nobody_judged(forge, id, table):
    inside = {name: data for name, data in CHANGE.items() if name != "dispatch/decode.toml"}
    inside |= {"kernels/unjudged.py": b"X = 1\n"} | ({} if table is None else {"dispatch/decode.toml": table})
    result = gate(forge, inside)
    assert (ids(result, "dispatch"), result.exit_code) == ([f"dispatch.{id}"], 1)
    assert gate(forge, CHANGE | {"kernels/unjudged.py": b"X = 1\n"}).exit_code == 0
    # What stood so at the base is no reason against a change elsewhere.
    base = forge.commit(tree(inside))
    head = forge.commit(tree(inside | {"README.md": b"# alpha\n"}), base)
    again = run_gate(forge.path, base, head, "alpha", parse_manifest=parse_manifest)
    assert again.exit_code == 0 and "as at the base" in [r.message for s in again.stages if s.stage == "dispatch" for r in s.reasons][0]


FASTER = b'[[entry]]\nhardware = "h200"\ntp = 8\ntokens = 1\nrows = ROWS\n'


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, "is not there"), (FASTER.replace(b"ROWS", b"5"), "rows=5 lies outside the envelope"), (b"\xff", "not UTF-8"),
        (b"garbage [", "faster.toml"), (FASTER.replace(b"ROWS", b"4"), None),
    ],
)  # fmt: skip
def test_steps_beyond_the_envelope_are_not_called_faster(forge, table, words):
    decode = b'[decode]\nfactory = "factory.py"\nsources = ["factory.py"]\nfaster = "dispatch/faster.toml"\n'
    inside = CHANGE | {
        "fasttrack.toml": CHANGE["fasttrack.toml"] + decode + WIDE.replace(b"ROWS", b"4"), "factory.py": b"X = 1\n",
    } | ({} if table is None else {"dispatch/faster.toml": table})  # fmt: skip
    result = gate(forge, inside)
    found = [reason.message for stage in result.stages if stage.stage == "dispatch" for reason in stage.reasons]
    assert (found == []) if words is None else (len(found) == 1 and words in found[0]), found


def test_a_model_does_not_choose_its_exam(forge):
    other = CHANGE | {"fasttrack.toml": CHANGE["fasttrack.toml"].replace(b'contract = "alpha"', b'contract = "beta"')}
    result = gate(forge, other, again=how({}, seen := []))
    assert (ids(result, "manifest"), result.exit_code, seen) == (["manifest.contract"], 1, [])


def test_a_manifest_that_cannot_be_read_is_a_finding(forge):
    from fasttrack import model_dir

    for text in (b"x = " + b"[" * 50_000, b"x = " + b"9" * 9_999, b"x = \x00"):
        base = forge.commit(tree({"README.md": b"# alpha\n"}))
        head = forge.commit(tree(CHANGE | {"fasttrack.toml": text}), base)
        result = run_gate(forge.path, base, head, "alpha", parse_manifest=model_dir.parse_manifest)
        assert result.exit_code == 1 and ids(result, "manifest") == ["manifest.invalid"]


def test_what_is_not_confined_is_not_run(forge):
    seen = []
    result = gate(forge, CHANGE | {KERNEL: b"import os\n"}, again=how({}, seen))
    assert seen == [] and statuses(result)["recheck"] == "not_run" and result.exit_code == 1


def test_an_op_that_the_change_leaves_alone_is_not_judged_again():
    answers = recheck.stages(how({}, []), SimpleNamespace(), (), {}, {}, M)
    assert [one.status for one in answers] == [StageStatus.PASS] * 2


# Names that act


@pytest.mark.parametrize("name", [b"\xff.py", b"a\n::error::x.py", b"a\x1b[2K.py", b"evidence/statements/\xff.json",
                                  b"evidence/\xff.json.sig", b"evidence/attestations/\xff.sigstore.json", b"\xff.md"])  # fmt: skip
def test_a_hostile_name_is_told_and_neither_acts_nor_stops_the_gate(forge, name):
    base = forge.commit(tree({}))
    text = b"3x faster\n" if name.endswith(b".md") else b"import numpy\n"
    files = {key.encode(): value for key, value in tree(CHANGE).items()} | {M.encode() + b"/" + name: text}
    result = run_gate(forge.path, base, forge.commit(files, base), "alpha", parse_manifest=parse_manifest)
    assert result.exit_code == 1
    for told in (render_text(result), render_annotations(result), render_summary(result), render_sarif(result)):
        assert "\x1b" not in told and told.encode()
    assert not any(line.startswith("::") for line in render_text(result).splitlines())


# Nothing of the head runs in this process


def test_no_file_of_the_head_leaves_a_mark(forge, tmp_path):
    """Every file that Python, pytest, pip or git might pick up would write to `mark` when it is imported or run."""
    mark = tmp_path / "mark"
    text = f"import pathlib\npathlib.Path({str(mark)!r}).write_text('ran')\n".encode()
    names = ("__init__.py", "k.py", "kernels/k.py", "conftest.py", "sitecustomize.py", "setup.py", "decode.py", "factory.py",
             "tests/test_k.py", "evidence/statements/x.py", "report/x.py")  # fmt: skip
    seen = []
    result = gate(forge, CHANGE | dict.fromkeys(names, text), again=how({}, seen))
    assert result.exit_code == 1 and seen == [] and not mark.exists()
    exec(compile(text, "mark", "exec"))  # the fixture would leave one
    assert mark.exists()


@pytest.mark.slow
def test_a_head_that_acts_on_import_runs_in_the_sandbox_alone(tmp_path):
    """The real judge on a kernel whose import writes a file: it is rejected or refused, and nothing is written."""
    from fasttrack_validation.judge.judge import Judge
    from judging import candidate, model_of
    from toy_contract import Toy

    mark = tmp_path / "mark"
    text = f"import pathlib\npathlib.Path({str(mark)!r}).write_text('ran')\ndef launch(ctx, buffers, axes, config): pass\n"
    contract = Toy()
    with Judge(model_of(contract), device="cpu", timed=False) as judge:
        verdict = judge.confirm(candidate(text, contract.op), (contract.workloads()[0].name,))
    assert verdict.status is not Status.ACCEPTED and not mark.exists()
