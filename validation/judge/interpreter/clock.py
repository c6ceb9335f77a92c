"""What has happened before what, among the programs of a step: vector clocks over segments of programs.

A program is cut into segments at its atomics. A segment is ordered before what now runs when it belongs to the running
program, to a launch that streams and waits order before this one (../happens_before.py), or when a chain of atomics
hands it over: a releasing atomic on an address, then an acquiring one on the same address (acquire and release are the
default; relaxed ones, and those of scope "cta", hand nothing over). That is the PTX memory model's causality order as
far as programs that run one after another can show it.
"""

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from ..happens_before import Order

Program = tuple[int, int, int]


@dataclass(frozen=True)
class Started:
    """A program that has run, or runs: its launch, its kernel and its place in the grid."""

    launch: int
    kernel: str
    index: Program


class Clock:
    """Numbers segments from 1 in the order in which they ran."""

    def __init__(self) -> None:
        self.segment = 0
        self.atomics: set[int] = set()
        self._programs: list[Started] = []
        self._starts: list[int] = []
        self._order = Order(entry=frozenset(), waited=frozenset())
        self._executed: set[int] = set()
        self._launch_start = 1
        self._acquired = 0
        self._waited = False

    @property
    def first(self) -> int:
        """The running program's first segment."""
        return self._starts[-1]

    def begin_launch(self, number: int, order: Order) -> None:
        """Launch `number` runs from here on."""
        self._order = order
        self._launch_start = self.segment + 1
        # Every segment below `settled` is ordered before whatever this launch does.
        self.settled = self._launch_start if self._executed <= order.entry else 1
        self._executed.add(number)

    def begin_program(self, program: Started) -> None:
        """`program` runs from here on."""
        self.segment += 1
        self._programs.append(program)
        self._starts.append(self.segment)
        self._acquired = 0
        self._waited = False

    def wait_for_dependency(self) -> None:
        """The running program called `gdc_wait`."""
        self._waited = True

    def program_of(self, segment: int) -> Started:
        """The program that a segment belongs to."""
        return self._programs[bisect_right(self._starts, segment) - 1]

    def ordered(self, segment: int) -> bool:
        """Whether a segment is ordered before the next access of the running program."""
        if segment < self.settled or segment >= self.first or self._acquired >> segment & 1:
            return True
        finished: Collection[int] = self._order.waited if self._waited else self._order.entry
        return segment < self._launch_start and self.program_of(segment).launch in finished

    def dependent(self, segment: int) -> bool:
        """Whether a segment would be ordered before the running program, had that called `gdc_wait`."""
        return not self._waited and self.program_of(segment).launch in self._order.waited

    def begin_atomic(self) -> None:
        """The next access is an atomic: a segment of its own."""
        self.segment += 1
        self.atomics.add(self.segment)

    def end_atomic(self, acquired: int) -> None:
        """The atomic is done and has taken over the segments in `acquired`, a bit set."""
        self._acquired |= acquired
        self.segment += 1

    def known(self) -> int:
        """What a release hands over, as a bit set: the program's own segments up to now, and what it acquired."""
        return self._acquired | (1 << self.segment + 1) - (1 << self.first)
