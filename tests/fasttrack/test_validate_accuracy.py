"""`fasttrack validate --stage accuracy` between two local servers: verdicts, guards, going on, the record and the report."""

import json
import subprocess
import sys
import threading
import time

import exam_server as plays
import pytest
import recorded_answers as recorded
from model_server import refuse

from fasttrack.cli import run
from fasttrack.report import model_level
from fasttrack_validation.errors import UserError

pytest.importorskip("lm_eval", reason="pip install 'fasttrack[exams]'")

EXAM = recorded.exam("sample_choices")
LONG = recorded.exam("mrcr_synthetic", needles=(2,), words=(1000,), items_each=8)


@pytest.fixture
def place(tmp_path, capsys):
    """Two frozen exams, with plans in a directory beside them."""
    exams = tmp_path / "exams"
    assert run(["exam", "build", "sample_choices", "-o", str(exams / "choices")]) == 0
    assert run(["exam", "build", "mrcr_synthetic", "--needles", "2", "--words", "1000", "-o", str(exams / "mrcr")]) == 0
    capsys.readouterr()
    return tmp_path


def plan(place, name, *more, margin="30", looks="2,6"):
    exam = {"choices": "sample_choices", "mrcr": "mrcr_synthetic"}[name]
    out = place / f"{exam}.toml"
    arguments = ["exam", "plan", str(place / "exams" / name), "--margin", margin, "--looks", looks, "--temperature", "0.7",
                 "--max-tokens", "512", "--stop", "<a>", "-o", str(out), *more]  # fmt: skip
    assert run(arguments) == 0
    return out


def validate(place, plans, baseline, candidate, *more):
    arguments = ["validate", "kimi_k3", "--stage", "accuracy", "--exams", str(place / "exams"), "-o", str(place / "out")]
    arguments += [part for one in plans for part in ("--plan", str(one))]
    return run([*arguments, "--stock-url", baseline.url, "--candidate-url", candidate.url.removesuffix("/v1"), *more])


def servers(exam, candidate_wrong=0, kernels={"kda_decode": 0}):  # noqa: B006
    candidate = plays.server(plays.sits(exam, candidate_wrong), dict(kernels))

    def counting(exchange):
        for name in candidate.counters["kernels"]:
            candidate.counters["kernels"][name] += 1
        plays.sits(exam, candidate_wrong)(exchange)

    candidate.script = [counting]
    return plays.server(plays.sits(exam, 0), {}), candidate


def test_identical_arms_pass_at_the_first_look(place, capsys):
    plans = [plan(place, "choices", margin="60")]
    capsys.readouterr()
    with servers(EXAM)[0] as stock, servers(EXAM)[1] as fast:
        assert validate(place, plans, stock, fast) == 0
        text = capsys.readouterr().out
        assert "sample_choices: pass" in text and "accuracy: pass" in text
        assert "aime25: not run" in text and "gpqa_diamond: not run" in text
        assert len(stock.requests) == len(fast.requests) == 8 * 2
        # The same command again asks nothing, and says the same.
        assert validate(place, plans, stock, fast) == 0
        assert len(stock.requests) == 8 * 2
    record = json.loads((place / "out/accuracy.json").read_text())
    (exam,) = record["outcome"]["exams"]
    assert exam["look"] == 2 and exam["result"]["verdict"] == "pass"
    assert exam["candidate"]["cost"]["answers"] == 16 and exam["candidate"]["cost"]["output_tokens"] > 1600
    answers = (place / "out" / exam["candidate"]["file"]).read_text().splitlines()
    assert json.loads(answers[0])["kernels"] == {"kda_decode": 16} and len(answers) == 17
    report = (place / "out/accuracy.md").read_text()
    assert "| sample_choices | pass | +0.00 |" in report and "within one standard error" not in report.splitlines()[2]


