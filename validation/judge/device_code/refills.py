"""Shared memory that a bulk copy may fill again before what was read from it has been read. Pure; from PTX.

A bulk copy writes through the async proxy. A barrier of any kind orders a thread's reads, which are of the generic
proxy, before what others do behind it, but not before writes of another proxy: between proxies only
`fence.proxy.async` orders (PTX ISA, "Async proxy" and "Causality order"). So from every copy the way is followed back,
without crossing a fence, against the order of instructions in a thread and from waits to the arrivals that they may
wait for. A read that it comes to, of bytes that the copy may write, is one that the copy may overtake.

- Only reads behind a wait for an mbarrier count: others cannot see what a copy brought.
- A wait and an arrival belong together where they may name one mbarrier, unless every thread that comes to the arrival
  is past the wait for good; at a named barrier, where they may name one and no thread comes from one to the other.
  Over such a step only a copy counts that is made again, or beside another one to the same bytes: what is written once
  is not filled again.
- Conditions are not followed. Within a thread, a fence that it runs on some way from the read on to the copy counts on
  all ways, so that "when this was the last tile, release" is a release; from thread to thread it has to be on every
  way.
- Places are told apart by `shared_places.py`: by variable, by what bounds their addresses, and as each warp's own.

Not seen: order made by flags in memory that are polled, and reads through a generic address that was kept in memory.
Reads by wgmma, tcgen05 and bulk copies are of the copies' own proxy; `cp.async` writes through the generic one.
"""

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from .ptx_code import Code, Instruction, parts, read
from .shared_places import Place, Places

_COPY = re.compile(r"cp(?:\.reduce)?\.async\.bulk\b.*mbarrier::complete_tx|clusterlaunchcontrol\.try_cancel\b")
_FENCE = re.compile(r"(?:fence|membar)\.proxy\.async(?:\.shared::\w+|::generic\.release\.[\w.:]+)?\Z")
_READ = re.compile(r"(?:ld|ldmatrix|atom|red|wmma\.load)\.(?!param\b|const\b|local\b|global\b)")
_OTHER_SPACE = re.compile(r"\.(?:global|local|const|param)\b")
_WIDTH = re.compile(r"(?:\.v(\d))?\.[a-z]+?(\d+)\Z")
_ARRIVAL = re.compile(
    r"mbarrier\.(?:arrive|complete_tx)|tcgen05\.commit|cp\.async\.mbarrier\.arrive|(?:st|red)\.async\b"
)
_WAIT = re.compile(r"mbarrier\.(?:test|try)_wait")
_NAMED = re.compile(r"bar(?:rier)?(?:\.cta)?\.(?:sync|red|arrive)\b")
_CLUSTER = re.compile(r"barrier\.cluster\.(arrive|wait)\b")
_EXPECTED = re.compile(r"mbarrier\.(?:arrive\.)?expect_tx\b")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_BARRIER_BYTES, _ROW_BYTES, _RESPONSE_BYTES = 8, 16, 16
_SHOWN = 60


class Step(NamedTuple):
    """An instruction on the way, and whether another thread than the one that makes the copy may run it."""

    number: int
    elsewhere: bool


@dataclass(frozen=True)
class Refill:
    """A read that a copy may overtake: each instruction by its line in the PTX (from 1) and the start of its text.

    `handed` is where the thread hands the place over with its read still under way: at a barrier, or by the copy.
    """

    read: tuple[int, str]
    handed: tuple[int, str]
    copy: tuple[int, str]

    def __str__(self) -> str:
        copy = "" if self.handed == self.copy else f", behind which the copy of line {self.copy[0]} may fill it again"
        return (
            f"shared memory is read in line {self.read[0]} of its PTX (`{self.read[1]}`) and handed over in line "
            f"{self.handed[0]} (`{self.handed[1]}`){copy}"
        )


def unfenced_refills(ptx: str) -> tuple[Refill, ...]:
    """Reads of shared memory that a bulk copy to the same bytes may overtake, in the order of the text; each once.

    `ptx` is a module of PTX, of which every kernel is looked at.
    """
    if "async.bulk" not in ptx and "try_cancel" not in ptx:
        return ()
    return _Search(ptx).found()


