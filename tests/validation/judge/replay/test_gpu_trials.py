"""The runs of one trial through worker and device handle, on the fake device."""

import sys

import numpy as np
import pytest
import torch
from fake_kernels import CHAIN, TOY, chain_codes, chain_pack, device_code, toy_pack
from judging import replaced
from toy_contract import Toy

from fasttrack_validation.contracts.base import TensorRole, TensorSpec
from fasttrack_validation.judge import inspect_trial
from fasttrack_validation.judge.arena import Arena
from fasttrack_validation.judge.pack import variant_key
from fasttrack_validation.judge.replay import device as device_module
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.executor import Gpu
from fasttrack_validation.judge.replay.faults import DeviceLost
from fasttrack_validation.judge.trials import Trial, TrialSpec, run_trial
from fasttrack_validation.tensors import DType

N = 8
VALUES = torch.arange(N, dtype=torch.float32)


@pytest.fixture(scope="module")
def device():
    with Device("fake") as made:
        yield made


def run_chain(device, plan, text=CHAIN, order="ascending"):
    """(outcome, out, stray writes) of a chain plan with x = 0, 1, ... 7."""
    specs = tuple(
        TensorSpec(name=name, dtype=DType.F32, role=role, shape=(N,), strides=(1,))
        for name, role in (("x", TensorRole.INPUT), ("out", TensorRole.OUTPUT))
    )
    arena = Arena(specs, plan.scratch, {}, np.random.Generator(np.random.PCG64(7)))
    try:
        arena.put("x", VALUES)
        arena.seal()
        outcome = Gpu(device, chain_codes(text, plan)).execute(plan, arena, order, {})
        return outcome, arena.take("out"), arena.stray_writes()
    finally:
        arena.close()


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled:5"])
def test_every_kind_of_run_leaves_the_result(device, order):
    outcome, out, stray = run_chain(device, chain_pack(N, prefetch=True), order=order)
    assert outcome["status"] == "ok", outcome
    assert out.tolist() == [2 * (v + 1) for v in range(N)]
    assert stray == ()


def test_a_trial_of_the_toy_op_agrees_with_its_oracle(device):
    contract = Toy()
    workload = contract.workloads()[1]
    plan = toy_pack(workload)
    gpu = Gpu(device, {variant_key(plan.kernels["k"]): device_code(TOY, "accumulate")})
    trial = run_trial(contract, TrialSpec(workload, "typical", 3, 4), plan, {}, gpu)
    assert (trial.status, trial.stray) == ("ok", ())
    oracle = contract.oracle(trial.inputs, workload)
    assert (trial.produced["acc"].double() - oracle["acc"]).abs().max() < 1e-6
    assert torch.equal(trial.produced["out"], contract.plain(trial.inputs, workload)["out"])


def test_page_numbers_beyond_32_bits_reach_the_same_memory(device):
    contract = Toy()
    workload = contract.workloads()[1]
    plan = toy_pack(workload)
    arena = Arena(contract.tensors(workload), {}, {}, np.random.Generator(np.random.PCG64(1)))
    inputs = contract.make_inputs(workload, "typical", 5)
    shift = 1 << 22  # times a page of 96 floats: 1.6 GB
    try:
        for name in ("x", "w", "acc"):
            arena.put(name, inputs[name])
        arena.put("slots", inputs["slots"] + shift)
        arena.seal()
        gpu = Gpu(device, {variant_key(plan.kernels["k"]): device_code(TOY, "accumulate")})
        outcome = gpu.execute(plan, arena, "ascending", {"acc": shift * 96 * 4})
        assert outcome["status"] == "ok", outcome
        assert torch.equal(arena.take("acc"), contract.plain(inputs, workload)["acc"])
    finally:
        arena.close()


