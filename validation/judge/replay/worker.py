"""What the process that owns the device does. It is told everything, knows no oracle, and never imports a candidate.

Its commands are in README.md; each is a method, given the request, its blobs and its memory files (serve.py calls them).
"""

import ctypes
import mmap
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..device_code.records import DeviceCode
from ..pack import KernelPack, Role
from ..plan_terms import ALIGNMENT as PLAN_ALIGNMENT
from .driver import Captured, Driver, Handle
from .kernels import JudgeKernels
from .program import Bound, Program, Streams, enqueue
from .requests import CommandError, RunRequest, SlotRequest, number_of, only, parsed
from .slots import ALIGNMENT, Kind, Region, Slot


class Worker:
    """The state behind the commands: one program, its slots, one captured graph."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kernels = JudgeKernels(driver)
        self._streams = Streams(driver)
        self._marks = driver.event(), driver.event()
        self._program: Program | None = None
        self._loaded: tuple[KernelPack, dict[str, DeviceCode]] | None = None
        self._slots: dict[int, Slot] = {}
        self._bound: dict[int, tuple[Bound, ...]] = {}
        self._graph: Handle | None = None

    def load(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Loads a plan's device code afresh; what was loaded or allocated before is given back."""
        self.release({}, (), ())
        pack = KernelPack.model_validate(only(request, "pack", "codes")["pack"])
        codes = request["codes"]
        if not isinstance(codes, list) or len(codes) != len(blobs):
            raise CommandError(f"{len(blobs)} cubins do not match the codes")
        found = {}
        for fields, cubin in zip(codes, blobs, strict=True):
            key = fields.pop("key", None) if isinstance(fields, dict) else None
            found[key] = DeviceCode.model_validate({**fields, "cubin": cubin})
        self._loaded = pack, found
        self._program = Program(self._driver, pack, found)
        return {"kernels": len(found)}

    def reload(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Loads the same code afresh, so that global symbols are as they started; slots keep what they hold."""
        only(request)
        self._needs_program()
        self._drop_graph()
        self._program.unload()
        self._program = None
        self._program = Program(self._driver, *self._loaded)
        for number, slot in self._slots.items():
            slot.unbind()
            self._bound[number] = self._program.bind(slot)
        return {}

    def slot(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Puts an arena on the device, from the memory file, and binds the plan to it."""
        asked = parsed(SlotRequest, request)
        self._needs_program()
        if asked.slot in self._slots:
            raise CommandError(f"slot {asked.slot} is taken")
        if asked.lead > asked.slack or asked.lead % ALIGNMENT or asked.slack % ALIGNMENT:
            raise CommandError(f"lead {asked.lead}, slack {asked.slack}: multiples of 256, the lead the smaller")
        for name, region in asked.regions.items():
            if region.offset % PLAN_ALIGNMENT or region.offset + region.bytes > asked.size:
                raise CommandError(f"region {name} does not fit the arena")
        regions = {
            name: Region(one.offset, one.bytes, Kind(one.kind), one.shift) for name, one in asked.regions.items()
        }
        if unknown := set(asked.blank) - set(regions):
            raise CommandError(f"no region {sorted(unknown)[0]!r} to leave blank")
        with self._mapped(memory, asked.size) as host:
            made = Slot(
                self._driver, self._kernels, self._streams.origin, asked.size, regions, asked.lead, asked.slack,
                asked.whole, asked.seed, frozenset(asked.blank),
            )  # fmt: skip
            self._slots[asked.slot] = made
            made.fill(host)
        try:
            self._bound[asked.slot] = self._program.bind(made)
        except KeyError as error:
            raise CommandError(f"the plan names {error}, which the slot lacks") from error
        made.refresh(asked.seed ^ 1)
        self._driver.synchronize()
        return {"address": made.base}

    def run(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Runs the plan on slots in order, directly or captured; between repeats everything is put back."""
        asked = parsed(RunRequest, request)
        started = time.perf_counter_ns()
        kernels: tuple[str, ...] = ()
        if asked.graph:
            captured = self._captured(asked)
            kernels = captured.kernels
            try:
                self._driver.launch_graph(captured.graph, self._streams.origin)
                self._driver.synchronize()
            finally:
                self._driver.destroy_graph(captured.graph)
        else:
            self._enqueue(asked)
            self._driver.synchronize()
        return {"host_ns": time.perf_counter_ns() - started, "kernels": Counter(kernels)}

    def capture(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Captures runs on the slots, one after the other, as the graph that `replay` launches."""
        asked = parsed(RunRequest, {**request, "graph": True})
        self._drop_graph()
        captured = self._captured(asked)
        self._graph = captured.graph
        # The first launch uploads the graph; runs are put back before they count.
        return {"kernels": Counter(captured.kernels)}

    def replay(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Launches the captured graph once: time between events around it, and on the host around a full drain."""
        only(request)
        if self._graph is None:
            raise CommandError("nothing was captured")
        start, end = self._marks
        self._driver.reset_persisting_l2()
        self._driver.synchronize()
        begun = time.perf_counter_ns()
        self._driver.record(start, self._streams.origin)
        self._driver.launch_graph(self._graph, self._streams.origin)
        self._driver.record(end, self._streams.origin)
        self._driver.synchronize()
        host = time.perf_counter_ns() - begun
        return {"event_ns": self._driver.elapsed_ns(start, end), "host_ns": host}

    def restore(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Puts slots back to their images, with fresh noise in everything that is scratch."""
        seed = number_of(only(request, "slots", "seed"), "seed")
        for slot in self._named(request["slots"]):
            slot.restore()
            slot.refresh(seed)
            seed += 1 << 20
        self._driver.synchronize()
        return {}

    def freshen(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Flips random bits of regions of each slot, where a mask allows it; other bits in each slot."""
        seed = number_of(only(request, "slots", "seed", "masks"), "seed")
        for slot in self._named(request["slots"]):
            for name in request["masks"]:
                if name not in slot.regions or slot.regions[name].kind is not Kind.FIXED:
                    raise CommandError(f"region {name!r} is none that only the judge writes to")
                number_of(request["masks"], name)
            slot.freshen(seed, request["masks"])
            seed = (seed + (1 << 20)) % (1 << 64)
        self._driver.synchronize()
        return {}

    def digest(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """The keyed digest of each slot, in the order given."""
        everything = bool(only(request, "slots", "key", "everything")["everything"])
        key = request["key"]
        if not isinstance(key, list) or len(key) != 2:
            raise CommandError("a key is two numbers")
        first, second = (number_of({"key": part}, "key") for part in key)
        digests = [
            self._kernels.digest(slot.watched(everything), (first, second), self._streams.origin)
            for slot in self._named(request["slots"])
        ]
        return {"digests": digests}

    def download(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Copies a slot's arena into the memory file."""
        (slot,) = self._named([only(request, "slot")["slot"]])
        with self._mapped(memory, slot.size) as host:
            slot.read(host)
        return {}

    def probe(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Noise of the judge's, digested on the device: whoever asked knows what comes out."""
        size, seed = number_of(only(request, "size", "seed", "key"), "size"), number_of(request, "seed")
        address = self._driver.allocate(max(1, size))
        try:
            self._kernels.noise(address, size, seed, self._streams.origin)
            key = (number_of({"key": request["key"][0]}, "key"), number_of({"key": request["key"][1]}, "key"))
            return {"digest": self._kernels.digest([(address, size)], key, self._streams.origin)}
        finally:
            self._driver.free(address)

    def release(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Gives back slots, graph and code."""
        only(request)
        self._drop_graph()
        self._bound.clear()
        self._streams.rename()
        while self._slots:
            self._slots.popitem()[1].free()
        if self._program is not None:
            self._program.unload()
            self._program = None
        return {}

    def _needs_program(self) -> None:
        if self._program is None:
            raise CommandError("no plan is loaded")

    def _named(self, numbers: Any) -> list[Slot]:
        if not isinstance(numbers, list) or any(number not in self._slots for number in numbers):
            raise CommandError(f"slots {numbers!r}: there are {sorted(self._slots)}")
        return [self._slots[number] for number in numbers]

    def _captured(self, asked: RunRequest) -> Captured:
        self._named(asked.slots)
        self._streams.rewind()
        self._driver.begin_capture(self._streams.origin)
        self._enqueue(asked)
        return self._driver.end_capture(self._streams.origin)

    def _enqueue(self, asked: RunRequest) -> None:
        roles = frozenset(Role(role) for role in asked.roles)
        slots = self._named(asked.slots)
        self._streams.rewind()
        for repeat in range(asked.repeats):
            for number, slot in zip(asked.slots, slots, strict=True):
                if repeat:
                    slot.restore()
                enqueue(self._driver, self._kernels, self._streams, self._bound[number], roles, asked.delays)

    def _drop_graph(self) -> None:
        if self._graph is not None:
            self._driver.destroy_graph(self._graph)
            self._graph = None

    @contextmanager
    def _mapped(self, memory: Sequence[int], size: int) -> Iterator[int]:
        """The host address of the command's memory file."""
        if len(memory) != 1:
            raise CommandError(f"{len(memory)} memory files, one is needed")
        if os.fstat(memory[0]).st_size < size:
            raise CommandError(f"the memory file has {os.fstat(memory[0]).st_size} bytes, {size} are needed")
        with mmap.mmap(memory[0], size) as mapped:
            anchor = ctypes.c_char.from_buffer(mapped)
            try:
                yield ctypes.addressof(anchor)
            finally:
                del anchor