class _Search:
    def __init__(self, ptx: str) -> None:
        self._code: Code = read(ptx)
        self._all = self._code.instructions
        self._places = Places(ptx, self._code)
        self._read, self._arrivals = cache(self._read), cache(self._arrivals)
        self._onwards, self._reached = cache(self._onwards), cache(self._reached)
        self._copies = {one.number: self._filled(one) for one in self._all if _COPY.match(one.name)}

    def found(self) -> tuple[Refill, ...]:
        known: dict[int, Refill] = {}
        for copy in self._copies:
            for number, refill in self._overtaken(self._all[copy]):
                known.setdefault(number, refill)
        return tuple(known[number] for number in sorted(known))

    def _overtaken(self, copy: Instruction) -> Iterator[tuple[int, Refill]]:
        """Reads that a copy may come before, each with how."""
        filled, again = self._copies[copy.number], self._is_made_again(copy)
        start = Step(copy.number, False)
        ahead = {start: start}  # a step back -> the one that it was taken from
        queue = deque([start])
        while queue:
            step = queue.popleft()
            earlier = [Step(number, step.elsewhere) for number in self._code.before[step.number]]
            earlier += [Step(number, True) for number in self._arrivals(step.number)] if again else []
            for back in earlier:
                one = self._all[back.number]
                if back in ahead or back.number in self._fences and not one.guard:
                    continue
                ahead[back] = step
                queue.append(back)
                place = self._read(one)
                if not place or not place.meets(filled, back.elsewhere) or not self._may_be_filled(one.number):
                    continue
                if back.elsewhere or not self._may_be_fenced(one.number, copy.number):
                    yield one.number, Refill(_shown(one), _shown(self._handed(back, ahead)), _shown(copy))

    def _handed(self, step: Step, ahead: dict[Step, Step]) -> Instruction:
        """Where the way from a read to a copy leaves the thread: the copy itself where it never does."""
        while ahead[step] != step and ahead[step].number in self._all[step.number].follows:
            step = ahead[step]
        return self._all[step.number]

    def _may_be_fenced(self, number: int, copy: int) -> bool:
        """Whether a thread may run a fence between a read and a copy, as it goes on in the text, or a round later."""
        onwards = self._onwards(number)
        if copy < number:
            return any(fence in onwards and self._leads(fence, copy) for fence in self._fences)
        return any(fence in onwards and copy in self._onwards(fence) for fence in self._fences)

    def _onwards(self, number: int) -> set[int]:
        """Instructions that a thread may come to without going back in the text."""
        seen, stack = set(), [number]
        while stack:
            one = stack.pop()
            ahead = [later for later in self._all[one].follows if later > one and later not in seen]
            seen.update(ahead)
            stack += ahead
        return seen

    @cached_property
    def _fences(self) -> set[int]:
        return {one.number for one in self._all if _FENCE.match(one.name)}

    def _filled(self, copy: Instruction) -> Place:
        """What a copy writes. One whose size is not in its operands brings no more than a barrier is told to expect.

        A place whose end is not known ends where the next mbarrier lies: no copy writes over one.
        """
        address = _BRACKETS.findall(copy.operands)[:1] or ["?"]
        operands = parts(copy.operands)
        if copy.name.startswith("clusterlaunch"):
            size: float = _RESPONSE_BYTES
        elif ".tensor" in copy.name:
            size = self._expected
        else:
            size = self._places.value(copy, operands[2]).high if len(operands) > 2 else math.inf
        place = self._places.named(copy, address[0], size)
        ends = [at.first for at in self._barriers.values() if at.variable == place.variable and at.first > place.first]
        return replace(place, end=min(ends, default=math.inf)) if place.end == math.inf else place

    @cached_property
    def _expected(self) -> float:
        """The most bytes that a barrier is told to expect at once."""
        told = [self._places.value(one, parts(one.operands)[-1]).high for one in self._all if _EXPECTED.match(one.name)]
        return max(told, default=math.inf)

    @cached_property
    def _barriers(self) -> dict[int, Place]:
        """The mbarriers that instructions arrive at or wait for: instruction -> place."""
        found = {}
        for one in self._all:
            if _ARRIVAL.match(one.name) or _WAIT.match(one.name):
                addresses = _BRACKETS.findall(one.operands) or ["?"]
                at = addresses[-1] if "async" in one.name and "mbarrier.arrive" not in one.name else addresses[0]
                found[one.number] = self._places.named(one, at, _BARRIER_BYTES)
        return found

    def _read(self, one: Instruction) -> Place | None:
        """What an instruction reads of shared memory through the generic proxy; None where it reads none."""
        if not _READ.match(one.name) or _OTHER_SPACE.search(one.name) or ".async" in one.name:
            return None
        addresses = _BRACKETS.findall(one.operands)
        width = _WIDTH.search(one.name)
        if one.name.startswith("ldmatrix"):
            size: float = _ROW_BYTES
        elif width and not one.name.startswith("wmma"):
            size = int(width[1] or 1) * int(width[2]) // 8
        else:
            size = math.inf
        generic = ".shared" not in one.name
        return self._places.named(one, addresses[0], size, generic=generic) if addresses else None

    def _is_made_again(self, copy: Instruction) -> bool:
        """Whether the bytes that a copy writes are written more than once."""
        filled = self._copies[copy.number]
        others = (place for number, place in self._copies.items() if number != copy.number)
        return self._leads(copy.number, copy.number) or any(filled.meets(place, True) for place in others)

    def _may_be_filled(self, number: int) -> bool:
        """Whether a thread has waited for an mbarrier, which says that a copy is there, before it comes to a read."""
        return any(self._leads(wait, number) for wait in self._barriers if _WAIT.match(self._all[wait].name))

    def _arrivals(self, wait: int) -> list[int]:
        """Where another thread may have arrived that this instruction waited for."""
        one = self._all[wait]
        if _WAIT.match(one.name):
            at = self._barriers[wait]
            sources = [n for n, place in self._barriers.items() if place.meets(at, True)]
            sources = [n for n in sources if _ARRIVAL.match(self._all[n].name)]
            return [n for n in sources if not self._leads(wait, n) or self._leads(n, wait)]
        mine = _barrier_of(one)
        if mine is None or ".arrive" in one.name:
            return []
        sources = [n for n, name in self._named.items() if name == mine or "" in (name, mine)]
        return [n for n in sources if not self._leads(wait, n) and not self._leads(n, wait)]

    @cached_property
    def _named(self) -> dict[int, str]:
        """The named barriers that instructions arrive at: instruction -> number."""
        names = {one.number: _barrier_of(one) for one in self._all}
        return {n: name for n, name in names.items() if name is not None and ".wait" not in self._all[n].name}

    def _leads(self, start: int, end: int) -> bool:
        """Whether a thread may run one instruction after another one."""
        block = self._code.block
        return block[start] == block[end] and start < end or block[end] in self._reached(block[start])

    def _reached(self, block: int) -> set[int]:
        """Blocks that a thread may come to after one."""
        seen, stack = set(), [block]
        while stack:
            for number in self._all[self._last[stack.pop()]].follows:
                if self._code.block[number] not in seen:
                    seen.add(self._code.block[number])
                    stack.append(self._code.block[number])
        return seen

    @cached_property
    def _last(self) -> dict[int, int]:
        """The last instruction of each basic block."""
        return {block: number for number, block in enumerate(self._code.block)}


def _barrier_of(one: Instruction) -> str | None:
    """The number of a named barrier, "" where it is in a register; None for other instructions."""
    if _CLUSTER.match(one.name):
        return "cluster"
    if not _NAMED.match(one.name):
        return None
    number = [text for text in parts(one.operands) if text][".red" in one.name : 1 + (".red" in one.name)]
    return number[0] if number and number[0].isdigit() else ""


def _shown(one: Instruction) -> tuple[int, str]:
    return one.line, str(one)[:_SHOWN]
