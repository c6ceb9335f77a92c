"""Times two contestants against each other on one device: A B B A, cold L2, every timed call checked.

A contestant is a way to run one op on K copies of its memory ("slots") that take turns inside one CUDA graph. Before
every timed replay its slots get other contents: a permutation of input sets that were drawn after the candidate was
recorded, restored outputs (poison) and states. After it, each slot's result is digested on the device and held against
what that input set gave in an untimed, verified run. So there is nothing to tell a check from a timing by, and no
timed call whose answer was not looked at.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from ..records import Frozen
from .clocks import Card, CardState, Conditions, conditions
from .comparison import ALPHA, SMALLEST_EFFECT, Comparison, Quad, compare
from .plausibility import Fault, Reading, clocks_fault, floor_fault
from .statistics import Interval, median_interval

QUADS = 12
WARM_UP_REPLAYS = 6


class Contestant(Protocol):
    """One way to run the op on `slots` copies of its memory."""

    name: str
    slots: int

    def restore(self, sets: Sequence[int]) -> None:
        """Fills slot i with input set `sets[i]` and fresh poison; scratch with noise. Not timed."""

    def replay(self) -> Reading:
        """Runs every slot once, in order, in one CUDA graph: nanoseconds by two clocks for the whole replay."""

    def digests(self) -> tuple[str, ...] | None:
        """What each slot's produced tensors hold now; None for a contestant that nobody suspects (the stock path)."""


class Method(Frozen):
    """How times were taken. Two times compare only under equal methods."""

    name: str = "graph-replay-abba/1"
    quads: int
    slots: int
    cold: float
    shared_static: bool
    l2_bytes: int

    def text(self) -> str:
        """The method in words, as it stands beside a figure."""
        weights = "one copy of the weights, larger than L2 several times" if self.shared_static else "weights included"
        return (
            f"{self.name}: median of {2 * self.quads} replays of a CUDA graph of {self.slots} calls, each on memory of "
            f"its own ({weights}; {self.cold:.0%} of a call's bytes cannot be in L2), in {self.quads} quads A B B A with "
            "other contents each time, CUDA events cross-checked with the host's clock"
        )


class Times(Frozen):
    """One contestant's time per call, microseconds."""

    name: str
    microseconds: Interval
    samples: tuple[float, ...]


class Session(Frozen):
    """What came of one session: both contestants' times, how they compare, and what cannot be believed."""

    method: Method
    a: Times
    b: Times
    comparison: Comparison
    conditions: Conditions
    faults: tuple[Fault, ...] = ()


def run_session(
    a: Contestant, b: Contestant, method: Method, *, sets: int, expected: Sequence[str] | None,
    floor_us: float, source: random.Random, card: Card, smallest_effect: float = SMALLEST_EFFECT,
    alpha: float = ALPHA, tests: int = 1,
) -> Session:  # fmt: skip
    """Times `a` (the candidate) and `b` (the stock path) in `method.quads` quads.

    `sets` input sets are known to both; `expected[s]` is the digest of `a`'s verified result for set s. `floor_us` is
    the physical floor of one call. `source` is the judge's: which sets lie in which slot, and which of the two comes
    first in a quad, follow from nothing that a candidate knows. The first wrong digest ends the session: what follows
    would time something else.
    """
    faults: list[Fault] = []
    readings: dict[int, list[Reading]] = {id(a): [], id(b): []}
    looks: list[CardState] = []

    def sample(contestant: Contestant, *, keep: bool = True) -> float:
        chosen = [source.randrange(sets) for _ in range(contestant.slots)]
        contestant.restore(chosen)
        reading = contestant.replay()
        fault = _wrong_result(contestant, chosen, expected)
        if fault:
            faults.append(fault)
        if keep:
            readings[id(contestant)].append(reading)
        return reading.event_ns / contestant.slots / 1e3

    for _ in range(WARM_UP_REPLAYS):
        sample(a, keep=False)
        sample(b, keep=False)
    quads: list[Quad] = []
    while len(quads) < method.quads and not faults:
        quads.append(_quad(a, b, sample, first=source.random() < 0.5))
        if (look := card.look()) is not None:
            looks.append(look)
    if not quads:
        raise UnverifiedTiming(faults[0])
    times_a = _times(a, tuple(x for q in quads for x in (q.a1, q.a2)))
    times_b = _times(b, tuple(x for q in quads for x in (q.b1, q.b2)))
    for contestant, times in ((a, times_a), (b, times_b)):
        for fault in (clocks_fault(readings[id(contestant)]), floor_fault(times.microseconds.median, floor_us)):
            if fault:
                faults.append(fault.model_copy(update={"message": f"{contestant.name}: {fault.message}"}))
    return Session(
        method=method, a=times_a, b=times_b,
        comparison=compare(quads, smallest_effect=smallest_effect, alpha=alpha, tests=tests),
        conditions=conditions(looks, card.unavailable), faults=tuple(faults),
    )  # fmt: skip


class UnverifiedTiming(Exception):
    """The very first timed calls gave wrong results."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def _times(contestant: Contestant, samples: tuple[float, ...]) -> Times:
    return Times(name=contestant.name, microseconds=median_interval(samples), samples=samples)


def _quad(a: Contestant, b: Contestant, sample, *, first: bool) -> Quad:
    """A B B A, or B A A B: in either case both contestants have the same mean position in time."""
    if first:
        a1, b1, b2, a2 = sample(a), sample(b), sample(b), sample(a)
    else:
        b1, a1, a2, b2 = sample(b), sample(a), sample(a), sample(b)
    return Quad(a1=a1, b1=b1, b2=b2, a2=a2)


def _wrong_result(contestant: Contestant, chosen: Sequence[int], expected: Sequence[str] | None) -> Fault | None:
    found = contestant.digests()
    if found is None or expected is None:
        return None
    wrong = [slot for slot, (digest, which) in enumerate(zip(found, chosen, strict=True)) if digest != expected[which]]
    if not wrong:
        return None
    return Fault(
        reason="timing.wrong_result",
        message=f"{len(wrong)} of {len(chosen)} timed calls gave another result than the verified run of the same "
        f"inputs; the first was call {wrong[0]} of its replay",
    )
