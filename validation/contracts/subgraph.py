"""One contract made of several: what a kernel is judged on that covers a connected part of an op graph.

What one op writes and another reads is inside, and nobody sees it; the rest keeps its role. The oracle is the members'
oracles in a row, in float64, nothing rounded between them; the plain path is the members' plain paths, with every
rounding that they publish. So a fused kernel that keeps an intermediate wide is closer to the oracle than the plain
path, and one that rounds it is as far off.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import UserError
from .base import Comparison, Cost, Far, OpContract, TensorRole, TensorSpec, Workload

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]
    Path = Callable[[Tensors, Workload], dict[str, Tensor]]

SEPARATOR = "+"
# A value that is only passed on is compared bit for bit. Where it was computed before, order and width of sums are
# free, and what tips a value next to a rounding boundary of bfloat16 is allowed for, as in every computed output.
_COMPUTED_FLOOR = 2.0**-16
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


class Subgraph(OpContract):
    """The contract of `members`, in an order in which each finds its inputs written.

    Raises UserError where the members cannot be judged together: a tensor that two of them share has another
    shape for each, or an exact integer would depend on sums whose order is free.
    """

    def __init__(self, model: str, op: str, members: Iterable[Member]) -> None:
        self.model, self.op = model, op
        self.members = tuple(members)
        axes = [_axis_names(member.contract) for member in self.members]
        self._shared_axes = Counter(name for names in axes for name in names)
        self._axes = axes
        self._check()

    # Workloads: those that all members have, by TP and rows; axes that only one member has keep their names.

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """One workload for each TP and row count that every member declares."""
        lead, *others = [self._by_place(member, held_out) for member in self.members]
        return tuple(
            self.joined(name, [lead[place], *(other[place] for other in others)], held_out)
            for place, name in ((place, _place_name(place, held_out)) for place in lead)
            if all(place in other for other in others)
        )

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Row count as the first member varies it; every member's layout redrawn."""
        parts = [self._part(index, workload) for index in range(len(self.members))]
        varied = [self.members[0].contract.vary(parts[0], seed)]
        rows = varied[0].axes["rows"]
        for member, part in zip(self.members[1:], parts[1:], strict=True):
            varied.append(_varied_to(member.contract, part, rows, seed))
        return self.joined(f"{workload.name}-v{seed}", varied, workload.held_out)

    def _by_place(self, member: Member, held_out: bool) -> dict[tuple[int, int], Workload]:
        found: dict[tuple[int, int], Workload] = {}
        for workload in member.contract.workloads(held_out=held_out):
            found.setdefault((workload.axes["tp"], workload.axes["rows"]), workload)
        return found

    def joined(self, name: str, parts: Iterable[Workload], held_out: bool = False) -> Workload:
        """The workload of the part in which each member has its one of `parts`."""
        axes: dict[str, int] = {}
        for index, part in enumerate(parts):
            axes |= {self._axis(index, axis): value for axis, value in part.axes.items()}
        return Workload(name=name, axes=axes, held_out=held_out)

    def _part(self, index: int, workload: Workload) -> Workload:
        axes = {axis: workload.axes[self._axis(index, axis)] for axis in self._axes[index]}
        return Workload(name=workload.name, axes=axes, held_out=workload.held_out)

    def _axis(self, index: int, axis: str) -> str:
        alone = axis in ("tp", "rows") or self._shared_axes[axis] == 1
        return axis if alone else f"{self.members[index].alias}_{axis}"

    # Tensors

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """The members' tensors but for those inside, in order; one that several read stands once, as the first has it.

        Axes of the others that say how it lies, or how something inside would lie, then say nothing: strides do.
        """
        found: dict[str, TensorSpec] = {}
        for index, member in enumerate(self.members):
            for spec in member.contract.tensors(self._part(index, workload)):
                if spec.name in member.outer:
                    outer = spec.model_copy(update={"name": member.outer[spec.name]})
                    first = found.setdefault(outer.name, outer)
                    if (first.dtype, first.role, first.shape) != (outer.dtype, outer.role, outer.shape):
                        raise UserError(
                            f"{self.op}: {outer.name} is {first.shape} to one op and {outer.shape} to {member.alias}",
                            "these ops cannot be judged as one yet: judge them apart",
                        )
        return tuple(found.values())

    @property
    def distributions(self) -> Mapping[str, str]:
        """Typical inputs; then each member's distributions over typical inputs of the others."""
        return {
            "typical": "every op's own typical values",
            **{name: line for name, (_, _, line) in self._drawn.items()},
        }

    @cached_property
    def _drawn(self) -> dict[str, tuple[int, str, str]]:
        """Name -> (member, its distribution, line), without those that the plain path cannot carry through the part.

        Values at the edge of one op's range may overflow float32 in the next one, where the oracle does not.
        """
        workload = next(w for w in self.workloads() if w.axes["rows"] >= 4)
        kept = {}
        for index, member in enumerate(self.members):
            for name, line in list(member.contract.distributions.items())[1:]:
                inputs = self._inputs(workload, {index: name}, seed=0)
                oracle, plain = self.oracle(inputs, workload), self.plain(inputs, workload)
                if all(bool((plain[t].double().isfinite() == oracle[t].double().isfinite()).all()) for t in oracle):
                    kept[f"{member.alias}_{name}"] = (index, name, line)
        return kept

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> "dict[str, Tensor]":
        """Drawn by the members; what another member computes is left out."""
        index, name, _ = self._drawn[distribution] if distribution != "typical" else (0, None, "")
        return self._inputs(workload, {index: name} if name else {}, seed)

    def _inputs(self, workload: Workload, chosen: Mapping[int, str], seed: int) -> "dict[str, Tensor]":
        found: dict[str, Tensor] = {}
        # The member whose values are special comes last, and has its way with what it shares.
        for index in sorted(range(len(self.members)), key=lambda index: index in chosen):
            member = self.members[index]
            name = chosen.get(index) or next(iter(member.contract.distributions))
            drawn = member.contract.make_inputs(self._part(index, workload), name, seed + index)
            found |= {member.outer[tensor]: value for tensor, value in drawn.items() if tensor in member.outer}
        order = [spec.name for spec in self.tensors(workload)]
        return {name: found[name] for name in order if name in found}

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Each member redraws what the row reads of its own inputs."""
        changed = dict(inputs)
        for index, member in enumerate(self.members):
            part = self._part(index, workload)
            first = next(iter(member.contract.distributions))
            given = self._given(index, changed)
            # What is inside has no value here; any will do, for it is not kept.
            stand_in = member.contract.make_inputs(part, first, seed) if member.inside else {}
            own = {**{name: value for name, value in stand_in.items() if name in member.inside}, **given}
            fresh = member.contract.perturb_row(own, part, row, seed + index)
            changed |= {member.outer[name]: value for name, value in fresh.items() if name in member.outer}
        return changed

    # Paths

    def oracle(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """The members' oracles in a row, float64 between them."""
        return self._through(inputs, workload, lambda index, member: member.contract.oracle)

    def plain(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """The members' plain paths in a row, rounded between them as published."""
        return self._through(inputs, workload, lambda index, member: member.contract.plain)

    def stock(self, device: str) -> "Path":
        """Raises UserError: the stock path of a part is timed inside the whole step's."""
        raise UserError(f"{self.op} has no stock path on {device!r}", "time it inside the stock path of its layer")

    def _through(
        self, inputs: "Tensors", workload: Workload, path: "Callable[[int, Member], Path]",
        without: tuple[int, str] | None = None,
    ) -> "dict[str, Tensor]":  # fmt: skip
        """Everything that leaves the part; `without` names one value inside that reads as zero."""
        written: list[dict[str, Tensor]] = []
        for index, member in enumerate(self.members):
            given = self._given(index, inputs)
            for name, (producer, tensor) in member.inside.items():
                value = written[producer][tensor]
                given[name] = value.clone().zero_() if (producer, tensor) == without else value
            written.append(path(index, member)(given, self._part(index, workload)))
        return {
            member.outer[name]: value
            for member, values in zip(self.members, written, strict=True)
            for name, value in values.items()
            if name in member.outer
        }

    def _given(self, index: int, inputs: "Tensors") -> "dict[str, Tensor]":
        return {name: inputs[outer] for name, outer in self.members[index].outer.items() if outer in inputs}

    @property
    def hypotheses(self) -> "Mapping[str, Path]":
        """Each member's known mistakes, and each value inside left out."""
        found: dict[str, Path] = {}
        for index, member in enumerate(self.members):
            for description, variant in member.contract.hypotheses.items():
                found[f"{member.alias}: {description}"] = self._mistaken(index, variant)
        for producer, tensor in sorted({source for member in self.members for source in member.inside.values()}):
            found[f"what {self.members[producer].alias} leaves in {tensor} has no effect"] = self._ignoring(
                producer, tensor
            )
        return found

    def _mistaken(self, wrong: int, variant: "Path") -> "Path":
        def path(index: int, member: Member) -> "Path":
            return variant if index == wrong else member.contract.oracle

        return lambda inputs, workload: self._through(inputs, workload, path)

    def _ignoring(self, producer: int, tensor: str) -> "Path":
        def run(inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
            return self._through(inputs, workload, lambda _, member: member.contract.oracle, (producer, tensor))

        return run

    # What is compared

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The members' own. What is exact alone is calibrated where another member computes what goes into it."""
        return tuple(
            _computed(comparison, member.outer[comparison.tensor])
            if comparison.kind == "exact" and member.inside
            else comparison.model_copy(update={"tensor": member.outer[comparison.tensor]})
            for member in self.members
            for comparison in member.contract.comparisons
            if comparison.tensor in member.outer
        )

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """As the member says that writes the tensor."""
        position, name = self._writer(tensor)
        return self.members[position].contract.row_of(name, index, self._given(position, inputs))

    def far(self, workload: Workload) -> Far | None:
        """The pools of the one member that has some; None where none has, or several."""
        found = [
            (index, far)
            for index, member in enumerate(self.members)
            if (far := member.contract.far(self._part(index, workload)))
        ]
        if len(found) != 1:
            return None
        ((index, far),) = found
        outer = self.members[index].outer
        if far.pages not in outer:
            return None
        axes = workload.axes | {self._axis(index, name): value for name, value in far.workload.axes.items()}
        return Far(
            workload=Workload(name=f"{workload.name}-far", axes=axes, held_out=True), shift=far.shift,
            pages=outer[far.pages], pools=tuple(outer[name] for name in far.pools),
        )  # fmt: skip

    def cost(self, workload: Workload) -> Cost:
        """The members' costs without the bytes of what is inside, and with what several read counted once."""
        parts = [self._part(index, workload) for index in range(len(self.members))]
        costs = [member.contract.cost(part) for member, part in zip(self.members, parts, strict=True)]
        read, written = sum(cost.bytes_read for cost in costs), sum(cost.bytes_written for cost in costs)
        seen: set[str] = set()
        for member, part in zip(self.members, parts, strict=True):
            for spec in member.contract.tensors(part):
                size = spec.dtype.bytes * _elements(spec)
                outer = member.outer.get(spec.name)
                if spec.name in member.inside or outer in seen:
                    read -= size
                elif outer is None:
                    written -= size
                seen |= {outer} - {None}
        flops = sum(cost.flops for cost in costs)
        return Cost(bytes_read=max(read, 0), bytes_written=max(written, 0), flops=flops)

    def _writer(self, tensor: str) -> tuple[int, str]:
        for position, member in enumerate(self.members):
            for name in member.contract.produced:
                if member.outer.get(name) == tensor:
                    return position, name
        raise UserError(f"{self.op} does not produce {tensor!r}", f"it produces {', '.join(self.produced)}")

    def _check(self) -> None:
        """Raises UserError where the members do not fit together at the first workload."""
        workloads = self.workloads()
        if not workloads:
            raise UserError(f"{self.op}: no TP and row count is declared by every op", "judge them apart")
        self.tensors(workloads[0])
        specs = [
            {spec.name: spec for spec in member.contract.tensors(self._part(index, workloads[0]))}
            for index, member in enumerate(self.members)
        ]
        for index, member in enumerate(self.members):
            for name, (producer, tensor) in member.inside.items():
                if name in specs[index] and specs[index][name].shape != specs[producer][tensor].shape:
                    left, right = f"{self.members[producer].alias}.{tensor}", f"{member.alias}.{name}"
                    raise UserError(
                        f"{self.op}: {left} is {specs[producer][tensor].shape}, {right} is judged as "
                        f"{specs[index][name].shape}",
                        "these ops cannot be judged as one yet: judge them apart",
                    )
        for comparison in self.comparisons:
            position, name = self._writer(comparison.tensor)
            spec, member = specs[position][name], self.members[position]
            own = next(c for c in member.contract.comparisons if c.tensor == name)
            if own.kind == "exact" and comparison.kind != "exact" and spec.dtype.value[0] in "iu":
                raise UserError(
                    f"{self.op}: {comparison.tensor} is exact, and here it would depend on sums whose order is free",
                    f"judge {member.alias} apart",
                )


def _computed(comparison: Comparison, tensor: str) -> Comparison:
    return Comparison(tensor=tensor, kind="calibrated", floor=_COMPUTED_FLOOR, row_axes=comparison.row_axes)


def _varied_to(contract: OpContract, workload: Workload, rows: int, seed: int) -> Workload:
    """A variation of `workload` that has `rows` rows: drawn until it has."""
    draw = random.Random(f"{contract.op} {seed}")
    for _ in range(_TRIES):
        varied = contract.vary(workload, draw.getrandbits(62))
        if varied.axes["rows"] == rows:
            return varied
    raise UserError(f"{contract.op} has no layout of {rows} rows at {workload.name}", "its batch buckets differ")


def _axis_names(contract: OpContract) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for workload in contract.workloads() for axis in workload.axes))


def _place_name(place: tuple[int, int], held_out: bool) -> str:
    tp, rows = place
    return f"tp{tp}-{'r' if held_out else 'b'}{rows}"


def _elements(spec: TensorSpec) -> int:
    count = 1
    for size in spec.shape:
        count *= size
    return count


def tensor_names(contract: OpContract) -> Iterator[tuple[str, TensorRole]]:
    """Every tensor that the contract has at any declared or held-out workload, with its role."""
    seen = set()
    for workload in (*contract.workloads(), *contract.workloads(held_out=True)):
        for spec in contract.tensors(workload):
            if spec.name not in seen:
                seen.add(spec.name)
                yield spec.name, spec.role
