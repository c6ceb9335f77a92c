"""Kimi K3's specialised decode path on one rank: what an engine builds, binds, plans with and runs.

    decoder = Decoder(weights, environment, directory, context)
    decoder.bind(caches, pages=...)                 # after the engine has allocated its caches, and again if it moves them
    logits = decoder.step(step, inputs, stock)      # `stock`: the engine's own path, for what this one leaves to it

`run` enqueues on the current stream, allocates nothing and waits for nothing: an engine captures it after one call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .dispatch import Directory
from .environment import Environment, Objection, unsupported
from .executor import Exchange, Executor, Prepared
from .graph import EMBEDDING, LOGITS, Place
from .graph import step as whole_step
from .memory import Memory
from .plan import Fallback, Plan, Step, plan
from .plan import Prepared as PreparedFor
from .schedule import schedule
from .shape import PUBLISHED, Shape
from .tensors import I32, STATIC, Rank
from .weights import weights

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
Caches = Mapping[int, Mapping[str, Tensor]]
"""Layer -> conv_state and recurrent_state, or cache, as the ops' contracts lay them out; pages may lie apart"""


@dataclass(frozen=True)
class Inputs:
    """What one step is given, on the device. Rows that are padding already have slot 0 and length 0.

    In a verify step the rows of a request follow each other. Each has the request's page table, and a length one larger
    than the row before it. What the engine accepts of the step it says by exchanging entries of its table of slots.
    """

    embedding: Tensor
    """[rows, d] bf16"""
    slots: Tensor
    """One token a request: [rows] int32, its KDA page, which is updated in place; 0 or less for padding. Several: [requests,
    1 + w], w at least the tokens: the page that holds the committed state, and those that the states behind the first 1,
    2, ... tokens go to; a first entry of 0 or less for padding"""
    page_table: Tensor
    """[rows, pages] int32"""
    lengths: Tensor
    """[rows] int32: tokens that a row sees, its own included; 0 for padding"""


class Decoder:
    """The specialised path of one rank. Between steps it keeps nothing: caches and inputs say all."""

    def __init__(
        self, model: Any, environment: Environment, directory: Directory, context: Any, *, rank: int = 0,
        shape: Shape = PUBLISHED, buckets: Sequence[int] = BUCKETS, widths: Sequence[int] | None = None,
        device: torch.device | str = "cuda", exchange: Exchange = lambda values: None,
    ) -> None:  # fmt: skip
        """`model` holds the rank's weights, see weights.py; `buckets` and `widths` say what is prepared, see plan.Prepared.

        Raises ValueError where there are objections: ask first.
        """
        if objections := self.objections(environment, directory, shape):
            raise ValueError("; ".join(objection.text for objection in objections))
        self.directory, self.environment = directory, environment
        self.rank, self.buckets = Rank(shape, environment.tp, rank), tuple(sorted(buckets))
        self.prepared = Prepared()
        self._widths = None if widths is None else tuple(sorted(widths))
        self._model, self._context, self._device, self._exchange = model, context, device, exchange
        self._executors: dict[tuple[int, int], Executor] = {}
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._pages = 0

    @staticmethod
    def objections(
        environment: Environment, directory: Directory, shape: Shape = PUBLISHED
    ) -> tuple[Objection, ...]:
        """All reasons against the specialised path in `environment`."""
        return unsupported(environment, directory.claims, shape)

    def bind(self, caches: Caches, pages: int) -> None:
        """Prepares every size on `caches`, with page tables of `pages` entries: allocates, repacks, compiles nothing.

        Raises schedule.NoKernel where a dispatch table has no entry, and ValueError for caches of another type.
        """
        _check(caches, self.rank.shape)
        self.unbind()
        self._pages = pages
        for tokens in range(1, self.environment.verify_width + 1):
            places = whole_step(self.rank.shape, tokens).places
            for rows in self._sizes.rows(tokens):
                lane = _Lane(self, places, caches, rows, tokens, pages)
                calls = schedule(places, places, self.directory, self.environment.hardware, self.rank.tp, rows)
                self._lanes[rows, tokens] = lane
                self._executors[rows, tokens] = Executor(
                    calls, self.directory.kernel, lane, self.rank, rows, self._context, self.prepared,
                    exchange=self._exchange,
                )

    def unbind(self) -> None:
        """The engine's caches are about to move: steps are the stock path's until `bind`."""
        self._executors, self._lanes = {}, {}

    @property
    def _sizes(self) -> PreparedFor:
        width = self.environment.verify_width
        faster = self.directory.faster_up_to(self.environment.hardware, self.rank.tp)
        bound = bool(self._executors)
        return PreparedFor(self.buckets, width, self._pages, bound=bound, faster=faster, widths=self._widths)

    def plan(self, step: Step) -> Plan | Fallback:
        """How `step` runs."""
        return plan(step, self._sizes)

    def run(self, plan: Plan, inputs: Inputs) -> Tensor:
        """This rank's logits [rows, vocabulary / tp] bf16, in a buffer that the next step of this bucket overwrites."""
        lane = self._lanes[plan.bucket, plan.tokens]
        lane.take(inputs, plan.rows)
        self._executors[plan.bucket, plan.tokens].run()
        return lane.memory.written(LOGITS)[: plan.rows]

    def step(self, step: Step, inputs: Inputs, stock: Callable[[Fallback], Tensor]) -> Tensor:
        """Logits of `step`: by this path where it can, else what `stock` makes of it."""
        match self.plan(step):
            case Plan() as here:
                return self.run(here, inputs)
            case Fallback() as why:
                return stock(why)

    def lane(self, bucket: int, tokens: int = 1) -> "_Lane":
        """The buffers of one size: for what exchanges values between ranks."""
        return self._lanes[bucket, tokens]

    def executor(self, bucket: int, tokens: int = 1) -> Executor:
        """What runs steps of one size."""
        return self._executors[bucket, tokens]

    @property
    def executors(self) -> dict[int, Executor]:
        """Those of steps of one token a request, by rows."""
        return {rows: executor for (rows, tokens), executor in self._executors.items() if tokens == 1}

    @property
    def extra_bytes(self) -> int:
        """Memory beyond weights and caches: repacked weights and buffers."""
        return self.prepared.bytes + sum(lane.memory.bytes for lane in self._lanes.values())


