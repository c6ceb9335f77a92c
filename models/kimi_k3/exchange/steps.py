"""A prepared step of one rank with its exchanges: what the executor launches, and between its calls what ranks send.

Four values of a step go to other ranks (graph.Via): a product's partial stream, the experts' and the shared expert's
partial sums, and this rank's columns of a layer's stream. `Mailboxes` hands them over in two launches a layer and one
for the expert sums, each fused with the mix behind it; `Collectives` by a communication library's, one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..executor import Bound, Executor
from ..graph import Place
from ..memory import Memory
from .kernels import Mix, Parcel, exchange, gather, prefetch
from .mailboxes import Mailbox

Launch = Callable[[], None]

SUMMED = ("o_proj_residual", "dense_down")
"""Ops whose `partial` all ranks add to the stream"""
MIXED = "attn_res_norm"


class Lane(Protocol):
    """The tensors of a step (`Decoder.lane`)."""

    memory: Memory

    def of(self, place: Place, tensor: str) -> Tensor:
        """As executor.Tensors."""


class Transport(Protocol):
    """How values go to other ranks: each method gives the launches of one of them."""

    fuses: bool
    """Whether the mix behind an exchange is its business"""

    def summed(self, partial: Tensor, residual: Tensor | None, stream: Tensor, mix: Mix | None) -> Launch:
        """stream [rows, d] = residual + the sum of all ranks' `partial` [rows, d]."""

    def columns(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Launch:
        """For each (own, whole) of at most two: whole [rows, n] from every rank's columns `own` [rows, n / ranks]."""

    def shared(self, routed: Tensor, partial: Tensor, columns: int) -> Launch:
        """Every rank's `routed` [ranks, rows, L] and this rank's columns of every `partial` [ranks, rows, d]; a rank's own
        lie there."""

    def whole(self, own: Tensor, stream: Tensor, mix: Mix | None) -> Launch:
        """stream [rows, d] from every rank's columns `own` [rows, d / ranks]."""


class Mailboxes:
    """By mailboxes: see kernels.py."""

    fuses = True

    def __init__(self, ctx: Any, box: Mailbox, *, patience_ns: int | None = None) -> None:
        self._ctx, self._box, self._patience = ctx, box, patience_ns

    def summed(self, partial: Tensor, residual: Tensor | None, stream: Tensor, mix: Mix | None) -> Launch:
        """See Transport."""
        return lambda: exchange(
            self._ctx, self._box, partial, residual, stream, mix=mix, patience_ns=self._patience
        )

    def columns(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Launch:
        """See Transport."""
        ranks = self._box.ranks
        parcels = [
            Parcel(own.expand(ranks, *own.shape), whole.unflatten(1, (ranks, -1)).transpose(0, 1), keeps=True)
            for own, whole in parts
        ]
        return lambda: gather(self._ctx, self._box, *parcels, patience_ns=self._patience)

    def shared(self, routed: Tensor, partial: Tensor, columns: int) -> Launch:
        """See Transport."""
        rank, ranks = self._box.rank, self._box.ranks
        latents = Parcel(routed[rank].expand_as(routed), routed, keeps=False)
        theirs = partial[rank].unflatten(1, (ranks, columns)).transpose(0, 1)
        mine = partial[:, :, rank * columns : (rank + 1) * columns]
        return lambda: gather(
            self._ctx, self._box, latents, Parcel(theirs, mine, keeps=False), patience_ns=self._patience
        )

    def whole(self, own: Tensor, stream: Tensor, mix: Mix | None) -> Launch:
        """See Transport."""
        return lambda: exchange(self._ctx, self._box, own, None, stream, mix=mix, patience_ns=self._patience)


class Collectives:
    """By the collectives of a process group on the GPU (NCCL), and separate kernels around them: to compare with."""

    fuses = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def summed(self, partial: Tensor, residual: Tensor | None, stream: Tensor, mix: Mix | None) -> Launch:
        """See Transport; `partial` holds the sum afterwards."""

        def launch() -> None:
            dist.all_reduce(partial, group=self._group)
            if residual is None:
                stream.copy_(partial)
            else:
                torch.add(partial, residual, out=stream)

        return launch

    def columns(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Launch:
        """See Transport."""
        launches = [self.whole(own, whole, None) for own, whole in parts]

        def launch() -> None:
            for each in launches:
                each()

        return launch

    def shared(self, routed: Tensor, partial: Tensor, columns: int) -> Launch:
        """See Transport."""
        rank = self._group.rank()

        def launch() -> None:
            for whole in (routed, partial):
                dist.all_gather_into_tensor(whole.flatten(0, 1), whole[rank], group=self._group)

        return launch

    def whole(self, own: Tensor, stream: Tensor, mix: Mix | None) -> Launch:
        """See Transport."""
        gathered = own.new_empty(self._group.size(), *own.shape)

        def launch() -> None:
            dist.all_gather_into_tensor(gathered.flatten(0, 1), own, group=self._group)
            stream.view(len(own), len(gathered), -1).copy_(gathered.transpose(0, 1))

        return launch


class RankedStep:
    """One rank's calls `bounds`, by default a whole step's, with the exchanges between them.

    `run` only launches; every rank has to run the same ones. `prefetch_bytes`: how much of the next product's weights is
    brought into the L2 beside the exchange of an attention's output.
    """

    def __init__(
        self, executor: Executor, lane: Lane, transport: Transport, *, bounds: Sequence[Bound] | None = None,
        prefetch_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._executor, self._lane, self._transport = executor, lane, transport
        self._ctx, self._prefetch_bytes = executor.context, prefetch_bytes
        self.launches: list[Launch] = []
        self.exchanges = 0
        self._prefetches = False
        self._bind(tuple(executor.bound if bounds is None else bounds))
        if self._prefetches:
            # Once, behind everything: it writes nothing that anybody waits for.
            self.launches.append(lambda: self._ctx.wait("prefetch"))

    def run(self) -> None:
        """Enqueues everything on the current stream and its side streams, which have joined it at the end."""
        for launch in self.launches:
            launch()

    def _bind(self, bounds: tuple[Bound, ...]) -> None:
        fused: Bound | None = None
        sent: dict[str, Place] = {}
        for number, bound in enumerate(bounds):
            if bound is not fused:
                self.launches.append(lambda bound=bound: self._executor.enqueue(bound))
            for value in bound.call.sends:
                if len(bound.call.members) > 1 and value.endswith("residual.partial"):
                    raise ValueError(f"{bound.call.name}: one launch that reads peers' shares of what it sends; choose single ops")
                sent[value.rpartition(".")[0].rpartition(".")[2]] = _writer(bound, value)
            behind = bounds[number + 1] if number + 1 < len(bounds) else None
            mixes = behind is not None and behind.call.op == MIXED and self._transport.fuses
            mix = self._mix(behind.call.members[0].place) if mixes else None
            launch = None
            if op := next((op for op in SUMMED if op in sent), None):
                launch = self._summed(sent.pop(op), mix)
                self._warm(bounds[number + 1 :])
            elif "front" in sent:
                launch = self._columns(sent.pop("front"))
            elif "experts" in sent and "shared_down" in sent:
                launch = self._shared(sent.pop("experts"), sent.pop("shared_down"))
                mixes = False
            elif "latent_up" in sent:
                launch = self._whole(sent.pop("latent_up"), mix)
            if launch:
                self.launches.append(launch)
                self.exchanges += 1
                fused = behind if mixes else fused

    def _summed(self, place: Place, mix: Mix | None) -> Launch:
        residual = self._lane.of(place, "residual") if "residual" in place.reads else None
        return self._transport.summed(self._lane.of(place, "partial"), residual, self._lane.of(place, "stream"), mix)

    def _shared(self, experts: Place, shared: Place) -> Launch:
        memory = self._lane.memory
        routed, partial = (
            memory._everyones(place.writes[tensor]) for place, tensor in ((experts, "routed"), (shared, "partial"))
        )
        launch = self._transport.shared(routed, partial, memory.rank.columns)

        def joined() -> None:
            self._ctx.wait("shared")
            launch()

        return joined

    def _columns(self, front: Place) -> Launch:
        memory = self._lane.memory
        values = [front.writes[name] for name in ("logits", "latent")]
        return self._transport.columns([(memory.written(value), memory.whole(value)) for value in values])

    def _whole(self, place: Place, mix: Mix | None) -> Launch:
        value = place.writes["stream"]
        return self._transport.whole(self._lane.memory.written(value), self._lane.memory.whole(value), mix)

    def _mix(self, place: Place) -> Mix:
        tensors = {name: self._lane.of(place, name) for name in ("res_norm", "res_proj", "out_norm", "x")}
        return Mix(self._lane.of(place, "blocks") if "blocks" in place.reads else None, **tensors)

    def _warm(self, following: tuple[Bound, ...]) -> None:
        """The next product's weights, in front of the exchange and beside it."""
        if not self._prefetch_bytes:
            return
        weights = next((packed for bound in following if (packed := _packed(bound)) is not None), None)
        if weights is None:
            return

        def launch() -> None:
            with self._ctx.stream("prefetch"):
                prefetch(self._ctx, weights, self._prefetch_bytes)

        self.launches.append(launch)
        self._prefetches = True

def _writer(bound: Bound, value: str) -> Place:
    return next(member.place for member in bound.call.members if value in member.place.writes.values())


def _packed(bound: Bound) -> Tensor | None:
    return getattr(bound.launch.args[1], "packed", None)
