"""Statements: their in-toto form, what they are about, when they go stale, and what is refused on reading."""

import hashlib
import json
from pathlib import Path

import pytest
from fasttrack import evidence
from fasttrack_validation.claims.cells import Measured, NotMeasured
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import Status, Verdict
from hypothesis import given
from hypothesis import strategies as st

FILES = {
    "__init__.py": b"",
    "kernels/__init__.py": b"",
    "kernels/k.py": b"from . import shared\nfrom .deep.tile import BLOCK\nfrom .. import layout\n",
    "kernels/shared.py": b"import torch\n",
    "kernels/deep/__init__.py": b"from .other import X\n",
    "kernels/deep/tile.py": b"BLOCK = 1\n",
    "kernels/deep/other.py": b"X = 1\n",
    "kernels/unrelated.py": b"Y = 1\n",
    "layout.py": b"Z = 1\n",
    "cuda/k.cu": b'#include "../cuda/k.cuh"\n#include <cuda.h>\n',
    "cuda/k.cuh": b"#pragma once\n",
}
CLOSURE = {
    "__init__.py",
    "kernels/__init__.py",
    "kernels/k.py",
    "kernels/shared.py",
    "kernels/deep/__init__.py",
    "kernels/deep/tile.py",
    "kernels/deep/other.py",
    "layout.py",
}
CONTRACT, JUDGE = "c" * 64, "d" * 64


def verdict(**change) -> Verdict:
    return Verdict(
        **{
            "model": "alpha",
            "op": "kda_decode",
            "status": Status.ACCEPTED,
            "candidate_digest": "a" * 64,
            "contract_digest": CONTRACT,
            "judge_digest": JUDGE,
            "config": {"block": 128},
            "checks": (),
            "executor": "interpreter",
            "sandbox": "namespaces",
        }
        | change
    )


def statement(files=FILES, **change) -> evidence.Statement:
    return evidence.state(
        evidence.Stage.JUDGE,
        verdict(**change),
        ["kernels/k.py"],
        files,
        toolchain={"triton": "3.9.0"},
        hardware={"cpu": "two cores"},
        software={"python": "3.11"},
        configuration={"seed": 7},
        performance=(
            evidence.PerformanceCell(
                hardware="H200",
                tp=8,
                bucket="1-4",
                candidate=NotMeasured(reason="no GPU"),
                stock=NotMeasured(reason="no GPU"),
            ),
        ),
    )


def test_closure_follows_imports_packages_and_includes():
    assert set(evidence.kernel_closure(["kernels/k.py"], FILES)) == CLOSURE
    assert set(evidence.kernel_closure(["cuda/k.cu"], FILES)) == {"cuda/k.cu", "cuda/k.cuh"}


def test_fused_ops_and_headers_can_be_stated():
    made = evidence.state(
        evidence.Stage.JUDGE, verdict(op="routing+experts"), ["cuda/k.cu", "cuda/k.cuh"], FILES, toolchain={}, hardware={},
        software={}, configuration={}, performance=(),
    )  # fmt: skip
    again = evidence.parse(made.canonical_json().encode(), "statement.json")
    assert again == made and again.predicate.op == "routing+experts"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (b"from .absent import x\n", "kernels/k.py:1: imports .absent.x"),
        (b"from ... import x\n", "leaves the model"),
        (b"def (", "does not parse"),
        (b"from . import nothing_here\n", None),
    ],
)
def test_closure_refuses_what_it_cannot_resolve(source, says):
    files = FILES | {"kernels/k.py": source}
    if says is None:  # the name may be defined by the package itself
        assert "kernels/__init__.py" in evidence.kernel_closure(["kernels/k.py"], files)
        return
    with pytest.raises(UserError, match=says):
        evidence.kernel_closure(["kernels/k.py"], files)


def test_statement_is_in_toto_v1(tmp_path: Path):
    path = tmp_path / "evidence" / "x.json"
    evidence.write(path, statement())
    data = json.loads(path.read_text())
    assert set(data) == {"_type", "subject", "predicateType", "predicate"}
    assert data["_type"] == "https://in-toto.io/Statement/v1"
    assert data["predicateType"] == "https://fasttrack.dev/evidence/judge/v1"
    digests = {subject["name"]: subject["digest"] for subject in data["subject"]}
    want = {name: {"sha256": hashlib.sha256(FILES[name]).hexdigest()} for name in CLOSURE}
    assert digests == want | {"contract": {"sha256": CONTRACT}, "judge": {"sha256": JUDGE}}
    assert evidence.read(path) == statement()
    assert path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["x.json"]