def test_a_worse_arm_fails_and_an_unclear_one_takes_every_planned_look(place, capsys):
    with servers(EXAM)[0] as stock, servers(EXAM, 100)[1] as fast:
        assert validate(place, [plan(place, "choices")], stock, fast) == 1
        assert "sample_choices: fail" in capsys.readouterr().out
    (place / "sample_choices.toml").unlink()
    with servers(EXAM)[0] as stock, servers(EXAM, 30)[1] as fast:
        code = validate(place, [plan(place, "choices", looks="2,3")], stock, fast, "-o", str(place / "second"))
        text = capsys.readouterr().out
        assert code == 3 and "sample_choices: inconclusive" in text
        assert "more repeats an arm settle it" in text or "it takes more items" in text
        assert len(fast.requests) == 8 * 3


def test_a_candidate_whose_kernels_did_not_run_is_invalid(place, capsys):
    with servers(EXAM)[0] as stock, plays.server(plays.sits(EXAM), {}) as fast:
        assert validate(place, [plan(place, "choices")], stock, fast) == 1
        assert "kernels_inactive" in capsys.readouterr().out
    with plays.server(plays.sits(EXAM), {"kda_decode": 4}) as stock, plays.server(plays.sits(EXAM)) as fast:
        assert validate(place, [place / "sample_choices.toml"], stock, fast, "-o", str(place / "second"), "--json") == 1
    found = json.loads(capsys.readouterr().out)["outcome"]["exams"][0]["result"]
    assert {one["reason"] for one in found["findings"]} == {"kernels_inactive", "acceptance_forced"}
    assert found["paired"] is None


def test_a_family_is_decided_together(place, capsys):
    together = ("--together", "sample_choices,mrcr_synthetic")
    plans = [plan(place, "choices", *together), plan(place, "mrcr", *together)]

    def both(exchange):
        known = [m.model_dump() for item in LONG.items for m in item.messages[-1:]]
        plays.sits(LONG if exchange.body["messages"][-1] in known else EXAM)(exchange)

    with plays.server(both, {}) as stock, plays.server(both, {"k": 1}) as fast:
        assert validate(place, plans[:1], stock, fast) == 2
        assert "decided together with mrcr_synthetic" in capsys.readouterr().err
        code = validate(place, plans, stock, fast)
        # The counter stood still: the candidate's kernels were not launched.
        assert code == 1 and "k was never launched" in capsys.readouterr().out
    baseline, candidate = servers(EXAM)
    candidate.script = [lambda exchange: (candidate.counters["kernels"].update(kda_decode=exchange.number), both(exchange))]
    baseline.script = [both]
    with baseline, candidate:
        assert validate(place, plans, baseline, candidate, "-o", str(place / "second")) == 0
        assert "together (each): pass" in capsys.readouterr().out


def test_a_plan_is_held_to_the_contract(place, capsys):
    path = plan(place, "choices")
    path.write_text(path.read_text().replace("sample_choices", "aime25"))
    with servers(EXAM)[0] as stock, servers(EXAM)[1] as fast:
        assert validate(place, [path], stock, fast) == 2
        assert "a margin of 30 points is planned, the contract allows 3" in capsys.readouterr().err
        path.write_text(path.read_text().replace("margin_points = 30.0", "margin_points = 3.0"))
        assert validate(place, [path], stock, fast) == 2
        assert "8 items are planned, the contract pins 30" in capsys.readouterr().err
        assert stock.requests == fast.requests == []


def test_a_server_that_fails_leaves_no_verdict(place, capsys, monkeypatch):
    monkeypatch.setattr("fasttrack_validation.accuracy.asking.LONGEST_WAIT", 0.01)
    plans = [plan(place, "choices")]
    with servers(EXAM)[0] as stock, plays.server(refuse(500), {"k": 1}) as fast:
        assert validate(place, plans, stock, fast) == 2
        told = capsys.readouterr().err
        assert "answers 500" in told and "every answer that came is kept" in told
    assert not (place / "out/accuracy.json").exists()


