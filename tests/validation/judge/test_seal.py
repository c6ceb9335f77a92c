"""C17: files that change while a candidate is ruled on make the verdict invalid; on the toy op, with the interpreter."""

import pytest
from judging import candidate, model_of
from toy_contract import KERNEL, Toy

from fasttrack_validation import digests
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Outcome, Status

BROKEN = KERNEL.replace("@triton.jit", "@triton.autotune([], [])\n@triton.jit")
CHANGED = ("contracts/kimi_k3/contract.toml", "judge/ruling.py", "timing/stock_worker.py", "numerics/calibrate.py")


@pytest.fixture
def judge(tmp_path):
    with Judge(model_of(Toy()), cache=tmp_path, device="cpu") as made:
        yield made


def seal(verdict):
    return next(check for check in verdict.checks if check.check == "C17")


def test_unchanged_files_pass_and_change_nothing(judge):
    found = judge.screen(candidate(BROKEN, "accumulate"))
    assert found.status is Status.REJECTED and seal(found).outcome is Outcome.PASS


def test_a_changed_file_makes_the_verdict_invalid(judge, monkeypatch):
    real = digests.package_files
    for path in CHANGED:
        assert path in real()
        monkeypatch.setattr(digests, "package_files", lambda path=path: real() | {path: real()[path] + b"\n"})
        found = judge.screen(candidate(BROKEN, "accumulate"))
        assert (found.status, found.reason) == (Status.INVALID, "judge.changed")
        assert seal(found).outcome is Outcome.INVALID
