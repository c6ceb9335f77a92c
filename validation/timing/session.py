"""Times two contestants against each other on one device: A B B A, cold L2, every timed call checked.

A contestant is a way to run one op on K copies of its memory ("slots") that take turns inside one CUDA graph. Before
every timed replay outputs and states are put back and bits of all inputs flipped, so that no call ever sees the same
input twice. After it each slot's result is digested on the device; when all is timed, the same inputs are run once more,
untimed, one by one, by freshly loaded code on memory elsewhere, and must give the same digests. So there is nothing to
tell a check from a timing by, and no timed call whose answer was not looked at.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from pydantic import Field

from ..records import Frozen
from .clocks import Card, CardState, Conditions, conditions
from .comparison import ALPHA, SMALLEST_EFFECT, Comparison, Quad, compare
from .plausibility import Fault, Reading, clocks_fault, floor_fault
from .statistics import Interval, median_interval

STOCK = "stock"
QUADS = 12
WARM_UP_REPLAYS = 6


class Replay(Frozen):
    """One replay of a contestant: what its inputs were made from, and the digest of each slot's result."""

    seed: int
    digests: tuple[str, ...]


class Contestant(Protocol):
    """One way to run the op on `slots` copies of its memory."""

    name: str
    slots: int

    def refresh(self, seed: int) -> None:
        """Puts outputs, states and scratch back and flips input bits that follow from `seed`. Not timed."""

    def replay(self) -> Reading:
        """Runs every slot once, in order, in one CUDA graph: nanoseconds by two clocks for the whole replay."""

    def digests(self) -> tuple[str, ...] | None:
        """What each slot's produced tensors hold now; None for a contestant that nobody suspects (the stock path)."""

    def verify(self, replays: Sequence[Replay]) -> Fault | None:
        """Runs the inputs of `replays`, in order, untimed and apart; a fault when a result differs."""


class Method(Frozen):
    """How times were taken. Two times compare only under equal methods."""

    name: str = "graph-replay-abba/1"
    quads: int
    slots: int
    cold: float = Field(description="share of a call's bytes that cannot still be in L2 from its last turn")
    l2_bytes: int

    def text(self) -> str:
        """The method in words, as it stands beside a figure."""
        return (
            f"{self.name}: median of {2 * self.quads} replays of a CUDA graph of {self.slots} calls, each on memory of "
            f"its own, weights included ({self.cold:.0%} of a call's bytes cannot be in L2), in {self.quads} quads A B B A, "
            "inputs changed before each, CUDA events cross-checked with the host's clock"
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
    a: Contestant, b: Contestant, method: Method, *, floor_us: float, source: random.Random, card: Card,
    smallest_effect: float = SMALLEST_EFFECT, alpha: float = ALPHA, tests: int = 1, warm_up: int = WARM_UP_REPLAYS,
) -> Session:  # fmt: skip
    """Times `a` (the candidate) and `b` (the stock path) in `method.quads` quads.

    `floor_us` is the physical floor of one call. `source` is the judge's: what inputs become, and which of the two
    comes first in a quad, follow from nothing that a candidate knows. Faults are `a`'s or `b`'s, by name.
    """
    readings: dict[int, list[Reading]] = {id(a): [], id(b): []}
    history: dict[int, list[Replay]] = {id(a): [], id(b): []}
    looks: list[CardState] = []

    def sample(contestant: Contestant) -> float:
        seed = source.getrandbits(63)
        contestant.refresh(seed)
        reading = contestant.replay()
        if (found := contestant.digests()) is not None:
            history[id(contestant)].append(Replay(seed=seed, digests=found))
        readings[id(contestant)].append(reading)
        return reading.event_ns / contestant.slots / 1e3

    for _ in range(warm_up):
        sample(a)
        sample(b)
    quads = []
    for _ in range(method.quads):
        quads.append(_quad(sample, a, b, a_first=source.random() < 0.5))
        if (look := card.look()) is not None:
            looks.append(look)
    times_a = _times(a, tuple(x for q in quads for x in (q.a1, q.a2)))
    times_b = _times(b, tuple(x for q in quads for x in (q.b1, q.b2)))
    faults = [
        fault.model_copy(update={"contestant": one.name, "message": f"{one.name}: {fault.message}"})
        for one, times in ((a, times_a), (b, times_b))
        for fault in (
            one.verify(history[id(one)]),
            clocks_fault(readings[id(one)][warm_up:]),
            floor_fault(times.microseconds.median, floor_us),
        )
        if fault
    ]
    return Session(
        method=method, a=times_a, b=times_b,
        comparison=compare(quads, smallest_effect=smallest_effect, alpha=alpha, tests=tests),
        conditions=conditions(looks, card.unavailable), faults=tuple(faults),
    )  # fmt: skip


def differing(replays: Sequence[Replay], found: Sequence[Sequence[str]]) -> Fault | None:
    """The fault that untimed results `found` of the same inputs show, or None."""
    wrong = [
        (number, slot)
        for number, (replay, digests) in enumerate(zip(replays, found, strict=True))
        for slot, (timed, untimed) in enumerate(zip(replay.digests, digests, strict=True))
        if timed != untimed
    ]
    if not wrong:
        return None
    calls = sum(len(replay.digests) for replay in replays)
    return Fault(
        reason="timing.wrong_result",
        message=f"{len(wrong)} of {calls} timed calls left another result than an untimed run of the same inputs; the "
        f"first was call {wrong[0][1]} of replay {wrong[0][0]}",
    )


def _quad(sample, a: Contestant, b: Contestant, *, a_first: bool) -> Quad:
    """A B B A or B A A B: either way both contestants have the same mean position in time."""
    if a_first:
        a1, b1, b2, a2 = sample(a), sample(b), sample(b), sample(a)
    else:
        b1, a1, a2, b2 = sample(b), sample(a), sample(a), sample(b)
    return Quad(a1=a1, b1=b1, b2=b2, a2=a2)


def _times(contestant: Contestant, samples: tuple[float, ...]) -> Times:
    return Times(name=contestant.name, microseconds=median_interval(samples), samples=samples)
