"""One contract made of several: what a kernel is judged on that covers a connected part of an op graph.

What one op writes and another reads is inside, and nobody sees it; the rest keeps its role. The oracle is the members'
oracles in a row, in float64, nothing rounded between them; the plain path is the members' plain paths, with every
rounding that they publish. So a fused kernel that keeps an intermediate wide is closer to the oracle than the plain
path, and one that rounds it is as far off.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import UserError
from .base import Comparison, Cost, Far, OpContract, TensorSpec, Workload
from .drawn import Drawn
from .joined import Joined, Member, elements

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]
    Path = Callable[[Tensors, Workload], dict[str, Tensor]]

SEPARATOR = "+"
# A value that is only passed on is compared bit for bit. Where it was computed before, order and width of sums are
# free, and what tips a value next to a rounding boundary of bfloat16 is allowed for, as in every computed output.
_COMPUTED_FLOOR = 2.0**-16


class Subgraph(Drawn, OpContract):
    """The contract of `members`, in an order in which each finds its inputs written.

    Raises UserError where the members cannot be judged together: a tensor that two of them share has another
    shape for each, or an exact integer would depend on sums whose order is free.
    """

    def __init__(self, model: str, op: str, members: Iterable[Member]) -> None:
        self.model, self.op = model, op
        self.members = tuple(members)
        self._joined = Joined(op, self.members)
        self._check()

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """One workload for each TP and row count that every member declares; see `Joined`."""
        return self._joined.workloads(held_out)

    def small(self) -> tuple[Workload, ...]:
        """The same with fewer experts, where the declared ones have all of a large model's."""
        return self._joined.small()

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Row count as the first member varies it; every member's layout redrawn."""
        return self._joined.vary(workload, seed)

    def joined(self, name: str, parts: Iterable[Workload]) -> Workload:
        """The workload of the part in which each member has its one of `parts`."""
        return self._joined.join(name, list(parts), held_out=False)

    def _part(self, index: int, workload: Workload) -> Workload:
        return self._joined.part(index, workload)

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
        written = self._written(inputs, workload, path, without)
        return {
            member.outer[name]: value
            for member, values in zip(self.members, written, strict=True)
            for name, value in values.items()
            if name in member.outer
        }

    def _written(
        self, inputs: "Tensors", workload: Workload, path: "Callable[[int, Member], Path]",
        without: tuple[int, str] | None = None, until: int | None = None,
    ) -> "list[dict[str, Tensor]]":  # fmt: skip
        """What each member leaves, of the first `until` members or all."""
        written: list[dict[str, Tensor]] = []
        for index, member in enumerate(self.members[:until]):
            given = self._given(index, inputs)
            for name, (producer, tensor) in member.inside.items():
                value = written[producer][tensor]
                if name in member.columns:
                    width = value.shape[1] // workload.axes["tp"]
                    value = value[:, workload.axes["rank"] * width :][:, :width]
                given[name] = value.clone().zero_() if (producer, tensor) == without else value
            written.append(path(index, member)(given, self._part(index, workload)))
        return written

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
        """The members' own. What is exact alone is calibrated where another member computes what goes into it.

        All but integers, which are compared only where a part sees to it that no rounding changes them (`settled`).
        """
        return tuple(
            _computed(comparison, member.outer[comparison.tensor], comparison.tensor in self.settled)
            if member.inside
            else comparison.model_copy(update={"tensor": member.outer[comparison.tensor]})
            for member in self.members
            for comparison in member.contract.comparisons
            if comparison.tensor in member.outer
        )

    @property
    def settled(self) -> frozenset[str]:
        """Exact integers of members that inputs of this part are drawn for: every honest rounding gives the same."""
        return frozenset()

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
        axes = workload.axes | {self._joined.axis(index, name): value for name, value in far.workload.axes.items()}
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
                size = spec.dtype.bytes * elements(spec)
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
                if name in member.columns:
                    continue
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


def _computed(comparison: Comparison, tensor: str, settled: bool) -> Comparison:
    if comparison.kind == "exact":
        if settled:
            return comparison.model_copy(update={"tensor": tensor})
        return Comparison(tensor=tensor, kind="calibrated", floor=_COMPUTED_FLOOR, row_axes=comparison.row_axes)
    return comparison.model_copy(update={"tensor": tensor, "floor": max(comparison.floor, _COMPUTED_FLOOR)})
