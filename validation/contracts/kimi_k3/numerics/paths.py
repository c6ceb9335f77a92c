"""A path over whole requests: prefill, decode, acceptance, release, and its whole state on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..layer_weights import ModelWeights, Shard
from ..nano.devices import moved
from ..step.precision import EXACT, PUBLISHED, Precision
from ..step.state import Batch, KdaCache, State
from ..step.unpack import unpack
from ..weights.checkpoint import Checkpoint
from ..weights.shard import load_model
from .observed import Observed
from .reordered import Reordered

PAGE = 16
CHUNKS = (8, 12, 32)
"""Tokens of a chunk of the recurrence, of the plain path run again; 16 by default"""
Build = Callable[[Checkpoint, Sequence[ModelWeights], Precision], Observed]


@dataclass(frozen=True)
class Seen:
    """What one step left, row by row, on the CPU."""

    logits: Tensor
    """[rows, vocabulary]"""
    streams: Tensor
    """[layers, rows, d]"""
    chosen: Mapping[int, Tensor]
    """Layer -> [rows, top k] expert ids, sorted"""
    scores: Mapping[int, Tensor]
    """Layer -> [rows, experts]: what they were chosen by"""


class TorchPath:
    """The step model over a checkpoint with a state of its own: oracle, plain path, the plain path again, a fault."""

    def __init__(self, model: Observed, *, chunk: int = 16) -> None:
        self.model = model
        self._chunk = chunk
        self.state: State

    def begin(self, requests: int, max_tokens: int, width: int) -> None:
        """Empty caches for `requests`, and verify steps of up to `width` tokens."""
        self.state = self.model.new_state(requests, max_tokens, verify_width=width, page_size=PAGE)

    def prefill(self, batch: Batch) -> Seen:
        """All rows are committed."""
        return self._seen(self.model.prefill(self._placed(batch), self.state, chunk=self._chunk))

    def decode(self, batch: Batch) -> Seen:
        """One step; `commit` follows."""
        return self._seen(self.model.decode(self._placed(batch), self.state))

    def _placed(self, batch: Batch) -> Batch:
        """The batch where the weights are."""
        return replace(batch, tokens=batch.tokens.to(self.model.ranks[0].embedding.device))

    def commit(self, batch: Batch, accepted: Sequence[int]) -> None:
        """Keeps the first `accepted` tokens of each request."""
        self.state.commit(batch, accepted)

    def release(self, request: int) -> None:
        """The request ends or is preempted: its pages are somebody else's, who begins with an empty state."""
        state = self.state
        state.lengths[request] = 0
        state.candidates.pop(request, None)
        for rank in state.ranks:
            for cache in rank.values():
                if isinstance(cache, KdaCache):
                    cache.conv[state.slots[request, 0]] = 0
                    cache.recurrent[state.slots[request, 0]] = 0

    def committed(self, request: int) -> dict[str, Tensor]:
        """Everything that later steps can see of a request: "layer.name" -> of all ranks, float64."""
        state, found = self.state, {}
        slot, length = int(state.slots[request, 0]), state.lengths[request]
        for layer in range(self.model.architecture.layers):
            caches = [rank[layer] for rank in state.ranks]
            if isinstance(caches[0], KdaCache):
                heads = [c.conv[slot].unflatten(-1, (3, -1)) for c in caches]
                found[f"{layer}.conv_state"] = torch.cat(heads, -1).double()
                found[f"{layer}.recurrent_state"] = torch.cat([c.recurrent[slot] for c in caches]).double()
            elif length:
                found[f"{layer}.cache"] = caches[0].read(state.pages[request], length).double()
        return {name: tensor.cpu() for name, tensor in found.items()}

    def null_pages(self) -> tuple[str, ...]:
        """Pools whose null page, which nobody owns, holds anything but the zeros it began with."""
        return tuple(
            f"{layer}.{name} of rank {rank}"
            for rank, caches in enumerate(self.state.ranks)
            for layer, cache in caches.items()
            for name, pool in vars(cache).items()
            if pool[0].any() or pool[0].isnan().any()
        )

    def save(self, file: Path) -> None:
        """Writes the state."""
        state = self.state
        tensors = {f"{rank}.{layer}.{name}": pool for rank, layer, name, pool in _pools(state)}
        tensors |= {"slots": state.slots, "pages": state.pages, "lengths": torch.tensor(state.lengths)}
        held = sorted(state.candidates.items())
        tensors["candidates"] = torch.tensor(held, dtype=torch.int64).view(-1, 2)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)

    def load(self, file: Path) -> None:
        """Takes up what `save` wrote of a state that began alike; tensors keep their places."""
        state, found = self.state, load_file(file)
        for rank, layer, name, pool in _pools(state):
            pool.copy_(found[f"{rank}.{layer}.{name}"])
        state.slots.copy_(found["slots"])
        state.pages.copy_(found["pages"])
        state.lengths[:] = found["lengths"].tolist()
        state.candidates = {int(request): int(count) for request, count in found["candidates"].tolist()}

    def _seen(self, logits: Tensor) -> Seen:
        chosen, scores = (
            {layer: found.cpu() for layer, found in kept.items()} for kept in (self.model.chosen, self.model.scores)
        )
        return Seen(logits.cpu(), torch.stack(self.model.streams).cpu(), chosen, scores)


def _pools(state: State):
    for rank, caches in enumerate(state.ranks):
        for layer, cache in caches.items():
            for name, pool in vars(cache).items():
                yield rank, layer, name, pool


class Paths:
    """The paths over one checkpoint; weights are loaded once for each TP and arithmetic."""

    def __init__(self, directory: Path, device: str = "cpu") -> None:
        self.checkpoint, self.device = Checkpoint(directory), device
        self.architecture = self.checkpoint.architecture
        self.shards = lru_cache(None)(self._shards)
        self._unpacked = lru_cache(None)(self._unpack)

    def oracle(self) -> TorchPath:
        """float64, nothing rounded, unsharded."""
        return TorchPath(Observed(self.architecture, self._unpacked(1, EXACT), EXACT))

    def stock(self, tp: int) -> TorchPath:
        """The plain path: bfloat16 where the published model leaves a tensor."""
        return TorchPath(Observed(self.architecture, self._unpacked(tp, PUBLISHED), PUBLISHED))

    def again(self, tp: int, seed: int) -> TorchPath:
        """The plain path in another order of sums and another cut of the prefill."""
        model = Observed(self.architecture, self._unpacked(tp, PUBLISHED), Reordered(seed=seed))
        return TorchPath(model, chunk=CHUNKS[seed % len(CHUNKS)])

    def variant(self, tp: int, model: type[Observed], precision: Precision = PUBLISHED) -> Observed:
        """Another model over the plain path's weights."""
        return model(self.architecture, self._unpacked(tp, PUBLISHED), precision)

    def _shards(self, tp: int) -> tuple[ModelWeights, ...]:
        return tuple(moved(load_model(self.checkpoint, Shard(tp, rank)), self.device) for rank in range(tp))

    def _unpack(self, tp: int, precision: Precision) -> tuple[ModelWeights, ...]:
        return tuple(unpack(weights, precision) for weights in self.shards(tp))
