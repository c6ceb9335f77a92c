"""Who wrote and who read each byte of a step, and which of it is a mistake that running programs in turn would hide.

For every buffer that a step may write there is a shadow: per granule (the smallest element accessed so far) the segment
(clock.py) that wrote it last and two that read it. An access is refused when

- it and an earlier one touch the same byte, at least one writes, they are not both atomic, and nothing orders them
  (`race.*`). Two plain stores of the same bits are let through: the memory holds that value whichever comes last, and
  redundant programs are an honest idiom. A reader of them must be ordered after all the same;
- it reads what nothing has written in this step: an output's poison (`poison.read`) or noise in scratch
  (`scratch.uninitialised_read`). Lanes that are masked off read nothing;
- it writes to a page of a state that no live row owns (`state.foreign_page`) or between pages (`gap.written`), whether
  or not the old contents are put back;
- two lanes of one store give one address different values (`race.between_lanes`).

At most two unordered readers are remembered for a granule. A write that is ordered after both of them, yet not after a
third, is not seen here; the third program's other accesses usually are.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .clock import Clock
from .violations import Conflict

# In place of a segment that wrote: contents that may not be read yet, and bytes that may not be written at all.
UNWRITTEN, CLOSED, GAP = (np.uint32(2**32 - n) for n in (1, 2, 3))
_LOWEST_MARK = int(GAP)


@dataclass
class Shadow:
    """What is known of one buffer: `granule` and `page` (stride; 0 without pages) in bytes; `holds` what it began with."""

    buffer: str
    start: int
    size: int
    holds: str
    granule: int
    page: int
    writer: np.ndarray
    reader: np.ndarray
    second: np.ndarray | None = None
    sync: np.ndarray | None = None

    def refine(self, granule: int) -> None:
        """Cuts granules into smaller ones: something accesses smaller elements than before."""
        times = self.granule // granule
        for name in ("writer", "reader", "second", "sync"):
            if getattr(self, name) is not None:
                setattr(self, name, np.repeat(getattr(self, name), times))
        self.granule = granule


def shadow(buffer: str, place: Mapping, start: int, granule: int) -> Shadow | None:
    """The shadow of a buffer as the judge describes it; None for one that no launch may write.

    `place` has `bytes`, `writable` and, optionally, `holds` ("values", "poison" or "noise") and `pages` ({"stride",
    "bytes": of each page, "live": which pages a row of this step owns}).
    """
    if not place["writable"]:
        return None
    size, holds = place["bytes"], place.get("holds", "values")
    pages = place.get("pages")
    for divisor in (size, *((pages["stride"], pages["bytes"]) if pages else ())):
        while divisor % granule:
            granule //= 2
    count = size // granule
    # Zeros cost no memory until they are touched.
    writer = np.zeros(count, np.uint32) if holds == "values" else np.full(count, UNWRITTEN)
    if pages:
        step, length = pages["stride"] // granule, pages["bytes"] // granule
        for number, live in enumerate(pages["live"]):
            at = number * step
            if not live:
                writer[at : at + length] = CLOSED
            writer[at + length : at + step] = GAP
    page = pages["stride"] if pages else 0
    return Shadow(buffer, start, size, holds, granule, page, writer, np.zeros(count, np.uint32))


class AccessLog:
    """The shadows of one step, and the accesses of its programs as they come.

    `conflict` is the first access that is refused. The run goes on: what it leaves shows what is wrong with the kernel.
    """

    def __init__(self, shadows: Mapping[str, Shadow]) -> None:
        self.clock = Clock()
        self.conflict: Conflict | None = None
        self._shadows = shadows
        self._clocks = [0]

    def of(self, buffer: str) -> Shadow | None:
        """The shadow of a buffer, if it has one."""
        return self._shadows.get(buffer)

    def read(self, s: Shadow, addresses: np.ndarray, itemsize: int, atomic: bool = False) -> None:
        """The running program reads `itemsize` bytes at each of `addresses`."""
        if self.conflict:
            return
        index = _granules(s, addresses, itemsize)
        self._check_read(s, index, s.writer.take(index), atomic)
        self._note_reader(s, index)

    def write(self, s: Shadow, addresses: np.ndarray, itemsize: int, values: np.ndarray | None) -> None:
        """The running program writes `values` (None: an atomic, whose value is nobody's in particular)."""
        if self.conflict:
            return
        index = _granules(s, addresses, itemsize)
        self._check_write(s, index, addresses, itemsize, values)
        s.writer[index] = self.clock.segment

    def synchronise(self, s: Shadow, addresses: np.ndarray, itemsize: int, acquire: bool, release: str) -> int:
        """Hands clocks over at the addresses of an atomic; returns what it acquired, as a bit set.

        `release` is "" (keeps what earlier releases left), "add" (a read-modify-write) or "replace" (a store).
        """
        if s.sync is None:
            s.sync = np.zeros(len(s.writer), np.uint32)
        index = _granules(s, addresses, itemsize)
        found = np.unique(s.sync[index]).tolist()
        acquired = 0
        if acquire:
            for number in found:
                acquired |= self._clocks[number]
        if release:
            known = self.clock.known() | acquired
            here = s.sync[index]
            for number in found:
                self._clocks.append(known | (self._clocks[number] if release == "add" else 0))
                s.sync[index[here == number]] = len(self._clocks) - 1
        return acquired

    def same_lanes(self, s: Shadow, addresses: np.ndarray, values: np.ndarray, stored: np.ndarray) -> None:
        """After a store: `stored` must be what each lane stored."""
        width = np.dtype(f"u{values.dtype.itemsize}")
        differ = np.ascontiguousarray(values).view(width) != stored.view(width)
        if differ.any():
            byte = int(addresses[int(np.argmax(differ))]) - s.start
            self._report(s, "race.between_lanes", "store", byte, "two lanes of one store write different values here")

    def _check_read(self, s: Shadow, index: np.ndarray, writers: np.ndarray, atomic: bool) -> None:
        for writer in self._questionable(writers):
            if writer == UNWRITTEN:
                reason = "poison.read" if s.holds == "poison" else "scratch.uninitialised_read"
                what = "nothing has written it in this step, so what it holds is no one's to use"
                self._report(s, reason, "read", self._byte(s, index, writers == writer), what)
            if writer < _LOWEST_MARK and not self.clock.ordered(writer) and not (atomic and writer in self.clock.atomics):
                self._race(s, "read", self._byte(s, index, writers == writer), writer, "wrote")

    def _check_write(
        self, s: Shadow, index: np.ndarray, addresses: np.ndarray, itemsize: int, values: np.ndarray | None
    ) -> None:
        access = "atomic" if values is None else "store"
        writers = s.writer.take(index)
        for writer in self._questionable(writers):
            where = writers == writer
            if writer in (CLOSED, GAP):
                reason, what = _NOT_OURS[writer]
                byte = self._byte(s, index, where)
                self._report(s, reason, access, byte, what.format(which=_page(s, byte)))
            if writer < _LOWEST_MARK and not self.clock.ordered(writer):
                if values is None and writer in self.clock.atomics:
                    continue
                if values is None or not _unchanged(s, where, addresses, itemsize, values):
                    self._race(s, access, self._byte(s, index, where), writer, "wrote")
        for readers in (s.reader, s.second):
            if readers is None:
                continue
            seen = readers.take(index)
            for reader in self._questionable(seen):
                if not self.clock.ordered(reader) and not (values is None and reader in self.clock.atomics):
                    self._race(s, access, self._byte(s, index, seen == reader), reader, "read")

    def _note_reader(self, s: Shadow, index: np.ndarray) -> None:
        seen = s.reader.take(index)
        kept = [reader for reader in self._questionable(seen) if not self.clock.ordered(reader)]
        if not kept:
            s.reader[index] = self.clock.segment
            return
        taken = np.isin(seen, kept)
        s.reader[index[~taken]] = self.clock.segment
        if s.second is None:
            s.second = np.zeros(len(s.writer), np.uint32)
        rest = index[taken]
        seen = s.second.take(rest)
        kept = [reader for reader in self._questionable(seen) if not self.clock.ordered(reader)]
        s.second[rest[~np.isin(seen, kept)] if kept else rest] = self.clock.segment

    def _questionable(self, segments: np.ndarray) -> list[int]:
        """The distinct entries that may not be ordered before the running program: none, for nearly every access."""
        if segments.size == 0:
            return []
        highest = int(segments.max())
        if highest < self.clock.settled:
            return []
        if highest == int(segments.min()):
            return [] if highest == self.clock.segment else [highest]
        late = segments[segments >= self.clock.settled]
        return np.unique(late).tolist()

    def _byte(self, s: Shadow, index: np.ndarray, where: np.ndarray) -> int:
        return int(index[int(np.argmax(where))]) * s.granule

    def _race(self, s: Shadow, access: str, byte: int, segment: int, did: str) -> None:
        here, other = self.clock.program_of(self.clock.segment), self.clock.program_of(segment)
        if other.launch == here.launch:
            reason, who = "race.between_programs", f"program {other.index} of this launch"
            why = "nothing orders the two"
        else:
            reason, who = "race.between_streams", f"program {other.index} of launch {other.launch} ({other.kernel})"
            why = f"no stream order and no wait comes between it and launch {here.launch}"
            if self.clock.dependent(segment):
                reason, why = "race.dependent_launch", "this programmatic launch did so before gdc_wait"
        self._report(s, reason, access, byte, f"{who} {did} it, and {why}", str(other.index))

    def _report(self, s: Shadow, reason: str, access: str, byte: int, what: str, other: str = "") -> None:
        here = self.clock.program_of(self.clock.segment)
        found = Conflict(reason, here.kernel, here.index, access, s.buffer, byte, what, other)
        self.conflict = self.conflict or found


_NOT_OURS = {
    int(CLOSED): ("state.foreign_page", "it lies in {which}, which no live row of this step owns"),
    int(GAP): ("gap.written", "it lies in the gap between its pages (strides larger than the dense ones)"),
}


def _granules(s: Shadow, addresses: np.ndarray, itemsize: int) -> np.ndarray:
    """Numbers of the granules under each of `addresses`, lane by lane."""
    if itemsize < s.granule:
        s.refine(itemsize)
    index = (addresses - np.uint64(s.start)).view(np.int64) >> (s.granule.bit_length() - 1)
    if itemsize == s.granule:
        return index
    return (index[:, None] + np.arange(itemsize // s.granule)).ravel()


def _unchanged(s: Shadow, where: np.ndarray, addresses: np.ndarray, itemsize: int, values: np.ndarray) -> bool:
    """Whether the lanes with a granule in `where` store what the memory holds already."""
    lanes = where.reshape(len(addresses), -1).any(1)
    memory = np.frombuffer((ctypes.c_uint8 * s.size).from_address(s.start), np.uint8)
    offsets = (addresses[lanes] - np.uint64(s.start)).view(np.int64)
    held = memory[offsets[:, None] + np.arange(itemsize)]
    return bool((held == np.ascontiguousarray(values[lanes]).view(np.uint8).reshape(held.shape)).all())


def _page(s: Shadow, byte: int) -> str:
    number = byte // s.page
    return f"page {number}" if number else "the null page (slot 0)"
