"""`fasttrack validate --stage numerics`: runs, goes on, computes anew, refuses."""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fasttrack import run_directory
from fasttrack.cli import run
from fasttrack_validation.durable import held
from fasttrack_validation.errors import UserError

ROOT = Path(__file__).parents[2]
SMALL = ["--tokens", "8", "--tp", "1", "--replicas", "2", "--jobs", "1"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "220")
    return tmp_path


def validate(*arguments: str) -> int:
    return run(["validate", "kimi_k3", "--stage", "numerics", *arguments])


@pytest.mark.slow
def test_an_honest_path_passes_a_rung_and_its_records_give_the_same_verdict_again(home, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    wanted = ["--candidate", "plain:twin", "--rung", "greedy", "--out", str(home / "out"), *SMALL]
    # The other rungs were not asked for: that is no pass.
    assert validate(*wanted, "--json") == 3
    first = json.loads(capsys.readouterr().out)
    (rung,) = first["verdict"]["rungs"]
    assert (rung["rung"], rung["result"]) == ("greedy", "pass")
    assert {row["reason"] for row in first["verdict"]["not_run"]} == {"not asked for"}
    # Nothing is left to run, so this is quick; and nothing is run here at all.
    assert validate(*wanted, "--json") == 3
    assert json.loads(capsys.readouterr().out)["digest"] == first["digest"]
    figures = home / "figures"
    assert validate("--recompute", "--out", str(home / "out"), "--plot", str(figures), "--json") == 3
    again = json.loads(capsys.readouterr().out)
    assert again["digest"] == first["digest"]
    assert again["judged_by"] == again["verdict"]["subject"]["harness"]
    assert sorted(path.name for path in figures.iterdir()) == [
        "greedy-tp1-flips.svg", "greedy-tp1-layers.svg", "greedy-tp1-position.svg"
    ]
    assert validate("--recompute", "--out", str(home / "out")) == 3
    text, said = capsys.readouterr()
    assert "noise (A/A)" in text and "NOT RUN" in text and "Tokens that the candidate changes most" in text
    assert "another version" not in said
    with monkeypatch.context() as patch:
        patch.setattr("fasttrack_validation.numerics.whole_model.verdict.harness_digest", lambda: "f" * 64)
        assert validate("--recompute", "--out", str(home / "out")) == 3
        assert f"judged by this one ({'f' * 12})" in capsys.readouterr().err
    # The same command in another place gives the same records to the last bit.
    assert validate(*wanted[:-len(SMALL) - 1], str(home / "other"), *SMALL, "--json") == 3
    other = json.loads(capsys.readouterr().out)
    assert (other["digest"], other["verdict"]["evidence"]) == (first["digest"], first["verdict"]["evidence"])
    # Another setting must not go on with these records.
    assert validate(*wanted, "--seed", "1") == 2
    assert "another subject (settings differ: seed is 0, not 1)" in capsys.readouterr().err
    # Records that are no longer those of the verdict beside them are judged, and named.
    kept = home / "other" / "greedy-tp1-free.jsonl.gz"
    lines = gzip.decompress(kept.read_bytes())
    kept.write_bytes(gzip.compress(lines, 1))
    assert validate("--recompute", "--out", str(home / "other")) == 3
    assert "verdict.json is about other records: greedy-tp1-free.jsonl.gz is not what it names" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_no_process_and_goes_on_to_the_same_verdict(home, capsys):
    wanted = ["--candidate", "plain:twin", "--rung", "greedy", *SMALL, "--tokens", "120"]
    out, journal = home / "stopped", home / "stopped" / "greedy-tp1-free.jsonl"
    command = [sys.executable, "-m", "fasttrack", "validate", "kimi_k3", "--stage", "numerics", *wanted, "--out", str(out)]
    # Where the suite runs in the background, a shell has had SIGINT ignored, which a process inherits.
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") >= 4):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 3
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    assert journal.exists() and not (out / "verdict.json").exists()
    assert validate(*wanted, "--out", str(out), "--json") == 3
    went_on = json.loads(capsys.readouterr().out)
    assert validate(*wanted, "--out", str(home / "whole"), "--json") == 3
    assert json.loads(capsys.readouterr().out)["digest"] == went_on["digest"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rung", "sixth"], "the rungs are op, teacher_forced"), (["--tp", "3"], "use 1, 2, 4, 8, 16"),
        (["--tp", "a"], "write --tp 1,8,16"), (["--candidate", "mine"], "known: specialised, plain:twin"),
        (["--device", "tpu"], "name auto, cpu or cuda"), (["--layers", "0,1,3", "--device", "cpu"], "they need a GPU"),
        (["--layers", "0,1", "--faults"], "--layers says nothing about planted faults"),
        (["--checkpoint", "/nowhere"], "name the `checkpoint` directory"),
        (["--recompute", "--out", "/nowhere"], "name the --out of one"), (["--recompute", "--faults"], "--faults says nothing about a verdict from kept records"),
        (["--recompute", "--tokens", "64"], "--tokens says nothing about a verdict from kept records"),
        (["--recompute", "--candidate", "plain:twin"], "name the --out of one"),
        (["--workers", "8"], "--workers says nothing about the ladder in process"),
        (["--oracle-url", "http://127.0.0.1:1"], "--oracle-url says nothing about the ladder in process"),
        (["--faults", "--jobs", "2"], "--jobs says nothing about planted faults"),
    ],
)  # fmt: skip
def test_wrong_usage_says_what_to_do(home, capsys, arguments, says):
    assert validate(*arguments) == 2
    assert says in capsys.readouterr().err