BROKEN = {
    "outside": ('call.array(mid, "f4", n) * 2', 'call.array(mid - (1 << 40), "f4", n) * 2', "illegal_access"),
    "misaligned": ('call.array(mid, "f4", n) * 2', 'call.array(mid + 2, "f4", n) * 2', "misaligned"),
    "trap": ('call.array(mid, "f4", n) * 2', "raise_()", "launch_failed"),
    "remembers": ('call.array(mid, "f4", n) * 2', 'seen.append(0) or len(seen)', "not_reproducible"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_costs_one_candidate(device, fault):
    old, new, status = BROKEN[fault]
    text = replaced(CHAIN, old, new) + '''
seen = []
def raise_():
    raise DeviceError("CUDA_ERROR_LAUNCH_FAILED", "a launch")
'''
    outcome, _, _ = run_chain(device, chain_pack(N), text)
    assert outcome["status"] == status, outcome
    assert run_chain(device, chain_pack(N))[0]["status"] == "ok"


def test_an_endless_kernel_is_killed_and_the_next_one_judged():
    text = replaced(CHAIN, 'call.array(mid, "f4", n) * 2', "[0 for _ in iter(int, 1)]")
    with Device("fake", run_seconds=1.0) as impatient:
        outcome, _, _ = run_chain(impatient, chain_pack(N), text)
        assert outcome["status"] == "hang" and "within 1 s" in outcome["message"]
        assert impatient.restarts == 1
        assert run_chain(impatient, chain_pack(N))[0]["status"] == "ok"


def test_a_worker_that_served_many_plans_is_replaced_between_two(monkeypatch):
    """And never under a plan that is open: the timed contestant holds one while others are run."""
    monkeypatch.setattr(device_module, "MOST_SESSIONS", 3)
    with Device("fake") as made:
        plan = chain_pack(N)
        workers = []
        for _ in range(5):
            outcome, out, _ = run_chain(made, plan)
            assert outcome["status"] == "ok" and out[0] == 2
            workers.append(made._process.pid)
        assert len(set(workers[:3])) == 1 and len(set(workers)) == 2 and made.restarts == 0
        codes = {key: chain_codes(CHAIN, plan)[variant_key(variant)] for key, variant in plan.kernels.items()}
        with made.session(plan, codes):
            inside = {made._process.pid}
            for _ in range(3):
                with made.session(plan, codes):
                    inside.add(made._process.pid)
        assert len(inside) == 1


def test_a_worker_that_dies_is_replaced(device):
    text = replaced(CHAIN, 'call.array(mid, "f4", n) * 2', "__import__('os')._exit(3)")
    outcome, _, _ = run_chain(device, chain_pack(N), text)
    assert outcome["status"] == "worker_death" and "ended with 3" in outcome["message"]
    assert run_chain(device, chain_pack(N))[0]["status"] == "ok"


def test_a_defect_of_the_judge_is_not_blamed_on_a_candidate(device):
    # Python that fails in the fake's kernel stands for any exception that the worker did not expect.
    text = replaced(CHAIN, 'call.array(mid, "f4", n) * 2', "1 / 0")
    with pytest.raises(RuntimeError, match="could not carry out run: (?s:.*)ZeroDivisionError"):
        run_chain(device, chain_pack(N), text)
    assert run_chain(device, chain_pack(N))[0]["status"] == "ok"


def test_a_missing_wait_shows(device):
    outcome, _, _ = run_chain(device, chain_pack(N, wait=False))
    assert outcome["status"] == "order_dependent", outcome
    assert "stream side" in outcome["message"] and "bytes of out" in outcome["message"]
    assert run_chain(device, chain_pack(N, wait=True))[0]["status"] == "ok"


def test_a_prefetch_that_writes_is_caught(device):
    text = replaced(CHAIN, 'call.array(x, "f4", n).sum()', 'call.array(x, "f4", n)[0] = 5')
    outcome, _, _ = run_chain(device, chain_pack(N, prefetch=True), text)
    assert outcome["status"] == "prefetch_writes" and "bytes of x" in outcome["message"], outcome


def test_a_prefetch_that_results_depend_on_is_caught(device):
    # All the work is done by the "prefetch", in scratch, which no other check watches.
    text = replaced(CHAIN, 'call.array(x, "f4", n).sum()', 'call.array(x, "f4", n)[:] = 3')
    text = replaced(text, 'call.array(mid, "f4", n)[:] = call.array(x, "f4", n) + 1', "return")
    plan = chain_pack(N, prefetch=True)
    onto_scratch = plan.launches[0].arguments | {"x": plan.launches[1].arguments["mid"]}
    first = plan.launches[0].model_copy(update={"arguments": onto_scratch})
    outcome, _, _ = run_chain(device, plan.model_copy(update={"launches": (first, *plan.launches[1:])}), text)
    assert outcome["status"] == "prefetch_needed", outcome


def test_a_plan_whose_code_takes_other_parameters_is_refused(device):
    text = replaced(CHAIN, 'def finish(call, mid: "Q", out: "Q", n: "i"', 'def finish(call, mid: "Q", out: "Q", n: "q"')
    outcome, _, _ = run_chain(device, chain_pack(N), text)
    assert outcome["status"] == "parameters"
    assert "parameters of [8, 8, 4, 8, 8] bytes, the code takes [8, 8, 8, 8, 8]" in outcome["message"]


def test_a_device_that_stays_lost_is_an_outcome(tmp_path):
    breaker = tmp_path / "lost"
    text = replaced(CHAIN, 'call.array(mid, "f4", n) * 2', f"open({str(breaker)!r}, 'w').close() or missing()") + '''
def missing():
    raise DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS", "a launch")
'''
    with Device("fake", str(breaker)) as fragile:
        assert run_chain(fragile, chain_pack(N), text)[0]["status"] == "device_lost"
        assert run_chain(fragile, chain_pack(N))[0]["status"] == "device_lost"
        breaker.unlink()
        assert run_chain(fragile, chain_pack(N))[0]["status"] == "ok"


def test_a_graph_whose_kernels_are_not_the_plans_is_refused(device):
    """The driver's name of a kernel is what counts: here the entry is another function under its name."""
    text = replaced(CHAIN, "def finish(call,", "def substitute(call,") + "\nfinish = substitute\n"
    outcome, _, _ = run_chain(device, chain_pack(N), text)
    assert outcome["status"] == "launch_audit", outcome
    assert outcome["message"] == (
        "the graph has kernels 1 of half, 1 of substitute, 1 runs of the plan have 1 of finish, 1 of half"
    )
    (finding,) = [inspect_trial.execution_finding(Trial(None, outcome["status"], outcome["message"], {}))]
    assert (finding.check, finding.reason) == ("C8", "audit.launches")
    assert run_chain(device, chain_pack(N, prefetch=True))[0]["status"] == "ok"


def test_a_worker_that_does_not_start_says_why(monkeypatch):
    monkeypatch.setattr("fasttrack_validation.judge.replay.device.__package__", "no_such_package")
    with pytest.raises(DeviceLost, match="it ended with 1, saying: .*ModuleNotFoundError: No module named") as lost:
        Device("fake").facts
    assert "PYTHONPATH" in lost.value.how


def test_what_a_worker_says_is_bounded(monkeypatch):
    flood = "import sys\nfor _ in range(1 << 14): sys.stderr.write('a line of sixteen' + chr(10))\n"
    device = Device("fake", under=[sys.executable, "-c", flood])
    with pytest.raises(DeviceLost, match="did not start: it ended with") as lost:
        device.facts
    assert len(lost.value.what) < 1000
