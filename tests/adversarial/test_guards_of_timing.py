"""Guards of timing: with one switched off, a plan that is slow, or was not run, is promoted over the stock path.

On fake devices, whose clock is nobody's: how long a replay took is told by each exploit. The stock path takes 12 us a call.
"""

import pytest
from fake_kernels import TOY
from judging import replaced
from timed_toy import Crowded, Stock, timed_verdict

from fasttrack_validation.judge import stopwatch
from fasttrack_validation.judge.replay.device import Device
from fasttrack_validation.judge.replay.timed import Bench, TimedPlan
from fasttrack_validation.judge.verdict import Outcome
from fasttrack_validation.timing import hygiene, session
from fasttrack_validation.timing.comparison import Standing
from fasttrack_validation.timing.plausibility import Reading

STALE = replaced(TOY, "result[:] = bf16(page)", "result[:] = seen.setdefault(out, bf16(page).copy())") + "\nseen = {}\n"
DRAIN_NS = 20_000


@pytest.fixture(scope="module")
def devices():
    with Device("fake") as one, Device("fake") as two:
        yield one, two


class Slowed(Stock):
    """The stock path at half its speed, because something holds it back."""

    microseconds = 24


@pytest.fixture
def judged(devices, monkeypatch):
    """judged(...) -> (what the checks found, by check, whether the plan was promoted)."""

    def call(*, event_us, host_us=None, text=TOY, stock=None, card=None):
        def replay(self):
            self._timed.replay()
            event, host = (round(1e3 * us * self.slots) for us in (event_us, host_us or event_us))
            return Reading(event_ns=event or 1, host_ns=host + DRAIN_NS)

        monkeypatch.setattr(TimedPlan, "replay", replay)
        verdict = timed_verdict(devices, text, stock, card)
        # Only the timing stage ran: what other stages would have passed is not listed.
        found = {c.check: c.reason for c in verdict.checks if c.outcome in (Outcome.FAIL, Outcome.INVALID)}
        timing = next(cell.timing for cell in verdict.cells if cell.hardware == "h200")
        return found, timing is not None and timing.comparison.standing is Standing.FASTER and not found

    return call


def unwatched(patch):
    patch.setattr(TimedPlan, "verify", lambda self, replays: None)
    patch.setattr(Bench, "audits", lambda self, plan: [])


EXPLOITS = {
    "C3": (
        dict(event_us=6, text=STALE), "timing.wrong_result", unwatched,
    ),  # answers with what its slots gave the first time
    "C6": (
        dict(event_us=6, host_us=60), "timing.clocks_disagree",
        lambda patch: patch.setattr(session, "clocks_fault", lambda readings: None),
    ),  # works on where the last event does not see it
    "C7": (
        dict(event_us=0), "timing.impossible", lambda patch: patch.setattr(session, "floor_fault", lambda *figures: None),
    ),  # takes no time at all
    "C20": (
        dict(event_us=15, stock=Slowed(switches=[{**hygiene.EXPECTED, "cudnn_benchmark": "True"}])), "stock.switches",
        lambda patch: patch.setattr(hygiene, "fault", lambda before, after: None),
    ),  # is slower than the stock path that users have
    "C21": (
        dict(event_us=15, stock=Slowed(), card=Crowded(processes=4)), None,
        lambda patch: patch.setattr(stopwatch, "disturbance", lambda seen, own: None),
    ),  # left a process behind that keeps the stock path waiting
}  # fmt: skip


@pytest.mark.parametrize("check", EXPLOITS)
def test_without_its_guard_the_exploit_is_promoted(judged, check, monkeypatch):
    exploit, reason, switch_off = EXPLOITS[check]
    found, promoted = judged(**exploit)
    assert not promoted and found.get(check) == reason
    if "stock" in exploit:
        exploit = {**exploit, "stock": Slowed(switches=exploit["stock"].seen)}
    switch_off(monkeypatch)
    assert judged(**exploit) == ({}, True)


def test_an_honest_plan_that_is_faster_is_promoted_and_a_slower_one_is_not(judged):
    assert judged(event_us=6) == ({}, True)
    assert judged(event_us=15) == ({}, False)
