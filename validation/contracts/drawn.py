"""Inputs of several ops as one: each draws its own, what another computes is left out, what several read is one tensor."""

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

from .base import OpContract, TensorRole, Workload
from .joined import Member

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

_THREADS = 8


class Drawn:
    """The drawing half of a `Subgraph`, which has the rest: members, their workloads, tensors and paths."""

    members: tuple[Member, ...]

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

    def rows_of(self, index: int, workload: Workload, row: int) -> Iterable[int]:
        """What member `index` knows a row of the part as."""
        return (row,)

    def redrawable(self, workload: Workload) -> int:
        """As many as the member that numbers fewest."""
        return min(member.contract.redrawable(self._part(index, workload)) for index, member in enumerate(self.members))

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
            for own_row in self.rows_of(index, workload, row):
                own = {**stand_in, **self._given(index, changed)}
                fresh = member.contract.perturb_row(own, part, own_row, seed + index)
                changed |= {member.outer[name]: value for name, value in fresh.items() if name in member.outer}
        return changed


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
