"""With its guard switched off an exploit is accepted: each sample really depends on the guard that it names.

And the exam itself is held to account: a contract that would pass trivial answers rules nothing.
"""

import pytest
from guards import SWITCHES
from judged import judges, skip_compiling
from judging import candidate, model_of
from samples import HONEST, SAMPLES
from toy_contract import KERNEL, Toy

from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Status


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
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


@pytest.mark.parametrize("guard", SWITCHES)
def test_with_its_guard_it_is_not(bench, guard, monkeypatch):
    skip_compiling(monkeypatch)
    found = bench.on(SAMPLES[GUARDED[guard]])
    assert found.status is Status.REJECTED and SAMPLES[GUARDED[guard]].for_its_reason(found.reason)


def test_a_contract_that_a_trivial_answer_passes_rules_invalid():
    class Lax(Toy):
        @property
        def comparisons(self):
            return tuple(c.model_copy(update={"floor": 1e9}) for c in super().comparisons)

    with Judge(model_of(Lax())) as lax:
        found = lax.screen(candidate(KERNEL, "accumulate"))
    assert (found.status, found.reason) == (Status.INVALID, "task.insane")
    assert "zeros as out would pass" in found.message


def test_a_contract_whose_input_matters_not_rules_invalid(monkeypatch):
    class Collapsed(Toy):
        def _run(self, inputs, dtype, factor=1.0):
            return super()._run(inputs | {"w": inputs["w"] * 0}, dtype, factor)

    skip_compiling(monkeypatch)
    with Judge(model_of(Collapsed())) as collapsed:
        found = collapsed.screen(candidate(KERNEL, "accumulate"))
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