def test_an_unknown_stage_is_refused(home, capsys):
    assert run(["validate", "kimi_k3", "--stage", "vibes"]) == 2
    assert "the stages are numerics" in capsys.readouterr().err


def test_only_records_are_cleared(home, capsys):
    (home / "out").mkdir()
    (home / "out" / "thesis.tex").write_text("years of work")
    assert validate("--fresh", "--out", str(home / "out"), *SMALL) == 2
    assert (home / "out" / "thesis.tex").exists()


@pytest.mark.parametrize("more", [["--fresh"], []], ids=["to be emptied", "as it is"])
def test_a_directory_with_something_else_is_left_alone(home, capsys, more):
    out = home / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    if more:
        (out / "run.json").write_text("{}")
    assert validate("--candidate", "plain:twin", *more, "--out", str(out), *SMALL) == 2
    assert "(thesis.tex)" in capsys.readouterr().err and (out / "thesis.tex").exists()


@pytest.mark.parametrize("wrong", [["--rung", "typo"], ["--candidate", "plain:nope"], ["--tp", "3"]])
def test_wrong_usage_empties_nothing(home, capsys, wrong):
    out = home / "out"
    out.mkdir()
    (out / "run.json").write_text("{}")
    assert validate("--candidate", "plain:twin", "--rung", "greedy", *SMALL, *wrong, "--fresh", "--out", str(out)) == 2
    assert (out / "run.json").exists()


def test_a_run_that_is_under_way_is_not_emptied(home, capsys):
    out = home / "out"
    out.mkdir()
    (out / "run.json").write_text("{}")
    with held(out):
        assert validate("--candidate", "plain:twin", "--fresh", "--out", str(out), *SMALL) == 2
    assert "another process runs the stage" in capsys.readouterr().err and (out / "run.json").exists()


def test_figures_that_cannot_be_drawn_are_named_before_anything_runs(home, capsys):
    (home / "file").write_text("")
    for place in (home / "file", home / "file" / "below"):
        assert validate("--candidate", "plain:twin", "--out", str(home / "out"), "--plot", str(place), *SMALL) == 2
        assert f"--plot {place}" in capsys.readouterr().err and not (home / "out").exists()


@pytest.mark.slow
def test_of_ops_alone_nothing_is_drawn_and_the_verdict_is_told(home, capsys):
    pytest.importorskip("matplotlib")
    small = ["--candidate", "plain:twin", "--rung", "op", "--out", str(home / "out"), *SMALL]
    assert validate(*small, "--plot", str(home / "figures")) == 3
    said = capsys.readouterr()
    assert "op" in said.out and "note: nothing is drawn" in said.err and list((home / "figures").iterdir()) == []


def test_a_comparison_of_servers_is_no_place_for_a_ladder(home, capsys):
    out = home / "out"
    out.mkdir()
    (out / "servers.jsonl").write_text("{}\n")
    for more in ([], ["--fresh"]):
        assert validate("--candidate", "plain:twin", "--out", str(out), *more, *SMALL) == 2
        assert "holds a comparison of servers" in capsys.readouterr().err
    assert (out / "servers.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--plot", "figures"], "--plot says nothing about two servers"),
        (["--rung", "op"], "--rung says nothing about two servers"),
        ([], "servers need prompts"),
        (["--tokens", "missing.jsonl"], "--tokens missing.jsonl: no such file"),
    ],
)
def test_what_says_nothing_of_servers_is_refused(home, capsys, monkeypatch, more, says):
    monkeypatch.chdir(home)
    assert validate("--stock-url", "http://127.0.0.1:1", "--candidate-url", "http://127.0.0.1:2", *more) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("there", ["notes.txt", "run.json"])
def test_servers_empty_nothing_that_they_did_not_write_and_nothing_before_they_answer(home, capsys, there):
    out, prompts = home / "out", home / "prompts.jsonl"
    prompts.write_text('{"id": "a", "tokens": [1, 2, 3]}\n')
    out.mkdir()
    (out / "servers.jsonl").write_text("{}\n")
    (out / there).write_text("years of work")
    urls = ["--stock-url", "http://127.0.0.1:1", "--candidate-url", "http://127.0.0.1:2"]
    assert validate(*urls, "--tokens", str(prompts), "--out", str(out), "--fresh") == 2
    assert {path.name for path in out.iterdir()} == {"servers.jsonl", there}
    with pytest.raises(UserError, match=re.escape(f"({there})")):
        run_directory.own(out, ("servers.jsonl", "verdict.json"), begun="servers.jsonl", fresh=True)
    assert (out / there).read_text() == "years of work"


def test_a_candidate_is_known_whatever_the_rung(home, capsys):
    assert validate("--candidate", "plain:nope", "--rung", "long_context", "--steps", "1", "--context", "256") == 2
    assert "known: specialised, plain:twin, plain:decay_bf16" in capsys.readouterr().err


def test_drawn_weights_are_named_by_their_layers(home, capsys):
    kept = home / "h200-layers"
    shutil.copytree(ROOT / "models/kimi_k3/evidence/numerics/h200-layers", kept)
    assert validate("--recompute", "--out", str(kept)) == 0
    shown = capsys.readouterr().out
    assert "layers 0, 1, 3 with drawn weights" in shown
    # The same tokens in both forms.
    assert validate("--recompute", "--out", str(kept), "--json") == 0
    worst = json.loads(capsys.readouterr().out)["worst"]
    assert len(worst) == 5 and worst[0]["context"] == " drum in the castle was white. Ivo loses the white drum"
    assert all(f"{one['change']:.3g}" in shown and repr(one["context"])[1:-1] in shown for one in worst)
