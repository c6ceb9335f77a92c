"""Parts of the op graph as contracts: with a stock path, and with a choice of experts where they route."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from ..base import OpContract, Workload
from ..drawn import same
from ..joined import Member
from ..stock import StockPath, StockRun
from ..subgraph import Subgraph
from .graph import Node, OpGraph

if TYPE_CHECKING:
    from torch import Tensor

    Tensors = Mapping[str, Tensor]

# Distributions of `routing` that are nothing but logits: behind a product there is nothing left of them.
_LOGITS_ALONE = frozenset({"signed_zeros", "not_finite", "padded"})
# Needs logits to be equal bit for bit in every kernel: possible where x is given.
_EXACT_LOGITS = frozenset({"ties"})


VERIFIES = "kda_verify"


class Part(Subgraph):
    """A connected part of the step: the contract of its `nodes`, in the order of the step."""

    def __init__(
        self, name: str, graph: OpGraph, nodes: Iterable[Node], members: Iterable[Member], ops: Mapping[str, OpContract]
    ) -> None:  # fmt: skip
        self.graph, self.nodes, self._ops = graph, tuple(nodes), ops
        super().__init__("kimi_k3", name, members)

    def stock(self, device: str) -> StockPath:
        """The stock path of the layer, as much of it as the part covers: see stock/parts.py. Raises UserError."""
        stock = import_module(f"{__package__}.stock")
        stock.require.gpu(device)
        return StockPath(lambda tensors, workload: self.bound(stock.part, tensors, workload, device=device))

    def bound(self, prepare, tensors: "Tensors", workload: Workload, **how) -> StockRun:
        """What `prepare` (stock/parts.py) makes of the part's tensors, with outputs under their names here."""
        names = [node.name for node in self.nodes]
        given = {
            f"{node.name}.{tensor}": tensors[outer]
            for node, member in zip(self.nodes, self.members, strict=True)
            for tensor, outer in member.outer.items()
            if outer in tensors
        }
        workloads = {node.name: self._part(index, workload) for index, node in enumerate(self.nodes)}
        run = prepare(self.graph, names, self._ops, given, workloads, rank=workload.axes.get("rank", 0), **how)
        outputs = {
            member.outer[tensor]: run.outputs[value]
            for node, member in zip(self.nodes, self.members, strict=True)
            for tensor, value in node.writes.items()
            if tensor in member.outer and value in run.outputs
        }
        return StockRun(run.run, outputs)


class VerifyPart(Part):
    """A part with the recurrence of a step to verify, in which rows of a request depend on each other: it numbers requests.

    As `kda_verify` does; its other members number rows. Numbers past the last request own nothing.
    """

    def rows_of(self, index: int, workload: Workload, row: int) -> Iterable[int]:
        """All rows of the request, but to the op that numbers requests itself."""
        if self.members[index] is self._recurrence:
            return (row,)
        tokens = workload.axes["tokens"]
        return range(row * tokens, min((row + 1) * tokens, workload.axes["rows"]))

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """The request to which a row belongs, or which writes a page."""
        found, (position, _) = super().row_of(tensor, index, inputs), self._writer(tensor)
        if found is None or self.members[position] is self._recurrence:
            return found
        return found // (inputs[self._recurrence.outer["slots"]].shape[1] - 1)

    @cached_property
    def _recurrence(self) -> Member:
        return next(member for member in self.members if member.contract.op == VERIFIES)


