"""One contract made of several: what a kernel is judged on that covers a connected part of an op graph.

What one op writes and another reads is inside, and nobody sees it; the rest keeps its role. The oracle is the members'
oracles in a row, in float64, nothing rounded between them; the plain path is the members' plain paths, with every
rounding that they publish. So a fused kernel that keeps an intermediate wide is closer to the oracle than the plain
path, and one that rounds it is as far off.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import UserError
from .base import Comparison, Cost, Far, OpContract, TensorRole, TensorSpec, Workload
from .joined import Joined, Member, elements

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]
    Path = Callable[[Tensors, Workload], dict[str, Tensor]]

SEPARATOR = "+"
# A value that is only passed on is compared bit for bit. Where it was computed before, order and width of sums are
# free, and what tips a value next to a rounding boundary of bfloat16 is allowed for, as in every computed output.
_COMPUTED_FLOOR = 2.0**-16
_THREADS = 8


class Subgraph(OpContract):
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

    @property
    def distributions(self) -> Mapping[str, str]:
        """Typical inputs; then each member's distributions over typical inputs of the others."""
        return {
            "typical": "every op's own typical values",
            **{name: line for name, (_, _, line) in self._drawn.items()},
        }

    @cached_property
    def _drawn(self) -> dict[str, tuple[int, str, str]]:
        """Name -> (member, its distribution, line), of those that change what the part is given and that it can carry.

        What a member reads of another is computed, so some distributions are the typical one here. Values at the edge
        of one op's range may overflow float32 in the next one, where the oracle does not.
        """
        workload = min((w for w in self.small() or self.workloads() if w.axes["rows"] > 1), key=_bytes_of(self))
        typical = self._draw(workload, {}, seed=0)

        def looked_at(index: int, name: str) -> bool:
            drawn = list(typical)
            drawn[index] = self.members[index].contract.make_inputs(self._part(index, workload), name, index)
            return self._tells(index, name, drawn[index], typical[index]) and (
                not self._reaches_others(index) or self._carries(workload, drawn, index, name)
            )

        found = [
            (index, name, line)
            for index, member in enumerate(self.members)
            for name, line in list(member.contract.distributions.items())[1:]
        ]
        # Dozens of runs of the oracle at true shapes: a machine with a GPU has cores to spare, and waits for nothing else.
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            kept = list(pool.map(looked_at, *zip(*((index, name) for index, name, _ in found), strict=True)))
        return {
            f"{self.members[index].alias}_{name}": (index, name, line)
            for (index, name, line), keep in zip(found, kept, strict=True)
            if keep
        }

    def _carries(self, workload: Workload, drawn: "list[dict[str, Tensor]]", index: int, name: str) -> bool:
        inputs = self._assembled(workload, drawn, index, name, seed=0)
        oracle, plain = self.oracle(inputs, workload), self.plain(inputs, workload)
        return all(bool((plain[t].double().isfinite() == oracle[t].double().isfinite()).all()) for t in oracle)

    def _reaches_others(self, index: int) -> bool:
        """Whether another member reads what this one is given or leaves."""
        own = set(self.members[index].outer.values())
        others = [member for position, member in enumerate(self.members) if position != index]
        return any(own & set(m.outer.values()) or index in {producer for producer, _ in m.inside.values()} for m in others)

    def _tells(self, index: int, name: str, drawn: "Tensors", typical: "Tensors") -> bool:
        """Whether a distribution of a member differs from its typical one in anything that the part is given."""
        return any(not same(drawn[tensor], typical[tensor]) for tensor in self.members[index].outer if tensor in drawn)

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> "dict[str, Tensor]":
        """Drawn by the members; what another member computes is left out."""
        index, name, _ = self._drawn[distribution] if distribution != "typical" else (0, None, "")
        drawn = self._draw(workload, {index: name} if name else {}, seed)
        return self._assembled(workload, drawn, index if name else None, name, seed)

    def _draw(self, workload: Workload, chosen: Mapping[int, str], seed: int) -> "list[dict[str, Tensor]]":
        """What each member draws, `chosen` distributions or typical values."""
        return [
            member.contract.make_inputs(
                self._part(index, workload), chosen.get(index) or next(iter(member.contract.distributions)), seed + index
            )
            for index, member in enumerate(self.members)
        ]

    def _assembled(
        self, workload: Workload, drawn: "list[dict[str, Tensor]]", special: int | None, name: str | None, seed: int
    ) -> "dict[str, Tensor]":  # fmt: skip
        """The part's inputs from what its members drew; the one whose values are special has its way with what it shares.

        A state that one member updates and another reads begins as the reader drew it: the table that says which of
        its pages mean something is the reader's too.
        """
        found: dict[str, Tensor] = {}
        for index in sorted(range(len(self.members)), key=lambda index: index == special):
            member = self.members[index]
            for tensor, value in drawn[index].items():
                outer = member.outer.get(tensor) or self._state_behind(member, tensor)
                if outer is not None:
                    found[outer] = _both(found.get(outer), value)
        order = [spec.name for spec in self.tensors(workload) if spec.role is not TensorRole.OUTPUT]
        return {name: found[name] for name in order}

    def _state_behind(self, member: Member, tensor: str) -> str | None:
        producer, name = member.inside.get(tensor, (None, None))
        if producer is None or name not in self._states[producer]:
            return None
        return self.members[producer].outer.get(name)

    @cached_property
    def _states(self) -> list[set[str]]:
        first = self.workloads()[0]
        specs = [member.contract.tensors(self._part(index, first)) for index, member in enumerate(self.members)]
        return [{spec.name for spec in own if spec.role is TensorRole.STATE} for own in specs]

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Each member redraws what the row reads of its own inputs."""
        import torch

        from ..tensors import torch_dtype

        changed = dict(inputs)
        for index, member in enumerate(self.members):
            part = self._part(index, workload)
            # What is inside has no value here; any will do, for it is not kept.
            specs = member.contract.tensors(part)
            stand_in = {s.name: torch.zeros(s.shape, dtype=torch_dtype(s.dtype)) for s in specs if s.name in member.inside}
            own = {**stand_in, **self._given(index, changed)}
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


def _both(found: "Tensor | None", value: "Tensor") -> "Tensor":
    """What the later of two members drew of a tensor that both read; columns of which it reads nothing, all NaN, are left."""
    if found is None or found.shape != value.shape or not value.is_floating_point() or value.dim() != 2:
        return value
    unread = value.isnan().all(0)
    return found.where(unread, value) if bool(unread.any() and not unread.all()) else value


def same(left: "Tensor", right: "Tensor") -> bool:
    """Equal, NaN like NaN."""
    return left.shape == right.shape and bool(((left == right) | ((left != left) & (right != right))).all())


def _bytes_of(contract: OpContract) -> "Callable[[Workload], int]":
    return lambda workload: contract.cost(workload).bytes
