"""The specialised decode path of every rank of a group in one process, call by call in step, on one card.

What a rank sends is copied to the others before anybody goes on: exchange between GPUs is not part of this.
"""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...contracts.base import OpContract, TensorRole, Workload
from ...errors import UserError
from .cards import Card

_SUMMED = ("o_proj_residual", "dense_down")
_ENDS_LAYER = ("latent_up", "dense_down")
_COLUMNS = ("front", "latent_up")
"""Ops of which every rank finishes some columns"""


@dataclass(frozen=True)
class Left:
    """What a step of all ranks left: see contracts/kimi_k3/numerics/paths.py."""

    logits: Tensor
    streams: Tensor
    chosen: dict[int, Tensor]
    """Of the layers whose choice a kernel writes down: one that is fused with the experts keeps it to itself"""
    logits_of_routers: dict[int, Tensor]
    """Layer -> [rows, experts] float32"""


class Group:
    """Decoders of all ranks, bound to caches. `sizes`, `configurations` and `constants`: see kernel_sizes.py.

    Without configurations, kernels and tiles are those of the directory's dispatch tables. `prepared` holds repacked
    weights from one group to the next; by default a group repacks its own.
    """

    def __init__(
        self, factory: ModuleType, directory: Any, weights: Sequence[Any], caches: Sequence[Mapping], *, card: Card,
        pages: int, buckets: Sequence[int], sizes: Mapping[str, Any], constants: Mapping[str, Mapping[str, float]],
        configurations: Mapping[str, Mapping[str, Any]] | None, width: int = 1, prepared: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        """`buckets` and `width` as plan.Prepared has them: a step of several tokens has no more rows than the largest."""
        resize(directory, constants)
        self._card, self._factory, self._decode = card, factory, directory.kernel("decode.py")
        self._plans, self._exchanged = directory.kernel("plan.py"), directory.kernel("graph.py").EXCHANGED
        tp, shape = len(weights), factory.Shape(**sizes)
        here = directory.kernel("environment.py").Environment(
            hardware=card.name, capability=card.capability, multiprocessors=card.multiprocessors, tp=tp, shape=shape,
            ranks_here=tp, verify_width=width,
        )  # fmt: skip
        own = directory if configurations is None else _tabulated(
            directory, configurations, card.name, tp, max(buckets), width
        )
        self.ranks = [
            factory.Decoder(
                weights[rank], here, own, card.context, rank=rank, shape=shape, buckets=tuple(buckets), device=card.device
            )
            for rank in range(tp)
        ]  # fmt: skip
        self._pages = pages
        self.kernels: set[str] = set()
        """Files of the kernels that were launched"""
        for number, (decoder, cache) in enumerate(zip(self.ranks, caches, strict=True)):
            if prepared is not None:
                decoder.prepared = prepared[number]
            decoder.bind(cache, pages)

    def plan(self, counts: Sequence[int]) -> Any:
        """How all ranks plan a step of requests that bring `counts` tokens. Where the stock path is faster the kernels
        are claimed nevertheless: here they run all rows that they are claimed for."""
        decoder = self.ranks[0]
        prepared = self._plans.Prepared(decoder.buckets, decoder.environment.verify_width, self._pages)
        return self._plans.plan(self._plans.Step(tuple(counts)), prepared)

    def runs_here(self, plan: Any) -> bool:
        """Whether the specialised path runs a plan, and not the stock path."""
        return isinstance(plan, self._plans.Plan)

    def step(self, plan: Any, embedding: Tensor, slots: Tensor, page_table: Tensor, lengths: Tensor) -> Left:
        """One step; arguments as the decode path's `Inputs`."""
        rows = len(lengths)
        inputs = self._decode.Inputs(embedding, slots, page_table, lengths)
        lanes = [decoder.lane(plan.bucket, plan.tokens) for decoder in self.ranks]
        for lane in lanes:
            lane.take(inputs, rows)
        memories = [lane.memory for lane in lanes]
        streams: dict[int, Tensor] = {}
        chosen: dict[int, Tensor] = {}
        routers: dict[int, Tensor] = {}
        executors = [decoder.executor(plan.bucket, plan.tokens) for decoder in self.ranks]
        self.kernels.update(call.kernel for call in executors[0].calls)
        for bounds in zip(*(executor.bound for executor in executors), strict=True):
            self._call(executors, bounds, lanes)
            call = bounds[0].call
            for place in (member.place for member in call.members):
                if place.op in _ENDS_LAYER:
                    streams[place.layer] = memories[0].whole(place.writes["stream"])[:rows].clone()
                elif place.op == "front":
                    routers[place.layer] = memories[0].whole(place.writes["logits"])[:rows].clone()
                elif place.op == "routing" and len(call.members) == 1:
                    chosen[place.layer] = memories[0].written(place.writes["ids"])[:rows].long().sort(-1).values
        logits = torch.cat([memory.written(self._factory.LOGITS)[:rows] for memory in memories], 1)
        return Left(logits, torch.stack([streams[layer] for layer in sorted(streams)]), chosen, routers)

    def _call(self, executors: Sequence[Any], bounds: Sequence[Any], lanes: Sequence[Any]) -> None:
        """One call on every rank, and what it sends."""
        call, memories = bounds[0].call, [lane.memory for lane in lanes]
        if len(executors) == 1 or not call.sends:
            self._enqueue(executors, bounds)
            return
        returned = [value for value in call.sends if value in _read_from_others(call, self._exchanged)]
        if returned:
            # A launch that also reads what all ranks send in it runs twice, the second time with everybody's shares; what
            # it updates in place must not move on twice.
            states = list(_states(bounds, lanes))
            kept = [state.clone() for state in states]
            self._enqueue(executors, bounds)
            for value in returned:
                _exchange(memories, value)
            for state, before in zip(states, kept, strict=True):
                state.copy_(before)
        self._enqueue(executors, bounds)
        for value in call.sends:
            if value not in returned:
                _exchange(memories, value)

    def _enqueue(self, executors: Sequence[Any], bounds: Sequence[Any]) -> None:
        """One call on every rank; what is copied next waits for it, on whatever stream it runs."""
        for executor, bound in zip(executors, bounds, strict=True):
            executor.enqueue(bound)
        call = bounds[0].call
        if call.sends and call.stream != "main":
            self._card.context.wait(call.stream)


def _tabulated(
    directory: Any, configurations: Mapping[str, Mapping[str, Any]], hardware: str, tp: int, rows: int, width: int
) -> Any:
    """The directory with a table of one entry an op, claimed for 1 to `rows` rows and `width` tokens a request."""
    entry = {"hardware": hardware, "tp": tp, "rows": [1, rows], "basis": "modelled"}
    tables = {
        op: ({**entry, "kernel": f"kernels/{op}.py", "config": dict(config)},) for op, config in configurations.items()
    }
    claim = directory.kernel("environment.py").Claim(hardware, tp, (1, rows), width)
    return type(directory)((claim,), tables, directory.kernel, directory.sources)


def _read_from_others(call: Any, exchanged: Iterable[str]) -> set[str]:
    """Values that a call reads from every rank."""
    sources = (source for member in call.members for source in member.place.sources)
    return {source.value for source in sources if source.via in exchanged}


def _states(bounds: Sequence[Any], lanes: Sequence[Any]) -> Iterable[Tensor]:
    """What a call updates in place, on all ranks."""
    for bound, lane in zip(bounds, lanes, strict=True):
        for place in (member.place for member in bound.call.members):
            yield from (lane.of(place, tensor) for tensor in place.writes if tensor in place.reads)


def launch_op(
    module: ModuleType, contract: OpContract, workload: Workload, tensors: Mapping[str, Tensor], config: Mapping, card: Card
) -> Callable[[], None]:  # fmt: skip
    """One op's kernel file on tensors that are laid out already: prepared, given fresh scratch. Gives the launch."""
    axes, context = dict(workload.axes), card.context
    static = {
        spec.name: tensors[spec.name] for spec in contract.tensors(workload) if spec.role is TensorRole.STATIC
    }
    found = dict(tensors)
    if hasattr(module, "prepare"):
        found |= module.prepare(context, _named(static), axes, config)
    for what in ("scratch", "persistent"):
        if hasattr(module, what):
            for name, (shape, dtype, *rest) in getattr(module, what)(axes, config).items():
                found[name] = torch.zeros(shape, dtype=dtype, device=card.device)
                if rest:
                    found[name].view(torch.uint8).fill_(rest[0])
    return partial(module.launch, context, _named(found), axes, config)


def _named(tensors: Mapping[str, Tensor]) -> Any:
    return namedtuple("Buffers", tensors)(**tensors)


def resize(directory: Any, constants: Mapping[str, Mapping[str, float]]) -> None:
    """Gives the kernels other sizes, in this process. UserError for a constant that a kernel does not have."""
    for file, values in constants.items():
        module = directory.kernel(f"kernels/{file}.py")
        for name, value in values.items():
            if not hasattr(module, name):
                raise UserError(
                    f"kernels/{file}.py has no constant {name}",
                    "keep the names of sizes, or change kernel_sizes.py of the contract with them",
                )
            setattr(module, name, value)


def _exchange(memories: Sequence[Any], value: str) -> None:
    """Copies what every rank holds of `value` to where the others read it."""
    sent = [memory.written(value).clone() for memory in memories]
    op = value.split(".")[1]
    for rank, memory in enumerate(memories):
        if op in _SUMMED:
            memory.peers().copy_(torch.stack([part for other, part in enumerate(sent) if other != rank]))
        elif op in _COLUMNS:
            memory.whole(value).copy_(torch.cat(sent, 1))
        else:
            memory._everyones(value).copy_(torch.stack(sent))