class RoutedPart(Part):
    """A part that routes and reads the choice, or computes what decides it: inputs plant the choice; see `choice`.

    Typical values and those of the experts' distributions choose what the experts' own exam would be given (even use of
    all of them, crowded ones, pairs that cancel). Distributions of `routing` keep their biases; given logits stay as
    drawn; computed ones are closer than bfloat16 can tell (`crowded`), which catches narrow logits and scores, and where
    x is given they are equal by the dozen (`ties`), which catches a wrong rule for ties. A row that `perturb_row`
    redraws has no planted choice behind a product: it is not held against the oracle where it follows the choice.
    """

    @property
    def settled(self) -> frozenset[str]:
        """The ids."""
        return frozenset({"ids"})

    @cached_property
    def unheld(self) -> frozenset[str]:
        """What routing and experts leave, where logits are computed here."""
        if self._front is None:
            return frozenset()
        followers = (m for m in self.members if m.contract.op in ("routing", "experts"))
        return frozenset(m.outer[tensor] for m in followers for tensor in m.contract.produced if tensor in m.outer)

    @cached_property
    def _front(self) -> int | None:
        """The member that computes the logits."""
        producer = self._routing.inside.get("logits")
        return producer[0] if producer else None

    @cached_property
    def _routing(self) -> Member:
        return next(member for member in self.members if member.contract.op == "routing")

    @property
    def _x_is_given(self) -> bool:
        return self._front is not None and "x" in self.members[self._front].outer

    def _tells(self, index: int, name: str, drawn: "Tensors", typical: "Tensors") -> bool:
        op = self.members[index].contract.op
        if op == "experts":
            return super()._tells(index, name, drawn, typical) or not same(drawn["ids"], typical["ids"])
        if op == "routing" and self._front is not None:
            left = frozenset() if self._x_is_given else _EXACT_LOGITS
            if name in _LOGITS_ALONE | left:
                return False
        return super()._tells(index, name, drawn, typical)

    def _assembled(self, workload, drawn, special, name, seed):
        import torch

        found = super()._assembled(workload, drawn, special, name, seed)
        routing = special is not None and self.members[special] is self._routing
        random = torch.Generator().manual_seed(seed + len(self.members))
        ids = self._ids(workload, drawn, random)
        # What is planted in is a copy: draws are used again where distributions are gone through.
        for member, tensor in ((self._routing, "correction_bias"), (self._routing, "logits"), *self._of_front):
            if (outer := member.outer.get(tensor)) in found:
                found[outer] = found[outer].clone()
        if self._front is not None:
            self._plant(found, workload, name if routing else None, ids, random)
        elif not routing:
            self._plant_logits(found, ids, random)
        return found

    @property
    def _of_front(self) -> list[tuple[Member, str]]:
        return [] if self._front is None else [(self.members[self._front], tensor) for tensor in ("router", "x")]

    def _ids(self, workload, drawn, random) -> "Tensor":
        """What the rows shall choose: what the experts drew, or anything."""
        import torch

        for member, tensors in zip(self.members, drawn, strict=True):
            if member.contract.op == "experts":
                return tensors["ids"]
        moe = self._routing.contract.architecture.moe
        experts = self._routing.contract.experts(workload)
        return torch.rand(workload.axes["rows"], experts, generator=random).topk(moe.top_k, 1).indices

    def _plant_logits(self, found, ids, random) -> None:
        """In place."""
        from . import choice

        logits, bias = (found[self._routing.outer[name]] for name in ("logits", "correction_bias"))
        choice.plant_logits(logits, bias, ids, random)
        self._routing.contract.maths.separate(self._routing.contract, {"logits": logits, "correction_bias": bias})

    def _plant(self, found, workload, distribution: str | None, ids, random) -> None:
        """In place: router and bias; x where it is given and the distribution of routing needs it."""
        from . import choice

        front, routing = self.members[self._front], self._routing
        router, bias = found[front.outer["router"]], found[routing.outer["correction_bias"]]
        if distribution == "ties":
            choice.ties(found[front.outer["x"]], router, random)
        x = self._front_input(found, workload)
        if distribution is None:
            choice.plant_router(router, bias, x, ids, random)
        elif distribution == "crowded":
            choice.plant_router(router, bias, x, ids, random, choice.CROWD)
        exact, plain = (self._logits(found, workload, path) for path in ("oracle", "plain"))
        k = routing.contract.architecture.moe.top_k
        least = choice.LEAST / (4 if distribution == "crowded" else 1)
        apart = choice.apart(exact, plain, bias, k, least)
        choice.settle(exact, bias, k, apart, random, ties=distribution == "ties")

    def _logits(self, inputs: "Tensors", workload: Workload, path: str) -> "Tensor":
        """[rows, E] as the oracle has them, or the plain path."""
        through = self._written(inputs, workload, lambda _, member: getattr(member.contract, path), until=self._front + 1)
        return through[self._front]["logits"]

    def _front_input(self, inputs: "Tensors", workload: Workload) -> "Tensor":
        """[rows, d] float64: what the router reads, as the oracle has it."""
        front = self.members[self._front]
        if "x" in front.outer:
            return inputs[front.outer["x"]].double()
        producer, tensor = front.inside["x"]
        return self._written(inputs, workload, lambda _, member: member.contract.oracle, until=self._front)[producer][tensor]
