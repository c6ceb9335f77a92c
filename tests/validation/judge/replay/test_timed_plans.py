"""Plans as contestants of a timing session, on the fake device: what is timed is what was verified."""

import random

import pytest
import torch
from fake_kernels import TOY, device_code, toy_pack
from judging import replaced
from toy_contract import Toy

from fasttrack_validation.judge.inspect_trial import poison_findings, stray_findings
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.kernels import drawn, image
from fasttrack_validation.judge.replay.timed import AUDITS, Bench, flips
from fasttrack_validation.timing.clocks import Card
from fasttrack_validation.timing.session import Method, run_session

SLOTS = 5
METHOD = Method(quads=5, slots=SLOTS, cold=1.0, l2_bytes=1)


@pytest.fixture(scope="module")
def devices():
    with Device("fake") as timed, Device("fake") as apart, Device("fake") as third, Device("fake") as fourth:
        yield timed, apart, third, fourth


def bench(text=TOY, seed=1):
    contract = Toy()
    workload = contract.workloads()[1]
    codes = {"k": device_code(text, "accumulate")}
    source = random.Random(seed)
    return contract, Bench(contract, workload, "typical", [11, 12], toy_pack(workload), codes, {}, SLOTS, source)


def faults(devices, text):
    """Reasons of faults in the candidate's results when it is timed against an honest twin."""
    _, one = bench(text)
    _, other = bench(seed=2)
    timed, apart, third, fourth = devices
    with one.contestant(timed, apart) as a, other.contestant(third, fourth, "twin") as b:
        found = run_session(a, b, METHOD, floor_us=0.0, source=random.Random(3), card=Card()).faults
    # A fake device's clock has nothing to do with the host's.
    return [fault for fault in found if fault.reason != "timing.clocks_disagree"]


def test_an_honest_plan_is_verified_call_by_call(devices):
    assert faults(devices, TOY) == []


LATE = '''
calls = [0]
def late(values):
    calls[0] += 1
    return values if calls[0] % 5 else values * 0
'''
CHEATS = {
    # Leaves out the work of every fifth call: the last one of each graph.
    "unfinished": (replaced(TOY, "bf16(page)", "late(bf16(page))") + LATE, 13),
    # Keeps what it computed once for an address, and answers with it ever after.
    "stale": (
        replaced(TOY, "result[:] = bf16(page)", "result[:] = seen.setdefault(out, bf16(page).copy())") + "\nseen = {}\n", 64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_timed_call_that_was_not_computed_is_found(devices, cheat):
    text, at_least = CHEATS[cheat]
    (fault,) = faults(devices, text)
    assert fault.reason == "timing.wrong_result" and fault.message.startswith("candidate: ")
    assert int(fault.message.split()[1]) >= at_least


def test_inputs_never_recur_and_stay_what_they_look_like(devices):
    """The audit hands out the inputs of its replay: bf16 values whose lowest bit follows from the judge's seeds."""
    contract, made = bench()
    with made.contestant(*devices[:2]) as plan:
        for seed in (5, 6):
            plan.refresh(seed)
        trials = made.audits(plan)
    assert len(trials) == AUDITS
    for trial in trials:
        base = contract.make_inputs(trial.spec.workload, "typical", trial.spec.seed)["x"].view(torch.int16)
        changed = trial.inputs["x"].view(torch.int16) ^ base
        assert set(changed.unique().tolist()) == {0, 1}
        assert 0.3 < changed.float().mean() < 0.7


def test_an_audit_holds_results_against_oracle_and_guard_bands(devices):
    contract, made = bench()
    with made.contestant(*devices[:2]) as plan:
        for trial in made.audits(plan):
            oracle = contract.oracle(trial.inputs, trial.spec.workload)
            assert torch.equal(trial.produced["out"], contract.plain(trial.inputs, trial.spec.workload)["out"])
            assert (trial.produced["acc"].double() - oracle["acc"]).abs().max() < 1e-6
            assert not stray_findings(trial, contract) and not poison_findings(trial, contract)


def test_an_audit_sees_an_overrun(devices):
    text = replaced(TOY, "result[:] = bf16(page)", 'result[:] = bf16(page); call.array(x, "u2", 1)[:] = 0')
    contract, made = bench(text)
    with made.contestant(*devices[:2]) as plan:
        reasons = {f.reason for trial in made.audits(plan) for f in stray_findings(trial, contract)}
    assert reasons == {"input.modified"}


def test_bits_that_may_flip():
    contract = Toy()
    # x is bf16; slots are integers, w is static, acc a state: none of them changes.
    assert flips(contract.tensors(contract.workloads()[0])) == {"x": 0x0001000100010001}


def test_flips_follow_from_the_seed_alone():
    one, two = drawn(9, 0, 4), drawn(9, 0, 4)
    assert (one == two).all() and not (one == drawn(10, 0, 4)).any()


def test_the_shipped_ptx_is_made_of_the_shipped_source():
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC")
    from importlib import resources

    source = resources.files("fasttrack_validation.judge.replay").joinpath("judge_kernels.cu").read_bytes()
    try:
        _, program = nvrtc.nvrtcCreateProgram(source, b"judge_kernels.cu", 0, [], [])
    except RuntimeError as error:
        pytest.skip(f"needs NVRTC: {error}")
    _, major, minor = nvrtc.nvrtcVersion()
    if f"release {major}.{minor}".encode() not in image():
        pytest.skip(f"the PTX is of another release than NVRTC {major}.{minor}")
    assert nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"])[0] == 0
    text = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, text)
    assert text.rstrip(b"\0") == image().rstrip(b"\0")
