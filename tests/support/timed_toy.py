"""The timing stage of a verdict on the toy op, on fake devices: a stock path and a card that need no GPU."""

import random
from types import SimpleNamespace

from fake_kernels import TOY, device_code, toy_pack
from toy_contract import Toy

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.pack import variant_key
from fasttrack_validation.judge.ruling import Ruling
from fasttrack_validation.judge.stopwatch import Stopwatch
from fasttrack_validation.judge.timing_stage import time_plans
from fasttrack_validation.judge.verdict import Verdict
from fasttrack_validation.performance.hardware import profile
from fasttrack_validation.timing.clocks import CardState
from fasttrack_validation.timing.hygiene import EXPECTED
from fasttrack_validation.timing.plausibility import Reading
from fasttrack_validation.timing.stock import StockFailed

WORKLOAD = Toy().workloads()[1]
# An H200 whose L2 is so small that a few copies of the toy's memory exceed it.
CARD = profile("h200").model_copy(update={"l2_bytes": 2000})


class Stock:
    """A stock path that needs no GPU: 12 us a call. `switches` are what it answers when it is asked for them."""

    name, slots, launches = "stock", 0, 4
    microseconds = 12

    def __init__(self, fails: str = "", switches=()) -> None:
        self.fails, self.seen = fails, list(switches)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def capture(self, op, workload, distribution, seeds, slots):
        if self.fails:
            raise StockFailed(self.fails)
        self.slots = slots

    def refresh(self, seed):
        return None

    def replay(self):
        return Reading(event_ns=1000 * self.microseconds * self.slots, host_ns=1000 * self.microseconds * self.slots + 30_000)

    def digests(self):
        return None

    def verify(self, replays):
        return None

    def flags(self):
        return {"torch": "none"}

    def switches(self):
        return self.seen.pop(0) if self.seen else EXPECTED

    def ceiling(self):
        return 4e12


def ruling():
    candidate = Candidate(op="accumulate", entry="k.py", files={"k.py": ""}, config={})
    return Ruling(
        model="toy", op="accumulate", candidate=candidate, contract_digest="c", judge_digest="j", sandbox="s", unsafe=False
    )


class Crowded:
    """A card with so many compute processes, which throttles for these reasons once it is timed."""

    unavailable = None

    def __init__(self, processes=3, throttles=()):
        self.processes, self.throttles, self.looks = processes, throttles, 0

    def look(self):
        self.looks += 1
        return CardState(
            sm_mhz=1980, memory_mhz=3201, celsius=40, watts=300.0, processes=self.processes,
            throttles=self.throttles if self.looks > 1 else (),
        )  # fmt: skip


def timed_verdict(devices, text=TOY, stock=None, card=None) -> Verdict:
    """The verdict after the timing stage alone, with the stopwatch's cell of h200."""
    model = SimpleNamespace(model="toy", op=lambda name: Toy())
    found, pack = ruling(), toy_pack(WORKLOAD)
    codes = {variant_key(pack.kernels["k"]): device_code(text, "accumulate")}
    watch = Stopwatch(
        model, devices[0], CARD, apart=devices[1], stock=stock or Stock(), source=random.Random(4), quads=5,
        card=card,
    )  # fmt: skip
    with watch:
        time_plans(watch, Toy(), {WORKLOAD.name: pack}, codes, [WORKLOAD], lambda pack, spec: {}, found)
    audits = {("accumulate", "sm_90"): None}
    found.model_times({WORKLOAD.name: pack}, [], [WORKLOAD], audits)
    return found.verdict()
