"""The executor of a GPU machine: the runs of one trial, and what must agree between them."""

import mmap
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...contracts.base import TensorRole
from ...sandbox import sealed_memory
from ..arena import Arena
from ..device_code.records import DeviceCode, target_name
from ..pack import KernelPack, Language, Role, variant_key
from .device import Device, Session
from .faults import DeviceFault, DeviceLost
from .slots import Kind, Region

DELAY_NS = 2_000_000
MAX_DELAY_NS = 1_000_000_000
REPEATS = 3
DIRECT, GRAPH, REPEATED = "directly", "in a graph", f"{REPEATS} times in a graph"
_KEPT = (DIRECT, GRAPH, REPEATED)


@dataclass(frozen=True)
class _Run:
    """One more way to run a plan, and what it means when it leaves something else behind than the first run."""

    how: str
    status: str
    graph: bool = False
    repeats: int = 1
    delays: Mapping[str, int] = field(default_factory=dict)
    roles: tuple[str, ...] = ("compute", "prefetch")


class Gpu:
    """Runs plans on one device with the given code: `codes` maps variant keys (pack.variant_key) to DeviceCode."""

    languages = frozenset(Language)

    def __init__(self, device: Device, codes: Mapping[str, DeviceCode]) -> None:
        self._device, self._codes = device, codes

    @property
    def description(self) -> str:
        """What ran the plan, for the verdict."""
        return f"gpu: {self._device.facts.name} ({target_name(self._device.facts.capability)})"

    def execute(
        self, pack: KernelPack, arena: Arena, order: str, shifts: Mapping[str, int]
    ) -> Mapping[str, object]:
        """Runs `pack` in every way that must give the same bits; leaves one of the images in the arena.

        `order` chooses which: ascending the direct run's, descending the graph's, shuffled:N any. A fault on the
        device is an outcome, not an exception: {status, message, seconds}, status "ok" or a key of faults.REASONS.
        """
        codes = {}
        for key, variant in pack.kernels.items():
            if variant_key(variant) not in self._codes:
                return {"status": "parameters", "message": f"no device code for kernel {key} on this device"}
            codes[key] = self._codes[variant_key(variant)]
        try:
            with self._device.session(pack, codes) as session:
                return _trial(session, pack, arena, _kept(order), shifts)
        except DeviceFault as fault:
            return {"status": fault.status, "message": str(fault)}
        except DeviceLost as lost:
            return {"status": "device_lost", "message": lost.what}


def codes_for(codes: Iterable[DeviceCode], capability: int) -> dict[str, DeviceCode]:
    """The code of one target by variant key."""
    return {code.kernel: code for code in codes if code.target == target_name(capability)}


def regions(pack: KernelPack, arena: Arena, shifts: Mapping[str, int] | None = None) -> dict[str, Region]:
    """What a plan may do with each buffer of an arena, for `Session.slot`."""
    found = {}
    for name, slot in arena.slots.items():
        spec = arena.specs.get(name)
        kind = Kind.FIXED
        if name in pack.scratch:
            kind = Kind.SCRATCH
        elif name in pack.persistent:
            kind = Kind.COUNTER if pack.persistent[name].after == "epoch" else Kind.WRITTEN
        elif spec is not None and spec.role in (TensorRole.STATE, TensorRole.OUTPUT):
            kind = Kind.WRITTEN
        found[name] = Region(slot.offset, slot.size, kind, (shifts or {}).get(name, 0))
    return found


def _kept(order: str) -> str:
    """Which run's image is held against the oracle."""
    kind, _, number = order.partition(":")
    return {"ascending": DIRECT, "descending": GRAPH}.get(kind) or _KEPT[int(number) % len(_KEPT)]


def _trial(
    session: Session, pack: KernelPack, arena: Arena, kept: str, shifts: Mapping[str, int]
) -> Mapping[str, object]:
    session.slot(0, arena.fd, arena.size, regions(pack, arena, shifts))
    key = secrets.randbits(64), secrets.randbits(64)
    (untouched,) = session.digest([0], key, everything=True)
    host_ns = session.run([0])
    (expected,) = session.digest([0], key, everything=True)
    answer = {"status": "ok", "seconds": host_ns / 1e9}
    if kept == DIRECT:
        session.download(0, arena.fd)
    for run in _further(pack):
        session.restore([0])
        session.run([0], graph=run.graph, repeats=run.repeats, delays=run.delays, roles=run.roles)
        (found,) = session.digest([0], key, everything=True)
        if run.how == kept:
            session.download(0, arena.fd)
        if found != (untouched if run.status == "prefetch_writes" else expected):
            return {**answer, "status": run.status, "message": _explained(session, pack, arena, run)}
    return answer


def _further(pack: KernelPack) -> Iterator[_Run]:
    # In the order in which a cause should be named.
    if any(launch.role is Role.PREFETCH for launch in pack.launches):
        yield _Run("its prefetch launches alone", "prefetch_writes", roles=("prefetch",))
        yield _Run("without its prefetch launches", "prefetch_needed", roles=("compute",))
    yield _Run(GRAPH, "not_reproducible", graph=True)
    yield _Run(REPEATED, "not_reproducible", graph=True, repeats=REPEATS)
    streams = [launch.stream for launch in pack.launches]
    for name in dict.fromkeys(streams) if len(set(streams)) > 1 else ():
        delay = min(DELAY_NS, MAX_DELAY_NS // streams.count(name))
        how = f"with every launch on stream {name} {delay / 1e6:g} ms late"
        yield _Run(how, "order_dependent", delays={name: delay})


def _explained(session: Session, pack: KernelPack, arena: Arena, run: _Run) -> str:
    """Which buffers a run left in another state than a direct run, or than before."""
    if run.status == "prefetch_writes":
        what, images = "launches of role prefetch wrote to memory", _images(session, arena, restored=False)
    else:
        what, images = f"run {run.how}, the plan leaves other bits than run directly", _images(session, arena)
    different = images[0] != images[1]
    places = {
        name: int(different[slot.offset : slot.offset + slot.size].sum())
        for name, slot in arena.slots.items()
        if name not in pack.scratch
    }
    named = ", ".join(f"{count} bytes of {name}" for name, count in places.items() if count)
    return f"{what}: {named or 'no buffer, when it was run again'}"


def _images(session: Session, arena: Arena, restored: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """What is on the device now, and what a direct run leaves (or, with `restored` False, what it starts from)."""
    now = _image(session, arena.size)
    session.restore([0])
    if restored:
        session.run([0])
    return now, _image(session, arena.size)


def _image(session: Session, size: int) -> np.ndarray:
    memory = sealed_memory(size, "fasttrack-image")
    try:
        session.download(0, memory)
        with mmap.mmap(memory, size) as mapped:
            return np.frombuffer(mapped[:], np.uint8)
    finally:
        os.close(memory)
