"""Timing as a stage of the verdict: what a session's faults mean, and whose they are. On the fake device."""

import pytest
from fake_kernels import TOY, toy_pack
from judging import replaced
from timed_toy import WORKLOAD, Crowded, Stock, ruling, timed_verdict

from fasttrack_validation.claims.cells import Measured, NotMeasured
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.verdict import Outcome
from fasttrack_validation.performance.hardware import profile_of
from fasttrack_validation.timing.clocks import conditions
from fasttrack_validation.timing.comparison import Quad, compare
from fasttrack_validation.timing.hygiene import EXPECTED
from fasttrack_validation.timing.plausibility import Fault
from fasttrack_validation.timing.result import Timing


@pytest.fixture(scope="module")
def devices():
    with Device("fake") as one, Device("fake") as two:
        yield one, two


def timed(devices, text=TOY, stock=None, card=None):
    """The checks after the timing stage, and the stopwatch's cell of h200."""
    verdict = timed_verdict(devices, text, stock, card)
    return {check.check: check for check in verdict.checks}, next(c for c in verdict.cells if c.hardware == "h200")


def test_a_fake_clock_is_found_out_and_nothing_else(devices):
    """The fake device's events count simulated nanoseconds: no host could agree with them, so no cell is measured."""
    checks, cell = timed(devices)
    assert (checks["C6"].outcome, checks["C6"].reason) == (Outcome.FAIL, "timing.clocks_disagree")
    assert checks["C3"].outcome is Outcome.PASS and checks["C20"].outcome is Outcome.PASS
    assert isinstance(cell.cell, NotMeasured) and cell.timing is None


def test_a_timed_call_that_differs_is_rejected(devices):
    text = replaced(TOY, "result[:] = bf16(page)", "result[:] = seen.setdefault(out, bf16(page).copy())") + "\nseen = {}\n"
    checks, _ = timed(devices, text)
    assert (checks["C3"].outcome, checks["C3"].reason) == (Outcome.FAIL, "timing.wrong_result")


def test_wrong_numbers_in_an_audited_call_are_rejected(devices):
    checks, _ = timed(devices, replaced(TOY, "page + values * weights", "page - values * weights"))
    assert checks["numerics"].outcome is Outcome.FAIL


def test_a_fault_while_timed_is_the_candidates(devices):
    checks, _ = timed(devices, replaced(TOY, "for row in range", "call.array(x - (1 << 40), 'u2', 1); \n    for row in range"))
    assert checks["execution"].reason == "execution.illegal_access"


def test_a_stock_path_that_fails_leaves_no_mark_on_the_candidate(devices):
    checks, cell = timed(devices, stock=Stock("no fla-core\nTraceback ..."))
    assert not [c for c in checks.values() if c.outcome is Outcome.FAIL]
    assert cell.cell.reason == "no fla-core"


SLOWED = {**EXPECTED, "float32_matmul_precision": "medium"}


@pytest.mark.parametrize(("switches", "when"), [([SLOWED], "before"), ([EXPECTED, SLOWED], "after")])
def test_a_stock_path_with_other_switches_makes_the_verdict_invalid(devices, switches, when):
    checks, cell = timed(devices, stock=Stock(switches=switches))
    assert (checks["C20"].outcome, checks["C20"].reason) == (Outcome.INVALID, "stock.switches")
    assert f"float32_matmul_precision of the stock path's process was medium {when} the session" in checks["C20"].message
    assert cell.timing is None


def test_a_shared_device_is_not_timed(devices):
    checks, cell = timed(devices, card=Crowded(processes=4))
    assert cell.cell.reason == "device is shared: 4 compute processes, 3 of them the judge's"
    assert not {"C3", "C6", "C7"} & set(checks)


def test_a_card_that_slows_itself_gives_no_figure_but_wrong_results_still_count(devices):
    hot = ("hardware thermal slowdown",)
    checks, cell = timed(devices, card=Crowded(throttles=hot))
    assert cell.cell.reason == "the card slowed itself while it was timed: hardware thermal slowdown"
    # The fake device's clock disagrees with the host's: not the candidate's fault under these conditions.
    assert checks["C3"].outcome is Outcome.PASS and "C6" not in checks
    text = replaced(TOY, "result[:] = bf16(page)", "result[:] = seen.setdefault(out, bf16(page).copy())") + "\nseen = {}\n"
    assert timed(devices, text, card=Crowded(throttles=hot))[0]["C3"].reason == "timing.wrong_result"


def timing(*faults):
    measured = Measured(microseconds=10, low=9, high=11, repetitions=16, method="m", hardware="h200")
    return Timing(
        candidate=measured, stock=measured.model_copy(update={"microseconds": 12.0}),
        comparison=compare([Quad(a1=10, b1=12, b2=12, a2=10)] * 8), launches=1, stock_launches=4, physical_floor_us=1.0,
        target_floor_us=1.2, ceiling_bytes_per_second=4e12, conditions=conditions([]), stock_flags={}, samples={},
        faults=faults,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "check"),
    [("timing.wrong_result", "C3"), ("timing.clocks_disagree", "C6"), ("timing.impossible", "C7")],
)
def test_each_fault_fails_its_check(reason, check):
    found = ruling()
    found.timed("h200", WORKLOAD.name, timing(Fault(reason=reason, message="candidate: it is", contestant="candidate")))
    failed = [c for c in found.unmet if c.outcome is Outcome.FAIL]
    assert [(c.check, c.reason) for c in failed] == [(check, reason)]


def test_honest_timings_pass_and_fill_the_cell():
    found = ruling()
    found.timed("h200", WORKLOAD.name, timing())
    found.model_times({WORKLOAD.name: toy_pack(WORKLOAD)}, [], [WORKLOAD], {})
    verdict = found.verdict()
    by_card = {cell.hardware: cell for cell in verdict.cells}
    assert by_card["h200"].cell.microseconds == 10 and by_card["h200"].timing.stock.microseconds == 12
    assert isinstance(by_card["gb300"].cell, NotMeasured)
    assert {c.check for c in verdict.checks if c.outcome is Outcome.PASS} == {"C1", "C3", "C6", "C7", "C20"}


def test_a_fault_of_the_stock_path_is_not_the_candidates():
    found = ruling()
    found.timed("h200", WORKLOAD.name, timing(Fault(reason="timing.impossible", message="stock: too fast", contestant="stock")))
    assert not [c for c in found.unmet if c.outcome is Outcome.FAIL]
    found.model_times({WORKLOAD.name: toy_pack(WORKLOAD)}, [], [WORKLOAD], {})
    assert found.verdict().cells[0].cell.reason == "stock: too fast"


def test_cards_by_the_name_that_cuda_gives_them():
    assert profile_of("NVIDIA H200").name == "h200"
    assert profile_of("fake device") is None
