"""Sessions over a simulated device: noise with drift, contestants that cheat, clocks that lie."""

import random

import numpy as np
import pytest

from fasttrack_validation.performance.hardware import profile
from fasttrack_validation.timing.clocks import Card, CardState, Conditions, conditions, disturbance
from fasttrack_validation.timing.comparison import Standing
from fasttrack_validation.timing.plausibility import Reading, clocks_fault, cold_share, floor_fault, physical_floor_us
from fasttrack_validation.timing.session import Method, differing, run_session
from fasttrack_validation.timing.slots import rotation
from fasttrack_validation.timing.statistics import most_successes

H200 = profile("h200")
METHOD = Method(quads=8, slots=5, cold=1.0, l2_bytes=H200.l2_bytes)


class Device:
    """Time passes, clocks wander: multiplicative noise on top of a slow sinusoidal drift and steps."""

    def __init__(self, seed: int, noise: float = 0.01) -> None:
        self.rng, self.noise, self.now = np.random.default_rng(seed), noise, 0

    def factor(self) -> float:
        self.now += 1
        drift = 1 + 0.05 * np.sin(self.now / 50) + (0.03 if self.now > 40 else 0.0)
        return float(drift * np.exp(self.rng.normal(0, self.noise)))


class Simulated:
    slots = METHOD.slots

    def __init__(self, device: Device, microseconds: float, name: str = "candidate", drain_us: float = 20.0) -> None:
        self.device, self.microseconds, self.name, self.drain_us = device, microseconds, name, drain_us
        self.seed = 0

    def refresh(self, seed):
        self.seed = seed

    def replay(self) -> Reading:
        event = self.microseconds * self.slots * self.device.factor()
        return Reading(event_ns=round(event * 1e3), host_ns=round((event + self.drain_us) * 1e3))

    def digests(self):
        return self.right(self.seed)

    def right(self, seed):
        return tuple(f"{seed} in slot {slot}" for slot in range(self.slots))

    def verify(self, replays):
        return differing(replays, [self.right(replay.seed) for replay in replays])


class SkipsLastCall(Simulated):
    """Leaves the last call of a replay undone, as work on a stream that nothing waits for would."""

    def digests(self):
        return (*super().digests()[:-1], "poison")


class Stale(Simulated):
    """Answers with what its slots gave the first time."""

    first = None

    def digests(self):
        self.first = self.first or super().digests()
        return self.first


class Unsuspected(Simulated):
    def digests(self):
        return None


def session(a, b, *, floor_us=1.0, seed=1, **options):
    return run_session(a, b, METHOD, floor_us=floor_us, source=random.Random(seed), card=Card(), **options)


def test_finds_a_real_difference_in_spite_of_drift():
    device = Device(1)
    found = session(Simulated(device, 10.0), Unsuspected(device, 12.0, "stock"))
    assert not found.faults
    assert found.comparison.standing is Standing.FASTER
    assert found.comparison.ratio == pytest.approx(1.2, rel=0.02)
    assert found.comparison.low < 1.2 < found.comparison.high
    assert len(found.a.samples) == 2 * METHOD.quads
    assert "8 quads A B B A" in found.method.text() and "graph of 5 calls" in found.method.text()


def test_a_contestant_against_itself_is_promoted_no_more_often_than_declared():
    promoted = 0
    for seed in range(400):
        device = Device(seed, noise=0.03)
        one = session(Simulated(device, 10.0), Simulated(device, 10.0, "the same"), smallest_effect=0.0, seed=seed)
        promoted += one.comparison.standing is Standing.FASTER
    assert promoted <= most_successes(400, 0.05)


def test_without_interleaving_drift_would_promote_far_too_often():
    """The honest method's twin: all of A, then all of B. It shows what A B B A is there for."""
    from fasttrack_validation.timing.comparison import Quad, compare

    promoted = 0
    for seed in range(400):
        device = Device(seed, noise=0.03)
        a = [device.factor() for _ in range(16)]
        b = [device.factor() for _ in range(16)]
        paired = [Quad(a1=a[2 * i], b1=b[2 * i], b2=b[2 * i + 1], a2=a[2 * i + 1]) for i in range(8)]
        promoted += compare(paired, smallest_effect=0.0).standing is Standing.FASTER
    assert promoted > most_successes(400, 0.05)


