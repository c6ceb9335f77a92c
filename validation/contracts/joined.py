"""Workloads of several ops as one: which axes they share, and how each reads its own out of the whole."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..errors import UserError
from .base import OpContract, TensorRole, TensorSpec, Workload

_TRIES = 4096


@dataclass(frozen=True)
class Member:
    """One op of the part."""

    alias: str
    """Its name, numbered where the part has the op twice"""
    contract: OpContract
    inside: Mapping[str, tuple[int, str]]
    """Tensor that it reads -> (position of the member that writes it, that member's tensor)"""
    outer: Mapping[str, str]
    """Every other tensor -> name in the part; outputs that nobody else reads have none"""
    columns: frozenset[str] = frozenset()
    """Tensors inside that it reads as this rank's columns of what was written"""


class Joined:
    """One workload for each TP and row count that every member declares.

    `tp`, `rows`, and axes that an op has only in a part, are one for all members; an axis that one member alone has
    keeps its name; others are told apart by the member's alias. Members that share a tensor whose shape layouts vary
    agree on its axes: those of the member that declares the largest one. Where a member reads this rank's columns,
    `rank` says which rank this is: one in the middle as declared, any in unseen layouts.
    """

    def __init__(self, op: str, members: tuple[Member, ...]) -> None:
        self.op, self.members = op, members
        self._names = [_axis_names(member.contract) for member in members]
        self._counts = Counter(name for names in self._names for name in names)
        self._common = {"tp", "rows", *(axis for member in members for axis in member.contract.optional_axes)}
        self._ranked = any(member.columns for member in members)

    def workloads(self, held_out: bool) -> tuple[Workload, ...]:
        """The declared ones, or the held-out ones."""
        return self._places([m.contract.workloads(held_out=held_out) for m in self.members], "r" if held_out else "b")

    def small(self) -> tuple[Workload, ...]:
        """What stands in for the declared ones; none where no member needs a stand-in."""
        found = [member.contract.small() for member in self.members]
        if not any(found):
            return ()
        whole = [few or member.contract.workloads() for few, member in zip(found, self.members, strict=True)]
        return tuple(w.model_copy(update={"name": f"{w.name}-few"}) for w in self._places(whole, "b"))

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Row count as the first member varies it; every member's layout redrawn."""
        parts = [self.part(index, workload) for index in range(len(self.members))]
        varied = [self.members[0].contract.vary(parts[0], seed)]
        rows = varied[0].axes["rows"]
        for member, part in zip(self.members[1:], parts[1:], strict=True):
            varied.append(_varied_to(member.contract, part, rows, seed))
        rank = random.Random(f"rank {seed}").randrange(workload.axes["tp"])
        return self.join(f"{workload.name}-v{seed}", varied, workload.held_out, rank)

    def part(self, index: int, workload: Workload) -> Workload:
        """The workload as member `index` knows it."""
        own = {axis: self.axis(index, axis) for axis in self._names[index]}
        axes = {axis: workload.axes[name] for axis, name in own.items() if name in workload.axes}
        return Workload(name=workload.name, axes=axes, held_out=workload.held_out)

    def axis(self, index: int, axis: str) -> str:
        """The name in the part of an axis of member `index`."""
        alone = axis in self._common or self._counts[axis] == 1
        return axis if alone else f"{self.members[index].alias}_{axis}"

    def _places(self, lists: Iterable[Iterable[Workload]], kind: str) -> tuple[Workload, ...]:
        lead, *others = [_by_place(workloads) for workloads in lists]
        return tuple(
            self.join(f"tp{tp}-{kind}{rows}", [lead[tp, rows], *(other[tp, rows] for other in others)], kind == "r")
            for tp, rows in lead
            if all((tp, rows) in other for other in others)
        )

    def join(self, name: str, parts: list[Workload], held_out: bool, rank: int | None = None) -> Workload:
        """The workload of the part in which each member has its one of `parts`."""
        axes: dict[str, int] = {}
        for index, part in enumerate(self._agreed(parts)):
            axes |= {self.axis(index, axis): value for axis, value in part.items()}
        if self._ranked:
            axes["rank"] = axes["tp"] // 2 if rank is None else rank
        return Workload(name=name, axes=axes, held_out=held_out)

    def _agreed(self, parts: list[Workload]) -> list[dict[str, int]]:
        """The members' axes, those of shared tensors taken from the one to which the tensor belongs."""
        found = [dict(part.axes) for part in parts]
        for sharers in self._shared:
            owner = max(sharers, key=lambda sharer: (self._declared_size(*sharer), -sharer[0]))[0]
            for index, tensor in sharers:
                for axis in self.members[index].contract.layout_axes.get(tensor, ()):
                    if axis in found[index] and axis in found[owner]:
                        found[index][axis] = found[owner][axis]
        return found

    @cached_property
    def _shared(self) -> list[list[tuple[int, str]]]:
        """Tensors of several members that are one: (member, tensor) of each."""
        groups: dict[object, list[tuple[int, str]]] = {}
        for index, member in enumerate(self.members):
            for tensor in member.contract.layout_axes:
                key = member.inside.get(tensor) or member.outer.get(tensor)
                if key in self._written:
                    key = self._written[key]
                if key is not None:
                    groups.setdefault(key, []).append((index, tensor))
        return [group for group in groups.values() if len(group) > 1]

    @cached_property
    def _written(self) -> dict[tuple[int, str], str]:
        """(member, tensor) -> name in the part, of what leaves: a state is one tensor to its writer and its reader."""
        return {(i, tensor): name for i, member in enumerate(self.members) for tensor, name in member.outer.items()}

    def _declared_size(self, index: int, tensor: str) -> int:
        contract = self.members[index].contract
        return max(s.storage_elements for w in contract.workloads() for s in contract.tensors(w) if s.name == tensor)


def _varied_to(contract: OpContract, workload: Workload, rows: int, seed: int) -> Workload:
    """A variation of `workload` that has `rows` rows: drawn until it has."""
    draw = random.Random(f"{contract.op} {seed}")
    for _ in range(_TRIES):
        varied = contract.vary(workload, draw.getrandbits(62))
        if varied.axes["rows"] == rows:
            return varied
    raise UserError(f"{contract.op} has no layout of {rows} rows at {workload.name}", "its batch buckets differ")


def _by_place(workloads: Iterable[Workload]) -> dict[tuple[int, int], Workload]:
    found: dict[tuple[int, int], Workload] = {}
    for workload in workloads:
        found.setdefault((workload.axes["tp"], workload.axes["rows"]), workload)
    return found


def _axis_names(contract: OpContract) -> tuple[str, ...]:
    declared = (axis for workload in contract.workloads() for axis in workload.axes)
    return tuple(dict.fromkeys((*declared, *contract.optional_axes)))


def elements(spec: TensorSpec) -> int:
    """How many elements a tensor has."""
    count = 1
    for size in spec.shape:
        count *= size
    return count


def tensor_names(contract: OpContract) -> dict[str, TensorRole]:
    """Every tensor that the contract has at any declared or held-out workload, with its role."""
    workloads = (*contract.workloads(), *contract.workloads(held_out=True))
    return {spec.name: spec.role for workload in workloads for spec in contract.tensors(workload)}
