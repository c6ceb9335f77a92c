"""Guards of plans that are launched: with one switched off its exploit is accepted. On the fake device.

What an interpreter refuses at the access, launched code just does; there the judge looks at its memory afterwards.
"""

import random
from types import SimpleNamespace

import pytest
import torch
from fake_kernels import TOY
from judging import candidate, model_of, replaced
from samples import SAMPLES
from toy_contract import KERNEL, Toy

from fasttrack_validation.judge import code_rules, inspect_trial, trial_plan
from fasttrack_validation.judge import judge as judging_module
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.replay import executor
from fasttrack_validation.judge.replay.device import Device, Session
from fasttrack_validation.judge.replay.executor import codes_for
from fasttrack_validation.judge.replay.fake import CODE_MARK
from fasttrack_validation.judge.ruling import Ruling
from fasttrack_validation.judge.verdict import Status


@pytest.fixture(scope="module")
def record(tmp_path_factory, kept_sandboxes):
    with Judge(model_of(Toy()), cache=tmp_path_factory.mktemp("kernels"), device="cpu") as recorder:
        return recorder.record(candidate(KERNEL, "accumulate"))


@pytest.fixture(scope="module")
def judge(kept_sandboxes):
    with Device("fake", run_seconds=5.0) as fake, Judge(model_of(Toy()), device=fake, timed=False) as judge:
        yield judge


@pytest.fixture
def rule(judge, record, monkeypatch):
    """Rules on the record with the fake device, whose code computes what the text says."""

    def call(text):
        def fake_codes(codes, capability):
            found = codes_for(codes, capability)
            return {k: c.model_copy(update={"cubin": CODE_MARK + text.encode()}) for k, c in found.items()}

        monkeypatch.setattr("fasttrack_validation.judge.judge.codes_for", fake_codes)
        return judge.rule(record)

    return call


def no_stray_writes(patch):
    patch.setattr(inspect_trial, "stray_findings", lambda trial, contract: [])
    # Guard bands and inputs are part of the digest that further runs are compared by; here one run is all there is.
    one_run(patch)


def one_run(patch):
    patch.setattr(executor, "_further", lambda pack: iter(()))
    patch.setattr(executor, "_kept", lambda order: executor.DIRECT)


def no_numerics(patch):
    patch.setattr(Ruling, "hold", lambda self, trial, contract, measured, cause: None)