def test_statement_name():
    assert evidence.file_name(statement()) == "evidence/statements/kda_decode.judge.json"


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("old")
    monkeypatch.setattr(evidence.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        evidence.write(path, statement())
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def changes(files=FILES, contract=CONTRACT, judge=JUDGE) -> set[str]:
    result = evidence.freshness(statement(), files, contract, judge)
    return {change.subject for change in result.changes} if isinstance(result, evidence.Stale) else set()


def test_freshness():
    assert changes() == set()
    assert changes(FILES | {"kernels/unrelated.py": b"Y = 2\n", "report/x.md": b"x"}) == set()
    assert changes(FILES | {"kernels/deep/other.py": b"X = 2\n"}) == {"kernels/deep/other.py"}
    assert changes(contract="e" * 64) == {"contract"}
    assert changes(judge="e" * 64) == {"judge"}
    assert "kernels/k.py" in changes({name: data for name, data in FILES.items() if name != "kernels/k.py"})


def test_a_package_file_that_appears_makes_evidence_stale():
    bare = {name: data for name, data in FILES.items() if name != "__init__.py"}
    result = evidence.freshness(statement(bare), FILES, CONTRACT, JUDGE)
    assert result.changes == (evidence.Change(subject="__init__.py", old=None, new=hashlib.sha256(b"").hexdigest()),)
    assert str(result) == f"__init__.py absent -> {hashlib.sha256(b'').hexdigest()[:12]}"


def test_measured_cells_survive(tmp_path: Path):
    measured = Measured(microseconds=7.5, low=7.4, high=7.6, repetitions=5, method="graph", hardware="H200")
    cell = evidence.PerformanceCell(hardware="H200", tp=8, bucket="1", candidate=measured, stock=measured)
    one = statement()
    one = one.model_copy(update={"predicate": one.predicate.model_copy(update={"performance": (cell,)})})
    evidence.write(tmp_path / "x.json", one)
    assert evidence.read(tmp_path / "x.json").predicate.performance == (cell,)


def edited(change) -> bytes:
    data = json.loads(statement().canonical_json())
    change(data)
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d.pop("_type"), "_type"),
        (lambda d: d.update(_type="x"), "_type"),
        (lambda d: d.update(predicateType="x"), "predicateType"),
        (lambda d: d["predicate"].update(grade="attested"), "predicate.grade"),
        (lambda d: d["predicate"].update(op="other"), "op of the statement"),
        (lambda d: d["predicate"]["verdict"].update(contract_digest="0" * 64), "contract digest"),
        (lambda d: d["predicate"]["verdict"].update(judge_digest="0" * 64), "judge digest"),
        (lambda d: d["subject"].append(d["subject"][0]), "named twice"),
        (lambda d: d["subject"].__delitem__(slice(None)), "is missing"),
        (lambda d: d["subject"][0]["digest"].update(sha256="XYZ"), "sha256"),
        (lambda d: d["predicate"]["verdict"].update(status="perfect"), "status"),
        (lambda d: d["predicate"]["performance"][0].update(tp=0), "tp"),
        (lambda d: d["predicate"].update(op="../../core"), "predicate.op"),
        (lambda d: d["predicate"].update(kernels=["kernels/k.py\n```"]), "predicate.kernels.0"),
    ],
)
def test_reading_is_strict(change, says):
    with pytest.raises(UserError, match=says) as caught:
        evidence.parse(edited(change), "x.json")
    assert caught.value.what.startswith("x.json: ")
    assert evidence.parse(edited(lambda d: None), "x.json") == statement()


def test_json_is_strict():
    text = statement().canonical_json()
    for bad in (
        text.replace('"seed":7', '"seed":7,"seed":8'),
        text.replace('"seed":7', '"seed":NaN'),
        "",
        "[" * 100_000,
    ):
        with pytest.raises(UserError, match="not strict JSON"):
            evidence.parse(bad.encode(), "x.json")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_user_error(data):
    with pytest.raises(UserError):
        evidence.parse(data, "x.json")


def test_missing_file(tmp_path: Path):
    with pytest.raises(UserError, match="No such file"):
        evidence.read(tmp_path / "absent.json")
