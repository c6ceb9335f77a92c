"""`fasttrack trace`: what it prints, what it writes, how it exits."""

import json
from pathlib import Path

import pytest
import trace_files
from long_tests import long

from fasttrack.cli import run

KERNEL = str(Path(__file__).parents[2] / "models/kimi_k3/kernels/kda_decode.py")
EXPORT = ["trace", "export", "kimi_k3", "--op", "kda_decode", "--tp", "16", "--workload", "tp16-b1"]


def test_export_then_check(tmp_path, capsys):
    out = tmp_path / "set"
    assert run([*EXPORT, "--out", str(out), "--candidate", KERNEL, "--config", '{"num_warps": 2}', "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert sorted(told["files"]) == files and len(files) == 5
    (path,) = (out / "solutions").rglob("*.json")
    solution = json.loads(path.read_text())
    assert {source["path"] for source in solution["sources"]} == {"run.py", "adapter.py", "candidate/kda_decode.py"}
    assert "'num_warps': 2" in solution["sources"][0]["content"]
    assert "'structure': " in solution["sources"][0]["content"]  # the design space's defaults are filled in
    assert run(["trace", "check", *map(str, out.rglob("*.json*"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.startswith("ok   ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--tp", "3"], "no workload at TP 3"),
        (["--workload", "b1"], "no workload 'b1'"),
        (["--config", "{}"], "--config without --candidate"),
        (["--op", "mla_value"], "gaps that no axis controls"),
        (["--candidate", "nowhere.py"], "cannot read the candidate"),
        (["--distribution", "padded_nan"], "not finite everywhere"),
    ],
)
def test_export_refuses_and_writes_nothing_that_looks_whole(tmp_path, capsys, arguments, what):
    assert run([*EXPORT, "--out", str(tmp_path / "set"), *arguments]) == 2
    assert what in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json*"))


def test_check_names_what_does_not_fit(tmp_path, capsys):
    good, workloads, side = trace_files.rmsnorm(tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(trace_files.RMSNORM | {"colour": "red"}))
    assert run(["trace", "check", str(good), str(workloads), str(bad), str(side)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ok   {good}: definition rmsnorm_h256"
    assert lines[1] == f"ok   {workloads}: 2 traces"
    assert lines[2].startswith(f"FAIL {bad}:1: colour: is not a known key")
    assert lines[4] == f"FAIL {side}: is no definition, no solution and no .jsonl file of traces"
    assert run(["trace", "check", str(bad), "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert result["kind"] is None and "colour" in result["error"]["what"]


def test_import_describes(tmp_path, capsys):
    definition, workloads, side = map(str, trace_files.gemm(tmp_path))
    arguments = ["trace", "import", definition, "--workloads", workloads, "--judging", side]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert "static B fp16 [32, 64]" in text and "not examined, neighbours: no batch axis is declared" in text
    assert run([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["workloads"]["m5"] == {"tp": 1, "M": 5, "N": 32, "K": 64, "rows": 1}
    (tmp_path / "judging.toml").write_text("static = []\n")
    assert run(arguments) == 2
    assert "judging.toml:1: flops: is missing" in capsys.readouterr().err


@long
def test_import_judges(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "home"))
    definition, workloads, side = map(str, trace_files.rmsnorm(tmp_path))
    kernel = tmp_path / "kernel.py"
    arguments = ["trace", "import", definition, "--workloads", workloads, "--judging", side, "--candidate", str(kernel)]
    for text, code, status in (
        (trace_files.RMSNORM_KERNEL, 0, "accepted"),
        (trace_files.RMSNORM_KERNEL.replace("+ 1e-6", "+ 1e-4"), 1, "rejected"),
    ):
        kernel.write_text(text)
        assert run([*arguments, "--json"]) == code
        assert json.loads(capsys.readouterr().out)["status"] == status