@pytest.mark.parametrize("command", ["validate", "sit"])
def test_a_stopped_run_says_where_it_goes_on(place, command):
    """SIGTERM, while both servers are silent: exit 3, the line that says how to go on, and a log that shows it waited."""
    path, silent = plan(place, "choices"), threading.Event()
    with plays.server(lambda exchange: silent.wait(3600), {}) as stock, servers(EXAM)[1] as fast:
        arguments = ["exam", "sit", str(place / "exams/choices"), "--plan", str(path), "--server", stock.url, "-o",
                     str(place / "out")]  # fmt: skip
        if command == "validate":
            arguments = ["validate", "kimi_k3", "--stage", "accuracy", "--exams", str(place / "exams"), "--plan", str(path),
                         "--stock-url", stock.url, "--candidate-url", fast.url, "-o", str(place / "out")]  # fmt: skip
        process = subprocess.Popen([sys.executable, "-m", "fasttrack", *arguments], stderr=subprocess.PIPE, text=True)
        while not stock.requests:
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        _, told = process.communicate(timeout=120)
        silent.set()
    assert process.returncode == 3 and "stopped" in told
    assert f"kept in {place / 'out'}: the same command goes on there" in told
    assert "sample_choices, baseline: 0 of " in told


def test_what_the_stage_keeps_is_what_the_report_reads(place):
    """The record, filed as evidence by hand or by a kit, is the report's section: d, SE and bound as they were judged."""
    plans = [plan(place, "choices", looks="2,3")]
    with servers(EXAM)[0] as stock, servers(EXAM, 30)[1] as fast:
        assert validate(place, plans, stock, fast) == 3
    kept = (place / "out/accuracy.json").read_bytes()
    (shown,) = model_level.exam_results({"evidence/accuracy/nano.json": kept, "evidence/accuracy/accuracy.md": b"no record"})
    (judged,) = json.loads(kept)["outcome"]["exams"]
    result = judged["result"]
    paired, decision = result["paired"], result["decision"]
    assert (shown.source, shown.exam, shown.verdict) == ("evidence/accuracy/nano.json", "sample_choices", "inconclusive")
    assert shown.margin == 0.3 and (shown.paired.items, shown.paired.repeats) == (8, 3)
    assert (shown.paired.difference, shown.paired.se) == (paired["difference"], paired["se"]) and paired["difference"] < 0
    assert (shown.decision.lower, list(shown.truncated)) == (decision["lower"], result["truncated"])
    for part in (f"d {100 * paired['difference']:+.2f} points", f"SE {100 * paired['se']:.2f}",
                 f"lower bound {100 * decision['lower']:+.2f}, margin 30.00"):  # fmt: skip
        assert part in shown.standing
    # One that a guard refused has no figure, in the record and in the report.
    with servers(EXAM)[0] as stock, plays.server(plays.sits(EXAM), {"kda_decode": 1}) as fast:
        assert validate(place, plans, stock, fast, "-o", str(place / "refused")) == 1
    (shown,) = model_level.exam_results({"evidence/accuracy/a.json": (place / "refused/accuracy.json").read_bytes()})
    assert shown.verdict == "invalid" and shown.standing == "no figure: a guard did not hold"
    broken = json.loads(kept)
    del broken["outcome"]["exams"][0]["plan"]["rule"]["margin_points"]
    with pytest.raises(UserError, match="is no record of stage accuracy"):
        model_level.exam_results({"evidence/accuracy/a.json": json.dumps(broken).encode()})


def test_an_arm_sits_alone_for_an_aa_run(place, capsys):
    path = plan(place, "choices", looks="6", margin="60")
    for name in ("first", "second"):
        with plays.server(plays.sits(EXAM, 30), {}) as server:
            arguments = ["exam", "sit", str(place / "exams/choices"), "--plan", str(path), "--server", server.url,
                         "--run", name, "-o", str(place / name)]  # fmt: skip
            assert run(arguments) == 0
    capsys.readouterr()
    assert run(["exam", "calibrate", str(place / "exams/choices"), "--plan", str(path), "--first",
                str(place / "first/baseline.jsonl"), "--second", str(place / "second/baseline.jsonl")]) == 0  # fmt: skip
    assert "identical arms pass" in capsys.readouterr().out