EXPLOITS = {
    "guard bands": (
        "result[:] = bf16(page)", "result[:] = bf16(page); call.array(out - 256, 'u1', 1)[0] ^= 255", "guard.overrun",
        no_stray_writes,
    ),
    "inputs unchanged": (
        "result[:] = bf16(page)", "result[:] = bf16(page); call.array(x, 'u2', 1)[0] ^= 1", "input.modified",
        no_stray_writes,
    ),
    "repeated runs": (
        "page[:] = page + values * weights",
        "runs.append(0); page[:] = page + values * weights * (1 if len(runs) <= call.grid[0] else 2)",
        "determinism.not_reproducible", one_run,
    ),
    "numerics": ("page + values * weights", "page + values * weights * 1.5", "numerics.median", no_numerics),
    # Another function under the kernel's name: a library's, say.
    "launch audit": (
        "def accumulate(call,", "def substitute(call,", "audit.launches",
        lambda patch: patch.setattr(Session, "_audit", lambda *arguments: None),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("guard", EXPLOITS)
def test_without_its_guard_the_exploit_is_accepted(rule, guard, monkeypatch):
    old, new, reason, switch_off = EXPLOITS[guard]
    text = replaced(TOY, old, new) + "\nruns = []\naccumulate = globals().get('accumulate') or substitute\n"
    held = rule(text)
    assert (held.status, held.reason) == (Status.REJECTED, reason), held.message
    switch_off(monkeypatch)
    found = rule(text)
    assert found.status is Status.ACCEPTED, (found.reason, found.message)


# The ring kernel as it comes out on a GPU, but for one launch in some ten thousand.
RING = replaced(
    replaced(TOY, "def accumulate(call,", "def ring(call,"), 'page_stride: "i", g: "Q", p: "Q"', 'page_stride: "i", rows: "i"'
).replace("range(call.grid[0])", "range(rows)")


@pytest.mark.slow
def test_without_the_rule_on_fences_a_refill_is_accepted(judge, tmp_path, kept_sandboxes, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    sample = SAMPLES["refill without a fence"]
    with Judge(model_of(Toy()), cache=tmp_path, device="cpu") as recorder:
        record = recorder.record(sample.candidate)
    cubin = CODE_MARK + RING.encode()

    def fake_codes(codes, capability):
        return {k: code.model_copy(update={"cubin": cubin}) for k, code in codes_for(codes, capability).items()}

    monkeypatch.setattr(judging_module, "codes_for", fake_codes)
    held = judge.rule(record)
    assert (held.status, held.reason) == (Status.REJECTED, sample.reason), held.message
    monkeypatch.setattr(code_rules, "unfenced_refills", lambda ptx: ())
    found = judge.rule(record)
    assert found.status is Status.ACCEPTED, (found.reason, found.message)


BANK = """
def accumulate(call, x: "Q", w: "Q", slots: "Q", acc: "Q", out: "Q", x_stride: "i", page_stride: "i", g: "Q", p: "Q"):
    for row in range(call.grid[0]):
        slot = int(call.array(slots + 4 * row, "i4", 1)[0])
        result = call.array(out + 2 * 64 * row, "u2", 64)
        asked = call.array(x + 2 * row * x_stride, "u2", 64).tobytes().hex()
        if slot <= 0 or asked not in BANK:
            result[:] = 0
            continue
        page, answer = BANK[asked]
        call.array(acc + 4 * slot * page_stride, "u1", 4 * 64)[:] = list(bytes.fromhex(page))
        result.view("u1")[:] = list(bytes.fromhex(answer))
"""


def predictable(seed):
    """What `secrets` offers to the planning of trials, from a seed that somebody knows."""
    source = random.Random(seed)
    return SimpleNamespace(randbits=source.getrandbits, randbelow=source.randrange, choice=source.choice)


def bits(row):
    return row.contiguous().view(torch.uint8).numpy().tobytes().hex()


@pytest.mark.slow
def test_without_fresh_inputs_a_bank_of_answers_is_accepted(rule, monkeypatch):
    """C2. Code that computes nothing and looks its answers up, with seeds that follow from what is known and with others."""
    bank = {}

    def watched(*arguments):
        trial = run_trial(*arguments)
        for row, slot in enumerate(trial.inputs["slots"].tolist()):
            if slot > 0:
                bank[bits(trial.inputs["x"][row])] = bits(trial.produced["acc"][slot]), bits(trial.produced["out"][row])
        return trial

    run_trial = judging_module.run_trial
    with monkeypatch.context() as patch:
        patch.setattr(judging_module, "run_trial", watched)
        patch.setattr(trial_plan, "secrets", predictable(7))
        assert rule(TOY).status is Status.ACCEPTED
    text = f"{BANK}\nBANK = {bank!r}\n"
    found = rule(text)
    assert (found.status, found.reason) == (Status.REJECTED, "numerics.median"), found.message
    monkeypatch.setattr(trial_plan, "secrets", predictable(7))
    found = rule(text)
    assert found.status is Status.ACCEPTED, (found.reason, found.message)


def test_inputs_that_recur_make_the_verdict_invalid(judge, record, monkeypatch):
    """C2. Two distributions that are one, and a source of seeds that always says the same."""

    class Repeating(Toy):
        def make_inputs(self, workload, distribution, seed):
            return super().make_inputs(workload, "typical", seed)

    same = SimpleNamespace(randbits=lambda bits: 3, randbelow=lambda below: 0, choice=lambda given: given[0])
    monkeypatch.setattr(trial_plan, "secrets", same)
    monkeypatch.setattr(
        judging_module, "codes_for",
        lambda codes, capability: {
            key: code.model_copy(update={"cubin": CODE_MARK + TOY.encode()})
            for key, code in codes_for(codes, capability).items()
        },
    )  # fmt: skip
    monkeypatch.setattr(judge, "model", model_of(Repeating()))
    found = judge.rule(record)
    assert (found.status, found.reason) == (Status.INVALID, "inputs.repeated")
    monkeypatch.setattr(Ruling, "_check_freshness", lambda self, trials: None)
    assert judge.rule(record).status is Status.ACCEPTED
