"""The launches of a step, as data: for each place, or part of several, its kernel, configuration and stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .dispatch import PART, Choice, Directory
from .graph import EXCHANGED, Place
from .parts import Member, Parts
from .tensors import STATIC

MAIN = "main"
SIDE = {"shared_down": "shared"}
"""Ops that run beside the main stream: the shared expert's product needs nothing of the routed experts"""


class NoKernel(LookupError):
    """The dispatch tables have no kernel for a place."""


@dataclass(frozen=True)
class Call:
    """One call of a kernel file's `launch`."""

    op: str
    members: tuple[Member, ...]
    kernel: str
    config: Mapping[str, Any]
    stream: str
    waits: tuple[str, ...]
    """Streams that this call reads from"""
    sends: tuple[str, ...]
    """Values that other ranks read"""

    @property
    def name(self) -> str:
        """The first place's name, or all of them."""
        return PART.join(member.place.name for member in self.members)


def schedule(
    step: Sequence[Place], chosen: Sequence[Place], directory: Directory, hardware: str, tp: int, rows: int
) -> tuple[Call, ...]:
    """The calls of `chosen`, places of the whole `step`, in launch order. Raises NoKernel where the tables have none.

    Parts come before their members where their table names the hardware, TP and rows. A call of a side stream is
    launched as soon as what it reads is there, so that it overlaps what follows on the main stream.
    """
    parts, names = Parts(step), {place.name for place in chosen}
    taken: dict[str, tuple[tuple[Place, ...], Choice]] = {}
    for op in directory.parts:
        choice = directory.choose(op, hardware, tp, rows)
        for run in parts.found(op) if choice else ():
            if names.issuperset(place.name for place in run) and not any(place.name in taken for place in run):
                taken.update({place.name: (run, choice) for place in run})
    groups: list[tuple[tuple[Place, ...], Choice]] = []
    for place in chosen:
        run, choice = taken.get(place.name, ((place,), None))
        choice = choice or directory.choose(place.op, hardware, tp, rows)
        if choice is None:
            raise NoKernel(f"{place.op}: no entry for {hardware}, TP {tp}, {rows} rows in its dispatch table")
        if run[0] is place:
            groups.append((run, choice))
    return _ordered(step, groups, parts)


def _ordered(
    places: Sequence[Place], groups: Sequence[tuple[tuple[Place, ...], Choice]], parts: Parts
) -> tuple[Call, ...]:
    crossing = {source.value for place in places for source in place.sources if source.via in EXCHANGED}
    written_on: dict[str, str] = {}
    calls: list[Call] = []
    for run, choice in groups:
        stream = SIDE.get(choice.op, MAIN)
        read = [source.value for place in run for source in place.sources]
        waits = {written_on[value] for value in read if value in written_on} - {stream, MAIN}
        written = [value for place in run for value in place.writes.values()]
        call = Call(
            choice.op, _members(parts, run), choice.kernel, choice.config, stream, tuple(sorted(waits)),
            tuple(value for value in written if value in crossing),
        )  # fmt: skip
        written_on.update(dict.fromkeys(written, stream))
        calls.insert(_earliest(calls, read) if stream != MAIN else len(calls), call)
    return tuple(calls)


def _earliest(calls: Sequence[Call], read: Sequence[str]) -> int:
    """Right behind the last call that writes one of the values `read`."""
    for position in range(len(calls), 0, -1):
        if any(value in read for member in calls[position - 1].members for value in member.place.writes.values()):
            return position
    return 0


def _members(parts: Parts, run: tuple[Place, ...]) -> tuple[Member, ...]:
    if len(run) > 1:
        return parts.members(run)
    (place,) = run
    names = {*STATIC[place.op], *place.reads, *place.writes}
    return (Member(place, place.op, {}, {name: name for name in sorted(names)}),)
