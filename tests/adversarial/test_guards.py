"""With its guard switched off an exploit is accepted: each sample really depends on the guard that it names.

That it is rejected with its guard on is in test_exploits.py.

And the exam itself is held to account: a contract that would pass trivial answers rules nothing.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from guards import SWITCHES
from judged import judges, skip_compiling
from judging import candidate, model_of
from samples import HONEST, SAMPLES
from toy_contract import KERNEL, Toy

from fasttrack_validation import digests
from fasttrack_validation.judge import judge as judging_module
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.ruling import Ruling
from fasttrack_validation.judge.verdict import CheckResult, Outcome, Status

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def bench(tmp_path_factory, kept_sandboxes):
    with judges(tmp_path_factory.mktemp("kernels")) as made:
        yield made


GUARDED = {sample.guard: sample.name for sample in SAMPLES.values() if sample.guard}


def test_every_switch_has_a_sample():
    assert set(GUARDED) == set(SWITCHES)


@pytest.mark.parametrize("guard", SWITCHES)
def test_without_its_guard_the_exploit_is_accepted(bench, guard, monkeypatch):
    skip_compiling(monkeypatch)
    SWITCHES[guard](monkeypatch)
    found = bench.on(SAMPLES[GUARDED[guard]])
    assert found.status is Status.ACCEPTED, (GUARDED[guard], found.reason, found.message)


@pytest.fixture
def of(bench, monkeypatch):
    """The toy's judge, as if it had been started for another exam of the same op."""

    def made(contract):
        judge = bench.judge("accumulate")
        monkeypatch.setattr(judge, "model", model_of(contract))
        monkeypatch.setattr(judge, "_sane", {})
        return judge

    return made


class Lax(Toy):
    """An exam that passes whatever is finite."""

    @property
    def comparisons(self):
        return tuple(c.model_copy(update={"floor": 1e9}) for c in super().comparisons)


def test_without_task_sanity_zeros_are_accepted_by_a_lax_contract(of, monkeypatch):
    """C12."""
    skip_compiling(monkeypatch)
    zeros = candidate(SAMPLES["constant inside the tolerance"].text, "accumulate")
    found = of(Lax()).screen(zeros)
    assert (found.status, found.reason) == (Status.INVALID, "task.insane")
    sane = CheckResult(check="C12", title="", outcome=Outcome.PASS)
    monkeypatch.setattr(judging_module, "check_task", lambda *arguments: sane)
    assert of(Lax()).screen(zeros).status is Status.ACCEPTED


def test_without_the_seal_a_judge_that_was_edited_accepts(bench, monkeypatch):
    """C17. The comparator's file is edited while the judge is at work, and the edit takes effect."""
    skip_compiling(monkeypatch)
    wrong = candidate(SAMPLES["constant inside the tolerance"].text, "accumulate")
    files = digests.package_files() | {"numerics/calibrate.py": b""}
    judge = bench.judge("accumulate")
    assert judge.screen(wrong).status is Status.REJECTED
    monkeypatch.setattr(digests, "package_files", lambda: files)
    SWITCHES["numerics"](monkeypatch)
    found = judge.screen(wrong)
    assert (found.status, found.reason) == (Status.INVALID, "judge.changed")
    monkeypatch.setattr(Ruling, "seal", lambda self, before, after: self.pass_stage("C17"))
    assert judge.screen(wrong).status is Status.ACCEPTED


@pytest.mark.slow
@pytest.mark.parametrize(("how", "found"), [("apart", "rejected numerics.median"), ("together", "accepted None")])
def test_in_one_process_with_the_judge_the_exploit_is_accepted(tmp_path, how, found):
    """C1. Host code that replaces the ruling does so where it runs: apart from the judge to no effect."""
    path = os.pathsep.join((str(HERE), str(HERE.parent / "support")))
    done = subprocess.run(
        [sys.executable, HERE / "one_process.py", how, tmp_path], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == [found], done.stderr[-2000:]


def test_a_contract_that_a_trivial_answer_passes_rules_invalid(of, monkeypatch):
    skip_compiling(monkeypatch)
    found = of(Lax()).screen(candidate(KERNEL, "accumulate"))
    assert (found.status, found.reason) == (Status.INVALID, "task.insane")
    assert "zeros as out would pass" in found.message


def test_a_contract_whose_input_matters_not_rules_invalid(of, monkeypatch):
    class Collapsed(Toy):
        def _run(self, inputs, dtype, factor=1.0):
            return super()._run(inputs | {"w": inputs["w"] * 0}, dtype, factor)

    skip_compiling(monkeypatch)
    found = of(Collapsed()).screen(candidate(KERNEL, "accumulate"))
    assert (found.status, found.reason) == (Status.INVALID, "task.insane")
    assert "w influences no result" in found.message and "x influences no result" in found.message


def test_unsafe_mode_never_accepts(monkeypatch):
    skip_compiling(monkeypatch)
    with Judge(model_of(Toy()), unsafe_no_sandbox=True) as unsafe:
        found = unsafe.screen(candidate(KERNEL, "accumulate"))
    assert found.status is Status.NOT_RUN
    assert "--unsafe-no-sandbox" in found.message


def test_toolchain_is_the_judges_own(bench):
    op, text = HONEST["plain"]
    forged = text.replace(
        "def launch(ctx, buffers, axes, config):\n",
        "def launch(ctx, buffers, axes, config):\n    import platform\n    platform.python_version = lambda: 'forged'\n",
    )
    found = bench.judge(op).screen(candidate(forged, op))
    assert "forged" not in str(found.toolchain) and found.toolchain["triton"]
