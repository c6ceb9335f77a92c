"""Guards of plans that are launched: with one switched off its exploit is accepted. On the fake device.

What an interpreter refuses at the access, launched code just does; there the judge looks at its memory afterwards.
"""

import pytest
from fake_kernels import TOY
from judging import candidate, model_of, replaced
from toy_contract import KERNEL, Toy

from fasttrack_validation.judge import inspect_trial
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.replay import executor
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.executor import codes_for
from fasttrack_validation.judge.replay.fake import CODE_MARK
from fasttrack_validation.judge.ruling import Ruling
from fasttrack_validation.judge.verdict import Status


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    with Judge(model_of(Toy()), cache=tmp_path_factory.mktemp("kernels"), device="cpu") as judge:
        return judge.record(candidate(KERNEL, "accumulate"))


@pytest.fixture
def rule(record, monkeypatch):
    """Rules on the record with the fake device, whose code computes what the text says."""

    def call(text):
        def fake_codes(codes, capability):
            found = codes_for(codes, capability)
            return {k: c.model_copy(update={"cubin": CODE_MARK + text.encode()}) for k, c in found.items()}

        monkeypatch.setattr("fasttrack_validation.judge.judge.codes_for", fake_codes)
        with Device("fake", run_seconds=5.0) as fake, Judge(model_of(Toy()), device=fake, timed=False) as judge:
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
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("guard", EXPLOITS)
def test_without_its_guard_the_exploit_is_accepted(rule, guard, monkeypatch):
    old, new, reason, switch_off = EXPLOITS[guard]
    text = replaced(TOY, old, new) + "\nruns = []\n"
    held = rule(text)
    assert (held.status, held.reason) == (Status.REJECTED, reason), held.message
    switch_off(monkeypatch)
    found = rule(text)
    assert found.status is Status.ACCEPTED, (found.reason, found.message)
