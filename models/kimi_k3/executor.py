"""A prepared stretch of the step: buffers, scratch and repacked weights at fixed addresses; `run` only launches."""

from collections import namedtuple
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from .graph import Place
from .parts import STATES, Member, fused_axes
from .schedule import MAIN, Call
from .tensors import STATIC, Rank, axes

Exchange = Callable[[tuple[str, ...]], None]
"""Called where values go to other ranks, with their names, on the current stream"""


class Tensors(Protocol):
    """Where the tensors of places lie."""

    def of(self, place: Place, tensor: str) -> Tensor:
        """The tensor of the op at `place`."""

    def dense(self, value: str) -> Any:
        """How a value that never comes to be would lie."""

    def buffer(self, name: Hashable, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the step's own, zeros at first."""


class Prepared:
    """Repacked weights, shared by every row count that uses the same configuration; what several configurations pack alike is
    there once.

    What a kernel's `prepare` gives may follow from its weights, sizes and configuration, not from the rows.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._kept: dict[tuple[Hashable, Hashable], dict[str, Tensor]] = {}
        self._packed: dict[Hashable, list[Tensor]] = {}

    def of(self, weights: Hashable, config: Hashable, make: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """What `make` gives of `weights` under `config`, made once."""
        if (weights, config) not in self._kept:
            self._kept[weights, config] = {name: self._once(weights, tensor) for name, tensor in make().items()}
        return self._kept[weights, config]

    def _once(self, weights: Hashable, tensor: Tensor) -> Tensor:
        """`tensor`, or one of the same weights that is equal bit for bit."""
        packed = self._packed.setdefault(weights, [])
        for other in packed:
            if _equal_bits(tensor, other):
                return other
        packed.append(tensor)
        self.bytes += tensor.nbytes
        return tensor


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _equal_bits(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return False
    words = _WORDS[one.element_size()]
    return torch.equal(one.view(words), other.view(words))


@dataclass(frozen=True)
class Bound:
    """One call with everything that it is launched with."""

    call: Call
    launch: Callable[[], None]


class Executor:
    """The calls of one row count on one rank; `kernel` gives the module of a kernel file.

    Between runs it keeps nothing but what kernels declare as persistent scratch.
    """

    def __init__(
        self, calls: Sequence[Call], kernel: Callable[[str], Any], tensors: Tensors, rank: Rank, rows: int,
        context: Any, prepared: Prepared, *, exchange: Exchange = lambda values: None,
    ) -> None:  # fmt: skip
        self.calls, self.rank, self.rows, self.context = tuple(calls), rank, rows, context
        self._kernel, self._tensors, self._prepared, self._exchange = kernel, tensors, prepared, exchange
        self.bound = tuple(Bound(call, self._bind(call)) for call in self.calls)

    def run(self) -> None:
        """Enqueues all calls on the current stream and its side streams, which have joined it at the end."""
        for bound in self.bound:
            self.enqueue(bound)
            if bound.call.sends:
                self._exchange(bound.call.sends)

    def enqueue(self, bound: Bound) -> None:
        """Enqueues one call where its stream says."""
        for stream in bound.call.waits:
            self.context.wait(stream)
        if bound.call.stream == MAIN:
            bound.launch()
            return
        with self.context.stream(bound.call.stream):
            bound.launch()

    def _bind(self, call: Call) -> Callable[[], None]:
        module = self._kernel(call.kernel)
        config = dict(call.config)
        found: dict[str, Tensor] = {}
        each = []
        for member in call.members:
            own = {tensor: self._tensors.of(member.place, tensor) for tensor in member.outer}
            found |= {name: own[tensor] for tensor, name in member.outer.items()}
            # A state is there though only another member names it.
            inside = {
                tensor: self._tensors.of(member.place, tensor) if tensor in STATES else self._tensors.dense(value)
                for tensor, value in member.inside.items()
            }
            each.append((member.alias, axes(member.place.op, own | inside, self.rank, self.rows, member.place.axes)))
        at = each[0][1] if len(each) == 1 else fused_axes(each)
        if any(member.takes_columns for member in call.members):
            at["rank"] = self.rank.rank
        # Those of the first reader count, as in the contract of a part.
        static = {name: found[name] for member in call.members for name in _statics(member)}
        if hasattr(module, "prepare"):
            weights = tuple(sorted((name, tensor.data_ptr()) for name, tensor in static.items()))
            prepare = partial(module.prepare, self.context, named(static), dict(at), config)
            found |= self._prepared.of(weights, (call.kernel, tuple(sorted(config.items()))), prepare)
        found |= self._scratch(call, module, at, config)
        return partial(module.launch, self.context, named(found), at, config)

    def _scratch(self, call: Call, module: Any, at: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, Tensor]:
        """Scratch is shared by all places of an op, which follow each other; persistent scratch as well: a kernel is
        held to it being back in its first state, or counted on, after each of its calls."""
        found = {}
        if hasattr(module, "scratch"):
            for name, (shape, dtype) in module.scratch(dict(at), config).items():
                found[name] = self._tensors.buffer(("scratch", call.op, name, tuple(shape)), tuple(shape), dtype)
        if hasattr(module, "persistent"):
            for name, (shape, dtype, *rest) in module.persistent(dict(at), config).items():
                key = ("persistent", call.op, name, tuple(shape), tuple(sorted(config.items())))
                found[name] = self._tensors.buffer(key, tuple(shape), dtype)
                if rest:
                    found[name].view(torch.uint8).fill_(rest[0])
        return found


def _statics(member: Member) -> list[str]:
    return [member.outer[tensor] for tensor in STATIC[member.place.op]]


def named(tensors: Mapping[str, Tensor]) -> Any:
    """Tensors as attributes."""
    return namedtuple("Buffers", tensors)(**tensors)