class _Lane:
    """The tensors of one size: the step's memory, the engine's weights and caches, the tables of a step."""

    def __init__(
        self, decoder: Decoder, places: Sequence[Place], caches: Caches, rows: int, tokens: int, pages: int
    ) -> None:
        self.memory = Memory(places, decoder.rank, rows, decoder._device)
        self._model, self._caches, self._rank, self._tokens = decoder._model, caches, decoder.rank, tokens
        slots = (rows,) if tokens == 1 else (rows // tokens, 1 + tokens)
        self._given = {
            "slots": self.memory.buffer("slots", slots, I32),
            "page_table": self.memory.buffer("page_table", (rows, pages), I32),
            "lengths": self.memory.buffer("lengths", (rows,), I32),
        }
        self.embedding = self.memory.whole(EMBEDDING)
        self.dense, self.buffer = self.memory.dense, self.memory.buffer

    def of(self, place: Place, tensor: str) -> Tensor:
        """As executor.Tensors."""
        if tensor in STATIC[place.op]:
            return weights(self._model, place, self._rank)[tensor]
        if tensor in self._given:
            return self._given[tensor]
        if place.layer is not None and tensor in self._caches[place.layer]:
            return self._caches[place.layer][tensor]
        return self.memory.read(place, tensor) if tensor in place.reads else self.memory.written(place.writes[tensor])

    def take(self, inputs: Inputs, rows: int) -> None:
        """Copies a step's inputs in; the rows behind them become padding: slot 0, length 0, an embedding of zeros."""
        slots, own_slots = inputs.slots, self._given["slots"]
        if self._tokens > 1 and slots.dim() == 2:
            if slots.shape[1] < own_slots.shape[1]:
                raise ValueError(f"{own_slots.shape[1]} slots of a request are wanted, not {slots.shape[1]}")
            slots = slots[:, : own_slots.shape[1]]
        given = (
            (self.embedding, inputs.embedding, rows), (own_slots, slots, rows // self._tokens),
            (self._given["page_table"], inputs.page_table, rows), (self._given["lengths"], inputs.lengths, rows),
        )  # fmt: skip
        for own, theirs, count in given:
            if theirs.dtype != own.dtype or len(theirs) != count or theirs.dim() != own.dim():
                raise ValueError(f"{count} rows of {own.dtype} are wanted, not {tuple(theirs.shape)} {theirs.dtype}")
            target = own[:count] if own.dim() == 1 or theirs.shape[1] == own.shape[1] else own[:count, : theirs.shape[1]]
            target.copy_(theirs)
            if count < len(own):
                own[count:].zero_()


def _check(caches: Caches, shape: Shape) -> None:
    wanted = {
        "conv_state": torch.bfloat16, "recurrent_state": torch.float32, "cache": torch.bfloat16
    }  # fmt: skip
    for layer in range(shape.layers):
        names = ("conv_state", "recurrent_state") if layer in shape.kda_layers else ("cache",)
        for name in names:
            tensor = caches[layer][name]
            if tensor.dtype != wanted[name] or tensor.stride(-1) != 1 or tensor.stride(0) * tensor.element_size() % 16:
                raise ValueError(
                    f"layer {layer}: {name} is {tensor.dtype} with strides {tensor.stride()}; kernels read "
                    f"{wanted[name]}, channels side by side, pages on 16 bytes"
                )


__all__ = ["BUCKETS", "Decoder", "Fallback", "Inputs", "Plan", "Step"]
