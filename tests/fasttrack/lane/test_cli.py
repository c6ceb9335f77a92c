"""The commands as a person types them, in processes of their own where that matters."""

import json
import os
import subprocess
import sys

import lane_fakes as fakes
import pytest
from test_packed import recorded

from fasttrack import cli, services, verdict_cache
from fasttrack.commands import pack_files
from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import CheckResult, Outcome, Status

KEPT_CONFIG = {"BLOCK": 32, "num_warps": 4, "flip": False}


@pytest.fixture
def toy(checkout, monkeypatch):
    """Runs commands in the toy checkout with a fake judge; gives it, so that a test can set it up."""
    judge = fakes.Judge()
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(services, "default", lambda **_: fakes.services(judge))
    monkeypatch.setattr(services, "contract", lambda name: fakes.Contract())
    return judge


def process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "fasttrack", *arguments], capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


COMMANDS = ("propose", "evaluate", "record", "submit", "gate", "decide", "report", "doctor", "models", "ops", "mcp", "status", "history", "explain")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    assert cli.run([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Example: `fasttrack {command}" in text and "--json" in text


def test_help_starts_without_anything_heavy():
    code = "import sys; from fasttrack import cli; cli.run(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = done.stderr
    assert "propose" in done.stdout
    for heavy in ("torch", "triton", "pydantic", "numpy", "optuna", "git", "jinja2", "rich.console"):
        assert f"'{heavy}'" not in loaded


def test_usage_errors_exit_with_2(capsys):
    for arguments in (["propos"], ["propose"], ["propose", "toy", "--rounds", "0"], ["propose", "toy", "--what"]):
        assert cli.run(arguments) == 2
    assert "Usage" in capsys.readouterr().err


def test_user_errors_are_two_lines_on_standard_error_or_json(toy, capsys):
    assert cli.run(["ops", "nothing"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 2 and "no model 'nothing'" in err
    assert cli.run(["ops", "nothing", "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == "" and set(json.loads(out)["error"]) == {"what", "how"}


def test_an_unexpected_exception_is_shown_and_says_where_to_report_it(toy, capsys, monkeypatch):
    def fault(**_):
        raise ZeroDivisionError("nobody expected this")

    monkeypatch.setattr(services, "default", fault)
    assert cli.run(["propose", "toy"]) == 3
    err = capsys.readouterr().err
    assert "ZeroDivisionError: nobody expected this" in err and "Please report it" in err.splitlines()[-1]


def test_propose_says_first_which_agent_and_why(toy, capsys):
    assert cli.run(["propose", "toy", "--rounds", "2", "--seed", "1", "--hardware", "h200"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "agent search: the default agent; it needs no model endpoint"
    assert any("stock path not measured: no GPU here" in line for line in out)
    assert any(line.startswith("branch: fasttrack/toy/copy/") for line in out)


def test_json_is_all_that_standard_output_holds(toy, capsys):
    assert cli.run(["propose", "toy", "--rounds", "2", "--seed", "1", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["exit_code"] == 0 and outcome["rounds"] == 2 and len(outcome["commit"]) == 40


def test_ctrl_c_then_resume(toy, capsys):
    toy.interrupt_after = 2
    assert cli.run(["propose", "toy", "--rounds", "3", "--seed", "1"]) == 3
    assert "fasttrack propose toy --resume" in capsys.readouterr().err
    toy.interrupt_after = None
    assert cli.run(["propose", "toy", "--resume"]) == 0
    assert cli.run(["propose", "toy", "--resume"]) == 2
    assert cli.run(["propose", "toy", "some-run"]) == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(None, 0), (Status.REJECTED, 1), (Status.INCONCLUSIVE, 3), (Status.INVALID, 3), (Status.NOT_RUN, 3)],
)
def test_evaluate(toy, capsys, checkout, status, code):
    toy.status = lambda candidate: status
    kernel = str(checkout / "models/toy/kernels/copy.py")
    command = ["evaluate", "toy", "--op", "copy", "--candidate", kernel]
    assert cli.run(command) == code
    out = capsys.readouterr().out
    assert out.startswith(status or "accepted") and ("off by 3" in out) == (status is not None)
    # By hand from the default configuration: |32 - 16| + 4 warps above 100.
    assert ("cells not measured: no GPU here" in out) == (status is None)
    assert ("h200/tp8-r1: modelled, not measured: 120.00 us" in out) == (status is None)
    assert cli.run([*command, "--json", "--config", '{"BLOCK": 16, "num_warps": 1, "flip": false}']) == code
    assert json.loads(capsys.readouterr().out)["config"]["BLOCK"] == 16


def test_a_verdict_is_kept_and_said_to_be(toy, capsys, checkout):
    kernel = str(checkout / "models/toy/kernels/copy.py")
    command = ["evaluate", "toy", "--op", "copy", "--candidate", kernel]

    def asked(*more):
        """(exit code, whether it came from the cache, what was judged so far)"""
        code = cli.run([*command, "--json", *more])
        answer = json.loads(capsys.readouterr().out)
        assert answer["status"] == "accepted"
        return code, answer["cached"], len(toy.calls)

    assert asked() == (0, False, 1)
    assert asked() == (0, True, 1)
    assert asked("--fresh") == (0, False, 2)
    assert cli.run(command) == 0 and "from the cache of verdicts; `--fresh`" in capsys.readouterr().out
    assert asked("--config", '{"BLOCK": 64, "num_warps": 1, "flip": false}') == (0, False, 3)
    toy.device = {"name": "NVIDIA H200", "driver": 13000}
    assert asked() == (0, False, 4)
    toy.device = {"name": "NVIDIA H200", "driver": 13010}
    assert asked() == (0, False, 5)
    assert asked() == (0, True, 5)


def test_a_damaged_entry_is_judged_again(toy, capsys, checkout, tmp_path):
    command = ["evaluate", "toy", "--op", "copy", "--candidate", str(checkout / "models/toy/kernels/copy.py")]
    assert cli.run(command) == 0
    (entry,) = (tmp_path / "state/verdicts").iterdir()
    good = entry.read_bytes()
    for damaged in (good[:100], b"", good.replace(b"accepted", b"rejected"), b"[]", b"{}", b"\xff"):
        assert damaged != good
        entry.write_bytes(damaged)
        before = len(toy.calls)
        assert cli.run(command) == 0 and len(toy.calls) == before + 1
        assert json.loads(entry.read_bytes()) == json.loads(good)
    other = entry.with_name("0" * 64 + ".json")
    other.write_bytes(good)
    assert verdict_cache.read(other.parent, "0" * 64) is None  # an entry under another's name
    assert verdict_cache.read(entry.parent, entry.stem).status is Status.ACCEPTED


@pytest.mark.parametrize("status", [Status.NOT_RUN, Status.INVALID, Status.INCONCLUSIVE])
def test_what_may_be_otherwise_tomorrow_is_not_kept(toy, checkout, status):
    toy.status = lambda candidate: status
    command = ["evaluate", "toy", "--op", "copy", "--candidate", str(checkout / "models/toy/kernels/copy.py")]
    assert [cli.run(command), cli.run(command), len(toy.calls)] == [3, 3, 2]


def test_an_accepted_verdict_with_a_gap_is_not_kept():
    candidate = Candidate(op="copy", entry="k.py", files={"k.py": ""}, config=KEPT_CONFIG)
    verdict = fakes.Judge().screen(candidate)
    assert verdict_cache.keeps(verdict) and verdict_cache.keeps(verdict, "gb300")
    assert not verdict_cache.keeps(verdict, "h200")  # it was to be timed there, and was not
    gap = CheckResult(check="C15", title="tools", outcome=Outcome.NOT_RUN, reason="sanitizer.not_run")
    assert not verdict_cache.keeps(verdict.model_copy(update={"checks": (*verdict.checks, gap)}))


def test_the_lane_judges_afresh(toy, checkout, capsys):
    kernel = str(checkout / "models/toy/kernels/copy.py")
    assert cli.run(["evaluate", "toy", "--op", "copy", "--candidate", kernel]) == 0
    before = len(toy.calls)
    cli.run(["submit", "toy", "--op", "copy", "--candidate", kernel, "--branch", "mine"])
    assert "screen" in {stage for stage, *_ in toy.calls[before:]}


def test_a_file_alone_is_judged_with_the_other_files_of_its_op(toy, checkout, tmp_path):
    kernel = tmp_path / "mine.py"
    kernel.write_text("# mine\n" + fakes.KERNEL)
    judged = []
    toy.status = judged.append
    assert cli.run(["evaluate", "toy", "--op", "copy", "--candidate", str(kernel)]) == 0
    (candidate,) = judged
    assert candidate.entry == "kernels/copy.py"
    assert candidate.files == {"kernels/copy.py": kernel.read_text(), "kernels/extra.py": ""}


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"a": [1]}', '{"a": null}', '{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000]
)
def test_a_bad_config_is_a_user_error(toy, capsys, checkout, text):
    kernel = str(checkout / "models/toy/kernels/copy.py")
    assert cli.run(["evaluate", "toy", "--op", "copy", "--candidate", kernel, "--config", text]) == 2
    assert "--config is not" in capsys.readouterr().err


def test_submit(toy, capsys, checkout, tmp_path):
    kernel = tmp_path / "mine.py"
    kernel.write_text("# mine\n" + fakes.KERNEL)
    assert cli.run(["submit", "toy", "--op", "copy", "--candidate", str(kernel), "--branch", "mine"]) == 0
    assert fakes.git(checkout, "show", "mine:models/toy/kernels/copy.py").startswith("# mine")
    assert cli.run(["submit", "toy", "--op", "copy", "--candidate", str(kernel), "--branch", "mine"]) == 2
    assert "branch 'mine' exists already" in capsys.readouterr().err
    assert cli.run(["submit", "toy", "--op", "copy", "--candidate", str(tmp_path / "none.py")]) == 2


def test_report_models_and_ops(toy, capsys, checkout):
    assert cli.run(["report", "toy"]) == 2
    page = checkout / "models/toy/report/copy.md"
    page.parent.mkdir()
    page.write_text("# a page\n")
    capsys.readouterr()
    assert cli.run(["report", "toy"]) == 0
    assert "# a page" in capsys.readouterr().out
    assert cli.run(["models"]) == 0
    assert capsys.readouterr().out == "toy: Toy (owner Ada, review by 2030-01-01)\n"
    assert cli.run(["models", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "toy"
    assert cli.run(["ops", "toy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copy"]["workloads"] == ["tp8-r1", "tp8-r4"]


def test_version_and_module_entry():
    done = process("--version")
    assert done.returncode == 0 and done.stdout.startswith("fasttrack ")
    assert process("propose").returncode == 2


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_a_missing_package_is_a_message_not_a_traceback(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')")
    done = process("--help", PYTHONPATH=str(tmp_path))
    if name == "rich":
        assert done.returncode == 0
        return
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 2 and "typer" in done.stderr


def test_an_old_python_gets_a_message(monkeypatch, capsys):
    from fasttrack import __main__ as entry

    monkeypatch.setattr(entry.sys, "version_info", (3, 10, 0))
    with pytest.raises(SystemExit) as stop:
        entry.main()
    assert stop.value.code == 2 and "needs Python 3.11" in capsys.readouterr().err


def test_a_design_space_is_recorded_at_the_asked_workloads_and_the_tables_configuration_at_all(toy, tmp_path, capsys):
    asked = []

    def record(candidate, names, unseen):
        asked.append((candidate.config, names, unseen))
        stopped = CheckResult(check="compile", title="", outcome=Outcome.FAIL, reason="compile.failed", message="too wide")
        fields = {"stopped": (stopped,)} if candidate.config["BLOCK"] == 128 else {}
        return recorded({}, candidate=candidate, **fields)

    toy.record = record
    out = tmp_path / "packs"
    assert cli.run(["record", "toy", "--op", "copy", "--space", "--at", "tp8-r1", "-o", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    # Four blocks, three warps, less the excluded pair; the one of the table last, and whole.
    assert len(asked) == len(facts) == 11
    assert asked[-1] == (KEPT_CONFIG, None, 1) and {tuple(names) for _, names, _ in asked[:-1]} == {("tp8-r1",)}
    # What does not compile is told and not kept.
    assert {fact["config"]["BLOCK"] for fact in facts if fact["not_kept"]} == {128}
    kept = [pack_file.read(path).candidate.config for path in pack_files([out])]
    wanted = [fact["config"] for fact in facts if not fact["not_kept"]]
    assert len(kept) == len(wanted) and all(config in wanted for config in kept)
    assert pack_files([next(out.iterdir())]) == (next(out.iterdir()),)


def test_what_does_not_go_with_a_recorded_space_is_refused(toy, tmp_path, capsys):
    out, file = ["-o", str(tmp_path / "packs")], ["--candidate", "models/toy/kernels/copy.py"]
    for arguments in (out, [*out, *file, "--space"], [*out, *file, "--at", "tp8-r1"], [*out, "--space", "--config", "{}"]):
        assert cli.run(["record", "toy", "--op", "copy", *arguments]) == 2
    assert "--config goes with --candidate" in capsys.readouterr().err
    for arguments in (["--space", "--table"], ["--table", "--at", "tp8-r1"], ["--space", "--op", "copy", "--hardware", "h200"], ["--space"]):
        assert cli.run(["record", "toy", *out, *arguments]) == 2
    assert "name one op with --op" in capsys.readouterr().err