@pytest.mark.parametrize(("cheat", "calls"), [(SkipsLastCall, 22), (Stale, 5 * 21)])
def test_a_timed_call_with_another_result_is_found(cheat, calls):
    device = Device(1)
    (fault,) = session(cheat(device, 1.5), Unsuspected(device, 12.0, "stock")).faults
    assert fault.reason == "timing.wrong_result"
    # 6 replays of warm-up and 16 in quads, of 5 calls each.
    assert f"candidate: {calls} of 110 timed calls" in fault.message


def test_impossible_times_are_rejected():
    device = Device(1)
    faults = session(Simulated(device, 0.9), Unsuspected(device, 12.0, "stock"), floor_us=1.0).faults
    assert [f.reason for f in faults] == ["timing.impossible"]
    assert not session(Simulated(device, 1.2), Unsuspected(device, 12.0, "stock"), floor_us=1.0).faults


@pytest.mark.parametrize(
    ("event_us", "host_us", "fine"),
    [(500, 540, True), (500, 495, False), (500, 900, False), (5_000, 5_400, True), (3, 1_000, False)],
)
def test_two_clocks_must_agree(event_us, host_us, fine):
    readings = [Reading(event_ns=event_us * 1000, host_ns=host_us * 1000)] * 5
    fault = clocks_fault(readings)
    assert (fault is None) is fine
    assert fine or fault.reason == "timing.clocks_disagree"


def test_floors_by_hand():
    # 48 MB at 4.8 TB/s take 10 us; 989 GFLOP at 989 TFLOP/s take 1000 us.
    assert physical_floor_us(48_000_000, 0, H200) == pytest.approx(10.0)
    assert physical_floor_us(48_000_000, 989 * 10**9, H200) == pytest.approx(1000.0)
    assert physical_floor_us(48_000_000, 0, H200, cold=0.5) == pytest.approx(5.0)
    assert floor_fault(10.0, 10.0) is None and floor_fault(9.99, 10.0).reason == "timing.impossible"


def test_cold_share_by_hand():
    assert cold_share(1_000_000, 60, 60_000_000) == 0.0
    assert cold_share(1_000_000, 240, 60_000_000) == pytest.approx(0.75)
    assert cold_share(0, 4, 60_000_000) == 0.0


def test_slots_by_hand():
    gib = 1 << 30
    # 1.6 MB a call: 3 x 60 MiB of L2 need 118 copies.
    assert rotation(1_600_000, H200.l2_bytes, slot_bytes=2_000_000, memory_bytes=100 * gib) == 118
    assert rotation(1_600_000, H200.l2_bytes, slot_bytes=2_000_000, memory_bytes=160_000_000) == 80
    assert rotation(2_000_000_000, H200.l2_bytes, slot_bytes=2_001_000_000, memory_bytes=100 * gib) == 4
    assert rotation(10, H200.l2_bytes, slot_bytes=1000, memory_bytes=gib) == 512
    with pytest.raises(ValueError, match="4 copies"):
        rotation(10**9, H200.l2_bytes, slot_bytes=10**9, memory_bytes=2 * 10**9)


@pytest.mark.parametrize(
    ("processes", "throttles", "words"),
    [
        (3, (), None), (0, (), None), (None, (), None), (2, ("software power cap",), None),
        (4, (), "device is shared: 4 compute processes, 3 of them the judge's"),
        (3, ("hardware slowdown", "software power cap"), "slowed itself while it was timed: hardware slowdown"),
        (3, ("software thermal slowdown",), "software thermal slowdown"), (3, ("hardware power brake",), "power brake"),
    ],
)  # fmt: skip
def test_what_spoils_a_session(processes, throttles, words):
    seen = Conditions(seen=1, processes_most=processes, throttles=throttles)
    assert (disturbance(seen, 3) is None) if words is None else words in disturbance(seen, 3)


def test_conditions_keep_the_extremes():
    one = CardState(sm_mhz=1980, memory_mhz=3201, celsius=40, watts=300.0, throttles=(), processes=2)
    two = one.model_copy(update={"sm_mhz": 1500, "throttles": ("software power cap",), "celsius": 70})
    seen = conditions([one, two, one])
    assert (seen.sm_mhz_lowest, seen.sm_mhz_median, seen.celsius_highest) == (1500, 1980, 70)
    assert seen.throttles == ("software power cap",)
    assert conditions([], "NVML: no driver").unavailable == "NVML: no driver"
