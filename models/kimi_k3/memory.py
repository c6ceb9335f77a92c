"""The buffers of a step: allocated once for a row count, at addresses that never change.

Layers follow each other, so values of one kind share a buffer, with three exceptions: banked streams stay where they
were written (they lie side by side, as the mixes read them), the two streams of a layer alternate, and what ranks
exchange lies with a place for every rank. Nothing is copied on one rank: what a bank holds was written there by the op
that made it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .graph import Place, Source, Via
from .tensors import BF16, GATHERED, Rank, dense

_STREAMS = ("o_proj_residual.stream", "dense_down.stream", "latent_up.stream")


class Memory:
    """Buffers of `places` for `rows` rows on `device`."""

    def __init__(self, places: Sequence[Place], rank: Rank, rows: int, device: torch.device | str) -> None:
        self.rank, self.rows, self.device = rank, rows, torch.device(device)
        self.bytes = 0
        self._kept: dict[Any, Tensor] = {}
        self._banked: dict[str, int] = {}
        for place in places:
            for number, source in enumerate(place.reads.get("blocks", ())):
                self._banked[source.value] = number
        self._ops = {value: (place.op, tensor) for place in places for tensor, value in place.writes.items()}

    def read(self, place: Place, tensor: str) -> Tensor:
        """What `place` reads as `tensor`."""
        sources = place.reads[tensor]
        if tensor == "blocks":
            return self._banks()[: len(sources)]
        (source,) = sources
        return self.value(source)

    def value(self, source: Source) -> Tensor:
        """A value as one reader takes it."""
        match source.via:
            case Via.HERE:
                return self.written(source.value)
            case Via.COLUMNS:
                return self._mine(self.whole(source.value))
            case Via.GATHERED:
                return self.whole(source.value)
            case Via.PEERS:
                return self.peers()
            case Via.RANKS:
                return self._everyones(source.value)
        return self._mine(self._everyones(source.value))

    def written(self, value: str) -> Tensor:
        """Where the op that makes `value` leaves it."""
        if value not in self._ops:
            return self.whole(value)
        op, tensor = self._ops[value]
        shape, dtype = self.rank.output(op, tensor, self.rows)
        kind = f"{op}.{tensor}"
        if kind in GATHERED:
            return self.whole(value) if self.rank.tp == 1 else self.buffer(kind, shape, dtype)
        if kind in _STREAMS:
            return self.whole(value)
        if kind in ("experts.routed", "shared_down.partial"):
            return self._everyones(value)[self.rank.rank]
        return self.buffer(kind, shape, dtype)

    def whole(self, value: str) -> Tensor:
        """What is called `value` with the columns of all ranks: a stream [rows, d] in its bank or in one of two that
        alternate, or router logits [rows, E] or latents [rows, L].

        What no place writes (the embedding, where a part begins) is the caller's to fill."""
        if value in self._banked:
            return self._banks()[self._banked[value]]
        if value in self._ops and self._ops[value][0] == "front":
            op, tensor = self._ops[value]
            return self.buffer(f"all ranks' {op}.{tensor}", *self.rank.gathered(op, tensor, self.rows))
        kind = ".".join(self._ops[value]) if value in self._ops else "latent_up.stream"
        place = "attention stream" if kind == "o_proj_residual.stream" else "layer stream"
        return self.buffer(place, (self.rows, self.rank.shape.hidden), BF16)

    def peers(self) -> Tensor:
        """What other ranks sent for a sum of streams, [tp - 1, rows, d]."""
        return self.buffer("peers", (self.rank.tp - 1, self.rows, self.rank.shape.hidden), BF16)

    def buffer(self, name: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The buffer called `name`, made at first use: zeros."""
        if name not in self._kept:
            self._kept[name] = torch.zeros(shape, dtype=dtype, device=self.device)
            self.bytes += self._kept[name].nbytes
        found = self._kept[name]
        if found.shape != shape or found.dtype != dtype:
            raise ValueError(f"buffer {name!r} is {tuple(found.shape)} {found.dtype}, asked for as {shape} {dtype}")
        return found

    def dense(self, value: str):
        """How `value` would lie if it came to be: for the axes of a kernel that keeps it to itself."""
        op, tensor = self._ops[value]
        return dense(*self.rank.output(op, tensor, self.rows)[0])

    def _banks(self) -> Tensor:
        count = 1 + max(self._banked.values(), default=0)
        return self.buffer("banks", (count, self.rows, self.rank.shape.hidden), BF16)

    def _everyones(self, value: str) -> Tensor:
        op, tensor = self._ops[value]
        shape, dtype = self.rank.output(op, tensor, self.rows)
        return self.buffer(f"{op}.{tensor}", (self.rank.tp, *shape), dtype)

    def _mine(self, whole: Tensor) -> Tensor:
        columns = self.rank.columns
        return whole[..., self.rank.rank * columns : (self.rank.rank + 1) * columns]
