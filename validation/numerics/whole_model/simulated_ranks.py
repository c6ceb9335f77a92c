"""The specialised decode path of every rank of a group in one process, call by call in step, interpreted on a CPU.

What a rank sends is copied to the others before anybody goes on: exchange between GPUs is not part of this.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...contracts.base import OpContract, TensorRole, Workload
from ...errors import UserError
from ...judge.interpreter.serving import InterpretingContext

HARDWARE, CAPABILITY, MULTIPROCESSORS = "h200", (9, 0), 132
"""What the kernels' host code is told that it runs on: any card of the tables will do"""
_SUMMED = ("o_proj_residual", "dense_down")
_ENDS_LAYER = ("latent_up", "dense_down")


@dataclass(frozen=True)
class Left:
    """What a step of all ranks left: see contracts/kimi_k3/numerics/paths.py."""

    logits: Tensor
    streams: Tensor
    chosen: dict[int, Tensor]
    logits_of_routers: dict[int, Tensor]
    """Layer -> [rows, experts] float32"""


class Group:
    """Decoders of all ranks, bound to caches. `shape`, `configurations` and `constants`: see kernel_sizes.py."""

    def __init__(
        self, factory: ModuleType, directory: Any, weights: Sequence[Any], caches: Sequence[Mapping], *, pages: int,
        buckets: Sequence[int], sizes: Mapping[str, Any], configurations: Mapping[str, Mapping[str, Any]],
        constants: Mapping[str, Mapping[str, float]], width: int = 1,
    ) -> None:  # fmt: skip
        """`buckets` and `width` as plan.Prepared has them: a step of several tokens has no more rows than the largest."""
        resize(directory, constants)
        self.context = InterpretingContext()
        self._factory, self._decode, tp = factory, directory.kernel("decode.py"), len(weights)
        shape = factory.Shape(**sizes)
        environment = directory.kernel("environment.py")
        here = environment.Environment(
            hardware=HARDWARE, capability=CAPABILITY, multiprocessors=MULTIPROCESSORS, tp=tp, shape=shape, ranks_here=tp,
            verify_width=width,
        )
        rows = [1, max(buckets)]
        tables = {
            op: ({"hardware": HARDWARE, "tp": tp, "rows": rows, "kernel": f"kernels/{op}.py", "config": dict(config),
                  "basis": "modelled"},)
            for op, config in configurations.items()
        }  # fmt: skip
        small = type(directory)((environment.Claim(HARDWARE, tp, tuple(rows), width),), tables, directory.kernel)
        self._plans = directory.kernel("plan.py")
        self.ranks = [
            factory.Decoder(
                weights[rank], here, small, self.context, rank=rank, shape=shape, buckets=tuple(buckets), device="cpu"
            )
            for rank in range(tp)
        ]  # fmt: skip
        for decoder, cache in zip(self.ranks, caches, strict=True):
            decoder.bind(cache, pages)

    def plan(self, counts: Sequence[int]) -> Any:
        """How the first rank plans a step of requests that bring `counts` tokens: all plan alike."""
        return self.ranks[0].plan(self._plans.Step(tuple(counts)))

    def runs_here(self, plan: Any) -> bool:
        """Whether the specialised path runs a plan, and not the stock path."""
        return isinstance(plan, self._plans.Plan)

    def step(self, plan: Any, embedding: Tensor, slots: Tensor, page_table: Tensor, lengths: Tensor) -> Left:
        """One step; arguments as the decode path's `Inputs`, on the CPU."""
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
        for bounds in zip(*(executor.bound for executor in executors), strict=True):
            self._call(executors, bounds, memories)
            for place in (member.place for member in bounds[0].call.members):
                if place.op in _ENDS_LAYER:
                    streams[place.layer] = memories[0].whole(place.writes["stream"])[:rows].clone()
                elif place.op == "front":
                    routers[place.layer] = memories[0].written(place.writes["logits"])[:rows].clone()
                elif place.op == "routing":
                    chosen[place.layer] = memories[0].written(place.writes["ids"])[:rows].long().sort(-1).values
        logits = torch.cat([memory.written(self._factory.LOGITS)[:rows] for memory in memories], 1)
        return Left(logits, torch.stack([streams[layer] for layer in sorted(streams)]), chosen, routers)

    def _call(self, executors: Sequence[Any], bounds: Sequence[Any], memories: Sequence[Any]) -> None:
        """One call on every rank, and what it sends."""
        for executor, bound in zip(executors, bounds, strict=True):
            executor.enqueue(bound)
        sends = bounds[0].call.sends
        if len(executors) == 1 or not sends:
            return
        for value in sends:
            _exchange(memories, value)
        if any(value.split(".")[1] in _SUMMED for value in sends):
            # What a kernel sends and what it sums are one launch: the second has everybody's share.
            for executor, bound in zip(executors, bounds, strict=True):
                executor.enqueue(bound)


def launch_op(
    module: ModuleType, contract: OpContract, workload: Workload, tensors: Mapping[str, Tensor], config: Mapping
) -> None:  # fmt: skip
    """One op's kernel file on tensors that are laid out already: prepared, given fresh scratch, launched."""
    axes, context = dict(workload.axes), InterpretingContext()
    static = {
        spec.name: tensors[spec.name] for spec in contract.tensors(workload) if spec.role is TensorRole.STATIC
    }
    found = dict(tensors)
    if hasattr(module, "prepare"):
        found |= module.prepare(context, _named(static), axes, config)
    for what in ("scratch", "persistent"):
        if hasattr(module, what):
            for name, (shape, dtype, *rest) in getattr(module, what)(axes, config).items():
                found[name] = torch.zeros(shape, dtype=dtype)
                if rest:
                    found[name].view(torch.uint8).fill_(rest[0])
    module.launch(context, _named(found), axes, config)


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
        elif op == "latent_up":
            memory.whole(value).copy_(torch.cat(sent, 1))
        else:
            memory._everyones(value).copy_(torch.stack(sent))
