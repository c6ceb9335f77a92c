"""Samples in CUDA C++, and their honest twins: audited wherever there is a compiler, launched where there is a GPU."""

import pytest
from judging import model_of
from samples import SAMPLES, cuda, packs
from toy_contract import Toy

from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.replay import sanitizer
from fasttrack_validation.judge.replay.choose import choose
from fasttrack_validation.judge.verdict import Outcome, Status


@pytest.fixture(scope="module")
def compiler():
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")


@pytest.fixture(scope="module")
def judge(compiler, tmp_path_factory, kept_sandboxes):
    with Judge(model_of(Toy()), cache=tmp_path_factory.mktemp("kernels"), device="cpu") as made:
        yield made


@pytest.fixture(scope="module")
def gpu_judge(compiler, tmp_path_factory):
    device, why = choose("auto")
    if device is None or sanitizer.find() is None:
        pytest.skip(why or "compute-sanitizer was not found")
    with device, Judge(model_of(Toy()), cache=tmp_path_factory.mktemp("kernels"), device=device, timed=False) as made:
        yield made


@pytest.mark.parametrize("name", cuda.HONEST)
def test_an_honest_kernel_is_compiled_and_holds_no_globals(judge, name):
    found = judge.screen(cuda.candidate(cuda.HONEST[name]))
    assert (found.status, found.reason) == (Status.NOT_RUN, "execution.needs_gpu"), found.message
    assert [audit.writable_globals for audit in found.audits] == [0, 0]


def test_globals_are_in_the_audit(judge):
    found = judge.screen(cuda.candidate(SAMPLES["global variable"].candidate.files))
    assert [audit.target for audit in found.audits if audit.writable_globals] == ["sm_90", "sm_103"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", cuda.HONEST)
def test_an_honest_kernel_is_accepted_with_all_four_tools(gpu_judge, name):
    found = gpu_judge.rule(packs.recorded(gpu_judge, cuda.candidate(cuda.HONEST[name])))
    assert found.status is Status.ACCEPTED, (found.reason, found.message)
    check = next(check for check in found.checks if check.check == "C15")
    assert check.outcome is Outcome.PASS, check.message


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.runs == "gpu"])
def test_what_only_a_device_shows_is_rejected(gpu_judge, name):
    sample = SAMPLES[name]
    found = gpu_judge.rule(packs.recorded(gpu_judge, sample.candidate))
    assert (found.status, found.reason) == (Status.REJECTED, sample.reason), found.message
