"""What the manifest names: how the decode path is reached from outside of this directory.

`Decoder` (an engine's way in, see decode.py), and `part`: some places of the step on tensors that somebody else owns,
which is how the path is measured and compared piece by piece.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .decode import Decoder
from .dispatch import Directory
from .executor import Executor, Prepared
from .graph import EXCHANGED, LOGITS, Place, Via, step
from .launcher import ServingContext, hardware
from .memory import Memory
from .schedule import schedule
from .shape import PUBLISHED, Shape
from .tensors import STATIC, Rank

__all__ = ["Decoder", "Directory", "Part", "ServingContext", "hardware", "part"]


@dataclass(frozen=True)
class Part:
    """Places bound to tensors."""

    run: Callable[[], None]
    """Launches on the current stream and does nothing else: a CUDA graph captures it after one call"""
    outputs: Mapping[str, Tensor]
    """Value -> where it lies after `run`; states are those that were given"""
    calls: tuple[tuple[str, str], ...]
    """(op, kernel file) in launch order"""
    extra_bytes: int
    """Repacked weights and buffers"""


def part(
    names: Iterable[str], given: Mapping[str, Tensor], directory: Directory, context: Any, *, hardware: str, tp: int,
    rows: int, tokens: int = 1, rank: int = 0, shape: Shape = PUBLISHED,
) -> Part:  # fmt: skip
    """The places `names` of a step of `rows` rows, `tokens` of each request, in order.

    `given` holds as "place.tensor" whatever a place reads that no other of them leaves on this rank: weights, states,
    tables, streams, what other ranks sent. Raises schedule.NoKernel, and KeyError for what is missing.
    """
    wanted = set(names)
    places = step(shape, tokens).places
    chosen = tuple(place for place in places if place.name in wanted)
    calls = schedule(places, chosen, directory, hardware, tp, rows)
    prepared, of = Prepared(), Rank(shape, tp, rank)
    tensors = _Given(chosen, of, rows, given)
    executor = Executor(calls, directory.kernel, tensors, of, rows, context, prepared)
    outside = {
        source.value for place in places for source in place.sources
        if place.name not in wanted or source.via in EXCHANGED
    }  # fmt: skip
    outputs = {
        value: tensors.of(place, tensor)
        for place in chosen for tensor, value in place.writes.items()
        if value in outside or value == LOGITS or tensor in place.reads
    }  # fmt: skip
    used = tuple((call.op, call.kernel) for call in calls)
    return Part(executor.run, outputs, used, prepared.bytes + tensors.memory.bytes)


class _Given:
    """Tensors of a part: given ones, and buffers for what its places leave."""

    def __init__(self, places: tuple[Place, ...], rank: Rank, rows: int, given: Mapping[str, Tensor]) -> None:
        device = next(iter(given.values())).device
        self.memory = Memory(places, rank, rows, device)
        self._rank, self._rows, self._given = rank, rows, given
        self._writer = {value: (place, tensor) for place in places for tensor, value in place.writes.items()}

    def of(self, place: Place, tensor: str) -> Tensor:
        """As executor.Tensors."""
        sources = place.reads.get(tensor, ())
        state = tensor in place.writes
        if len(sources) == 1 and not state and tensor != "blocks" and sources[0].via in (Via.HERE, Via.COLUMNS):
            writer = self._writer.get(sources[0].value)
            if writer:
                whole, columns = self.of(*writer), self._rank.columns
                first = self._rank.rank * columns
                return whole if sources[0].via is Via.HERE else whole[:, first : first + columns]
        if sources or tensor in STATIC[place.op]:
            return self._given[f"{place.name}.{tensor}"]
        shape, dtype = self._rank.output(place.op, tensor, self._rows)
        return self.memory.buffer(place.writes[tensor], shape, dtype)

    def dense(self, value: str) -> Any:
        """As executor.Tensors."""
        return self.memory.dense(value)

    def buffer(self, name: Hashable, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As executor.Tensors."""
        return self.memory.buffer(name, shape, dtype)
