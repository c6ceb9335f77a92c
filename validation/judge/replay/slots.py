"""One arena on the device: where it lies, how it is put back, and the small memory that its launches need."""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .driver import Driver, Handle, TensorMap
from .kernels import JudgeKernels

ALIGNMENT = 256


class Kind(StrEnum):
    """What a plan may do with a region: nothing; leave results; use it at will; keep a counter in it."""

    FIXED = "fixed"
    WRITTEN = "written"
    SCRATCH = "scratch"
    COUNTER = "counter"


@dataclass(frozen=True)
class Region:
    """A named buffer of an arena. Bytes; `shift` lowers the address that kernels are given."""

    offset: int
    bytes: int
    kind: Kind
    shift: int = 0


@dataclass
class Slot:
    """An arena of `size` bytes at `base`, inside an allocation that is `slack` bytes longer; all of it is watched.

    It is also what argument packing asks for addresses (see arguments.Placing).
    """

    driver: Driver
    kernels: JudgeKernels
    stream: Handle
    size: int
    regions: Mapping[str, Region]
    lead: int
    slack: int
    whole: bool
    seed: int
    blank: frozenset[str] = frozenset()
    """Regions that hold nothing. With any, nothing but the other regions is ever filled, and nothing is put back."""
    extra: list[tuple[int, int]] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.allocation = self.driver.allocate(self.size + self.slack)
        self.base = self.allocation + self.lead
        if not self.blank:
            self.kernels.noise(self.allocation, self.size + self.slack, self.seed, self.stream)
        everything = [(0, self.size + self.slack)] if self.whole else self._of(Kind.WRITTEN, Kind.COUNTER)
        self._ranges = [] if self.blank else everything
        self._pristine = self.driver.allocate(max(1, sum(_padded(size) for _, size in self._ranges)))

    def _of(self, *kinds: Kind) -> list[tuple[int, int]]:
        """(offset in the allocation, bytes) of the regions of some kinds, in the order of their names."""
        found = (region for _, region in sorted(self.regions.items()) if region.kind in kinds)
        return [(self.lead + region.offset, region.bytes) for region in found if region.bytes]

    def fill(self, host: int) -> None:
        """Takes the arena's contents from host memory, and keeps them."""
        self.driver.synchronize()  # copies from the host do not wait for this slot's stream
        filled = [one for name, one in self.regions.items() if name not in self.blank]
        for offset, size in ((one.offset, one.bytes) for one in filled) if self.blank else ((0, self.size),):
            if size:
                self.driver.upload(self.base + offset, host + offset, size)
        self.keep()

    def keep(self) -> None:
        """Makes what is there now the image that `restore` returns to."""
        place = self._pristine
        for offset, size in self._ranges:
            self.driver.copy(place, self.allocation + offset, size, self.stream)
            place += _padded(size)
        self.driver.synchronize()

    def restore(self) -> None:
        """Enqueues the copies that put back what a run may have changed; scratch as well where all of it is kept."""
        place = self._pristine
        for offset, size in self._ranges:
            self.driver.copy(self.allocation + offset, place, size, self.stream)
            place += _padded(size)

    def refresh(self, seed: int) -> None:
        """Enqueues fresh noise for everything that is scratch, but for what is to stay blank."""
        if self.blank:
            return
        scratch = [(self.allocation + offset, size) for offset, size in self._of(Kind.SCRATCH)]
        for number, (address, size) in enumerate(scratch + self.extra):
            self.kernels.noise(address, size, seed + number, self.stream)

    def freshen(self, seed: int, masks: Mapping[str, int]) -> None:
        """Enqueues bit flips in some regions, where their masks of 64 bits allow them. `restore` knows nothing of them
        unless the region is in the image."""
        for number, (name, mask) in enumerate(sorted(masks.items())):
            region = self.regions[name]
            self.kernels.freshen(self.base + region.offset, region.bytes, seed + number, mask, self.stream)

    def watched(self, everything: bool) -> list[tuple[int, int]]:
        """(address, bytes) that a digest covers: the written regions, or all but scratch and counters."""
        if not everything:
            return [(self.allocation + offset, size) for offset, size in self._of(Kind.WRITTEN)]
        free = self._of(Kind.SCRATCH, Kind.COUNTER)
        return [(self.allocation + offset, size) for offset, size in _between(free, self.size + self.slack)]

    def read(self, host: int) -> None:
        """Copies the arena to host memory."""
        self.driver.download(host, self.base, self.size)

    def unbind(self) -> None:
        """Gives back what the launches that were bound to this slot needed beside it."""
        for address in (*(address for address, _ in self.extra), *self.tables):
            self.driver.free(address)
        self.extra, self.tables = [], []

    def free(self) -> None:
        """Gives all of its memory back."""
        self.unbind()
        for address in (self.allocation, self._pristine):
            self.driver.free(address)

    # What argument packing asks for.

    def address(self, buffer: str, offset: int) -> int:
        """The address that a kernel is given: 64 bits, and outside of the arena where the region is shifted."""
        region = self.regions[buffer]
        return self.base + region.offset + offset - region.shift

    def tensor_map(self, request: TensorMap) -> bytes:
        """An encoded tensor map."""
        return self.driver.tensor_map(request)

    def table(self, addresses: Sequence[int]) -> int:
        """Address of a device array of 64-bit values."""
        values = (ctypes.c_uint64 * len(addresses))(*addresses)
        place = self.driver.allocate(ctypes.sizeof(values))
        self.tables.append(place)
        self.driver.upload(place, ctypes.addressof(values), ctypes.sizeof(values))
        return place

    def scratch(self, size: int, align: int) -> int:
        """Address of memory that only one launch uses; 0 for none. Allocations are aligned to 256 bytes or more."""
        if not size:
            return 0
        if align > ALIGNMENT:
            raise ValueError(f"scratch aligned to {align} bytes, at most {ALIGNMENT} are offered")
        self.extra.append((self.driver.allocate(size), size))
        return self.extra[-1][0]


def _between(places: Iterable[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """(offset, bytes) of what lies between the given places, up to `end`. Each starts at a multiple of eight bytes."""
    found, start = [], 0
    for offset, size in (*sorted(places), (end, 0)):
        if offset > start:
            found.append((start, offset - start))
        start = -(-(offset + size) // 8) * 8  # a digest reads words; the few bytes left out are noise
    return found


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
