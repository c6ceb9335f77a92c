"""The process that owns the device. It is told everything, knows no oracle, and never imports a candidate.

Its commands are in README.md. An answer is {"ok": {...}}, or {"error": {"kind", "code", "message"}} where kind is
command (malformed; nothing happened), refused (plan and code do not fit), device (the driver said so; the judge then
ends this process, since a context does not outlive most of its errors), or defect (of this module).
"""

import ctypes
import importlib
import mmap
import os
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...sandbox.frames import FrameError
from ..device_code.records import DeviceCode
from ..pack import KernelPack, Role
from ..plan_terms import ALIGNMENT as PLAN_ALIGNMENT
from . import transport
from .driver import Captured, DeviceError, Driver, Handle
from .kernels import JudgeKernels
from .program import Bound, Program, Refused, Streams, enqueue
from .slots import ALIGNMENT, Kind, Region, Slot

DRIVERS = {"cuda": f"{__package__}.cuda_driver", "fake": f"{__package__}.fake"}
MAX_SLOTS = 1024
_LOOK_SECONDS = 1.0


class CommandError(Exception):
    """A command that makes no sense: nothing has been done."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RegionRequest(_Request):
    offset: int = Field(ge=0)
    bytes: int = Field(ge=0)
    kind: str = Field(pattern="^(fixed|written|scratch|counter)$")
    shift: int = 0


class SlotRequest(_Request):
    slot: int = Field(ge=0, lt=MAX_SLOTS)
    size: int = Field(gt=0)
    regions: dict[str, RegionRequest]
    lead: int = Field(default=0, ge=0, le=1 << 24, description="bytes before the arena; a multiple of 256")
    slack: int = Field(default=ALIGNMENT, ge=0, le=1 << 25, description="bytes around the arena, the lead included")
    whole: bool = Field(default=True, description="keep an image of everything, not of the written regions alone")
    blank: list[str] = Field(default=[], description="regions without contents; nothing around regions has any then")
    seed: int = Field(ge=0, lt=1 << 64)


class RunRequest(_Request):
    slots: list[int] = Field(min_length=1, max_length=MAX_SLOTS)
    repeats: int = Field(default=1, ge=1, le=64)
    graph: bool = False
    roles: list[Literal["compute", "prefetch"]] = ["compute", "prefetch"]
    delays: dict[str, int] = {}


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
        pack = KernelPack.model_validate(_only(request, "pack", "codes")["pack"])
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
        _only(request)
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
        asked = _parsed(SlotRequest, request)
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
        asked = _parsed(RunRequest, request)
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
        asked = _parsed(RunRequest, {**request, "graph": True})
        self._drop_graph()
        captured = self._captured(asked)
        self._graph = captured.graph
        # The first launch uploads the graph; runs are put back before they count.
        return {"kernels": Counter(captured.kernels)}

    def replay(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Launches the captured graph once: time between events around it, and on the host around a full drain."""
        _only(request)
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
        seed = _number(_only(request, "slots", "seed"), "seed")
        for slot in self._named(request["slots"]):
            slot.restore()
            slot.refresh(seed)
            seed += 1 << 20
        self._driver.synchronize()
        return {}

    def freshen(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Flips random bits of regions of each slot, where a mask allows it; other bits in each slot."""
        seed = _number(_only(request, "slots", "seed", "masks"), "seed")
        for slot in self._named(request["slots"]):
            for name in request["masks"]:
                if name not in slot.regions or slot.regions[name].kind is not Kind.FIXED:
                    raise CommandError(f"region {name!r} is none that only the judge writes to")
                _number(request["masks"], name)
            slot.freshen(seed, request["masks"])
            seed = (seed + (1 << 20)) % (1 << 64)
        self._driver.synchronize()
        return {}

    def digest(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """The keyed digest of each slot, in the order given."""
        everything = bool(_only(request, "slots", "key", "everything")["everything"])
        key = request["key"]
        if not isinstance(key, list) or len(key) != 2:
            raise CommandError("a key is two numbers")
        first, second = (_number({"key": part}, "key") for part in key)
        digests = [
            self._kernels.digest(slot.watched(everything), (first, second), self._streams.origin)
            for slot in self._named(request["slots"])
        ]
        return {"digests": digests}

    def download(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Copies a slot's arena into the memory file."""
        (slot,) = self._named([_only(request, "slot")["slot"]])
        with self._mapped(memory, slot.size) as host:
            slot.read(host)
        return {}

    def probe(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Noise of the judge's, digested on the device: whoever asked knows what comes out."""
        size, seed = _number(_only(request, "size", "seed", "key"), "size"), _number(request, "seed")
        address = self._driver.allocate(max(1, size))
        try:
            self._kernels.noise(address, size, seed, self._streams.origin)
            key = (_number({"key": request["key"][0]}, "key"), _number({"key": request["key"][1]}, "key"))
            return {"digest": self._kernels.digest([(address, size)], key, self._streams.origin)}
        finally:
            self._driver.free(address)

    def release(self, request: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
        """Gives back slots, graph and code."""
        _only(request)
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


COMMANDS: tuple[str, ...] = (
    "load", "reload", "slot", "run", "capture", "replay", "restore", "freshen", "digest", "download", "probe", "release",
)  # fmt: skip


def main(descriptor: int, judge: int, kind: str, specification: str) -> None:
    """Serves commands on the socket `descriptor` until it closes or the process `judge` is gone."""
    threading.Thread(target=_end_with, args=(judge,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection:
        try:
            driver = importlib.import_module(DRIVERS[kind]).make(specification)
            worker = Worker(driver)
        except (DeviceError, ImportError, RuntimeError) as error:
            # cuda-bindings raises RuntimeError where there is no driver library to load.
            code = error.code if isinstance(error, DeviceError) else type(error).__name__
            transport.send(connection, {"error": {"kind": "device", "code": code, "message": str(error)}})
            return
        transport.send(connection, {"ok": asdict(driver.facts)})
        _serve(connection, worker)


def _serve(connection: socket.socket, worker: Worker) -> None:
    while True:
        try:
            document, blobs, memory = transport.receive(connection)
        except transport.Closed:
            return
        except FrameError as error:
            transport.send(connection, _error("command", "frame", str(error)))
            return  # what follows in the stream cannot be told apart
        try:
            answer = _answered(worker, document, blobs, memory)
        finally:
            for one in memory:
                os.close(one)
        transport.send(connection, answer)


def _answered(worker: Worker, document: dict, blobs: Sequence[bytes], memory: Sequence[int]) -> dict:
    name = document.pop("command", None)
    if name not in COMMANDS:
        return _error("command", "unknown", f"no command {name!r}; there are {', '.join(COMMANDS)}")
    handler: Callable[..., dict] = getattr(worker, name)
    try:
        return {"ok": handler(document, blobs, memory)}
    except (CommandError, ValidationError) as error:
        return _error("command", "malformed", str(error))
    except Refused as error:
        return _error("refused", error.reason, str(error))
    except DeviceError as error:
        return _error("device", error.code, str(error))
    except Exception:
        # No candidate code runs here, so this is the judge's own doing; it must not look like a candidate's crash.
        return _error("defect", "exception", traceback.format_exc())


def _error(kind: str, code: str, message: str) -> dict:
    return {"error": {"kind": kind, "code": code, "message": message}}


def _parsed(kind: type, request: dict):
    try:
        return kind.model_validate(request)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise CommandError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _only(request: dict, *names: str) -> dict:
    if set(request) != set(names):
        raise CommandError(f"the command takes {sorted(names)}, given {sorted(request)}")
    return request


def _number(request: dict, name: str) -> int:
    value = request[name]
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise CommandError(f"{name} is no number of 64 bits")
    return value


def _end_with(judge: int) -> None:
    parent = os.getppid()  # the judge, or a tool between it and this process
    while os.getppid() == parent and _runs(judge):
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
