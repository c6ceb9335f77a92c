"""A whole verdict with a device behind the judge: what is recorded here runs on the fake device, and on a real one."""

import pytest
from fake_kernels import TOY
from judging import candidate, model_of, replaced
from toy_contract import KERNEL, Toy

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.replay.choose import choose
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.executor import codes_for
from fasttrack_validation.judge.replay.fake import CODE_MARK
from fasttrack_validation.judge.verdict import Outcome, Status


@pytest.fixture(scope="module")
def record(tmp_path_factory, kept_sandboxes):
    folder = tmp_path_factory.mktemp("record")
    with Judge(model_of(Toy()), cache=folder / "kernels", device="cpu") as judge:
        pack_file.write(judge.record(candidate(KERNEL, "accumulate"), unseen=2), folder / "toy.pack")
    return pack_file.read(folder / "toy.pack")


@pytest.fixture(scope="module")
def shared(kept_sandboxes):
    """A judge whose device replaces its worker after each fault."""
    with Device("fake", run_seconds=5.0) as fake, Judge(model_of(Toy()), device=fake) as judge:
        yield judge


@pytest.fixture
def rule(shared, record, monkeypatch):
    """Rules on the record with the fake device, whose code computes what the text says."""

    def call(text, judge=shared, **how):
        def fake_codes(codes, capability):
            found = codes_for(codes, capability)
            return {k: c.model_copy(update={"cubin": CODE_MARK + text.encode()}) for k, c in found.items()}

        monkeypatch.setattr("fasttrack_validation.judge.judge.codes_for", fake_codes)
        return judge.rule(record, **how)

    return call


@pytest.fixture(autouse=True)
def entry_is_what_the_compiler_named(record):
    assert {code.entry for code in record.codes} == {"accumulate"}


@pytest.mark.slow
def test_an_honest_candidate_is_accepted_with_every_kind_of_trial(rule):
    verdict = rule(TOY)
    assert verdict.status is Status.ACCEPTED, (verdict.reason, verdict.message)
    assert verdict.executor == "gpu: fake device (sm_90)"
    checks = {check.check: check for check in verdict.checks}
    assert checks["C8"].outcome is Outcome.PASS and checks["C8"].figures["trials"] > 20
    assert checks["C15"].outcome in (Outcome.PASS, Outcome.NOT_RUN)  # there is a tool, or there is none
    assert set(checks["C15"].figures) == {"memcheck", "racecheck", "initcheck", "synccheck"}
    declared = [w for w in verdict.workloads if not w.held_out and not w.workload.endswith("far")]
    # Every declared workload, every distribution, and its twins: one row has no other row to redraw.
    assert {(w.axes["rows"], w.trials, len(w.distributions)) for w in declared} == {(1, 6, 3), (4, 9, 3)}
    # One of the unseen layouts meets all distributions, the smallest.
    unseen = sorted((w.trials, len(w.distributions)) for w in verdict.workloads if w.held_out)
    assert unseen == [(1, 1), (1, 1), (1, 1), (3, 3)]
    assert all(cell.cell.kind == "not_measured" for cell in verdict.cells)


@pytest.mark.slow
def test_the_look_of_a_search_tries_the_small_workloads_and_says_what_it_leaves_to_the_confirmation(rule):
    verdict = rule(TOY, thorough=False)
    assert verdict.status is Status.ACCEPTED, (verdict.reason, verdict.message)
    checks = {check.check: check for check in verdict.checks}
    assert (checks["C15"].outcome, checks["C15"].message) == (Outcome.NOT_RUN, "left to the confirmation of a pick")
    declared = [w for w in verdict.workloads if not w.held_out and not w.workload.endswith("far")]
    # Typical values and their twins; every distribution on the smallest unseen layout.
    assert {(w.axes["rows"], w.trials, len(w.distributions)) for w in declared} == {(1, 2, 1), (4, 3, 1)}
    assert max(len(w.distributions) for w in verdict.workloads if w.held_out) == 3
    text, check, reason = (*WRONG["numbers"][:2], "numerics.median")
    assert (found := rule(replaced(TOY, text, check), thorough=False)).status is Status.REJECTED and found.reason == reason


WRONG = {
    "numbers": ("page[:] = page + values * weights", "page[:] = page + 2 * values * weights", "numerics", "numerics.median"),
    "guard band": ("result[:] = bf16(page)", "result[:] = bf16(page); call.array(out - 256, 'u1', 1)[0] ^= 255", "C4", "guard.overrun"),
    "far away": ("result[:] = bf16(page)", "call.array(out + (1 << 40), 'u2', 64)", "execution", "execution.illegal_access"),
    "input": ("result[:] = bf16(page)", "result[:] = bf16(page); call.array(x, 'u2', 1)[0] ^= 1", "C5", "input.modified"),
    "another kernel": (
        "def accumulate(call,", "def another(call,", "C8", "audit.launches",
    ),
    "death": ("result[:] = bf16(page)", "__import__('os')._exit(1)", "execution", "execution.worker_death"),
    "no second time": (
        "weights = call.array(w, \"f4\", 64)", "weights = call.array(w, \"f4\", 64) * (1 + len(seen)); seen.append(0)",
        "C14", "determinism.not_reproducible",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_one_is_rejected_for_its_reason(rule, fault):
    old, new, check, reason = WRONG[fault]
    verdict = rule(replaced(TOY, old, new) + "\nseen = []\naccumulate = locals().get('another') or accumulate\n")
    assert (verdict.status, verdict.reason) == (Status.REJECTED, reason), verdict.message
    assert next(c.check for c in verdict.checks if c.reason == reason) == check


@pytest.mark.slow
def test_a_lost_device_is_nobodys_fault(rule, tmp_path):
    breaker = tmp_path / "lost"
    text = replaced(TOY, "result[:] = bf16(page)", f"open({str(breaker)!r}, 'w').close(); call.array(0, 'u1', 1)")
    with Device("fake", str(breaker)) as fragile, Judge(model_of(Toy()), device=fragile) as judge:
        verdict = rule(text, judge)
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, "execution.device_lost")


def test_the_device_is_chosen_by_what_there_is(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose("auto") == (None, "cuda-bindings is not installed")
    assert choose("cpu") == (None, "told to use no GPU")
    with pytest.raises(UserError, match="cuda-bindings"):
        choose("gpu")
    with pytest.raises(UserError, match="unknown device"):
        choose("tpu")
