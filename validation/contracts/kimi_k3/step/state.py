"""What a request leaves behind between steps: KDA pages, latent rows, and the tables that say whose they are.

A request owns 1 + w slots of the KDA pools, for verify widths up to w. Slot 0 of its row in the table holds the
committed state; a step of q tokens reads it and leaves the state after t tokens in slot t, t = 1 to q. Accepting a
tokens swaps entries 0 and a of the row, so that nothing is copied and none (a = 0) needs no exception. Latent rows
need no undoing: rows past a request's length are never read, and the next step overwrites them.

Page 0 of every pool is the null page: padded requests point to it, and it is neither read nor written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from ....errors import UserError
from ..architecture import Architecture
from .precision import Precision

PADDING = -1
"""A request that stands for rows which only fill a batch."""


@dataclass(frozen=True)
class Batch:
    """The tokens of one step: `counts[i]` consecutive rows for `requests[i]`, which is an index or PADDING."""

    tokens: Tensor
    """[rows] int64"""
    requests: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        live = [request for request in self.requests if request != PADDING]
        if len(self.requests) != len(self.counts) or sum(self.counts) != len(self.tokens) or min(self.counts) < 1:
            raise UserError(
                f"{len(self.tokens)} tokens do not split into counts {self.counts} of requests {self.requests}",
                "give each request the number of its rows, one or more",
            )
        if len(set(live)) != len(live) or min(live, default=0) < 0:
            raise UserError(f"requests {self.requests} of one step", f"name each once; {PADDING} marks padding")

    @cached_property
    def rows(self) -> tuple[slice, ...]:
        """The rows of each request."""
        return spans(self.counts)


def spans(counts: Sequence[int]) -> tuple[slice, ...]:
    """Consecutive slices of these lengths."""
    return tuple(slice(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True))


@dataclass(frozen=True)
class KdaCache:
    """The pools of one KDA layer on one rank. Pages may lie further apart than they are large."""

    conv: Tensor
    """[pages, width - 1, 3 p] in the storage type: raw projections of q | k | v, oldest first"""
    recurrent: Tensor
    """[pages, h, D (v), D (k)]"""

    def __post_init__(self) -> None:
        if len(self.conv) != len(self.recurrent):
            raise UserError(
                f"the convolution pool has {len(self.conv)} pages, the recurrent pool {len(self.recurrent)}",
                "one slot indexes both: give them equally many",
            )


@dataclass(frozen=True)
class LatentCache:
    """The paged latent rows of one MLA layer: normed latent | unrotated key part. Every rank holds the same."""

    rows: Tensor
    """[pages, page size, kv_lora_rank + qk_rope_head_dim] in the storage type"""

    def write(self, pages: Tensor, start: int, rows: Tensor) -> None:
        """Puts `rows` [n, width] at positions from `start` of the request whose page table is `pages` [k]."""
        page, offset = self._locate(pages, start, start + len(rows))
        self.rows[page, offset] = rows.to(self.rows.dtype)

    def read(self, pages: Tensor, length: int) -> Tensor:
        """The first `length` rows of a request, [length, width]."""
        return self.rows[self._locate(pages, 0, length)]

    def _locate(self, pages: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        size = self.rows.shape[1]
        if stop > size * int((pages > 0).cumprod(0).sum()):
            raise UserError(
                f"position {stop - 1} lies past the pages {pages.tolist()} of {size} rows",
                "give the request more pages",
            )
        positions = torch.arange(start, stop, device=self.rows.device)
        return pages[positions // size], positions % size


Caches = dict[int, KdaCache | LatentCache]


@dataclass
class State:
    """All that a model keeps of `requests` between steps."""

    ranks: list[Caches]
    """Of each rank: layer -> its cache"""
    slots: Tensor
    """[requests, 1 + verify width] int64: pages of the KDA pools, the committed one first"""
    pages: Tensor
    """[requests, pages] int64: pages of the latent pools, in order of position"""
    lengths: list[int]
    """Committed tokens of each request"""
    candidates: dict[int, int] = field(default_factory=dict)
    """Tokens of the last decode step that nobody has ruled on yet, by request"""

    @classmethod
    def allocate(
        cls,
        architecture: Architecture,
        tp: int,
        precision: Precision,
        requests: int,
        max_tokens: int,
        *,
        verify_width: int = 8,
        page_size: int = 16,
        device: str = "cpu",
    ) -> "State":
        """Empty caches for `requests` of up to `max_tokens` tokens each, candidates of a last step included."""
        shard = architecture.kda_shard(tp)
        per_request = -(-max_tokens // page_size)
        slots = 1 + torch.arange(requests * (1 + verify_width), device=device).view(requests, -1)
        pages = 1 + torch.arange(requests * per_request, device=device).view(requests, -1)
        window = (1 + slots.numel(), shard.conv_width - 1, 3 * shard.channels)
        matrix = (1 + slots.numel(), shard.heads, shard.head_dim, shard.head_dim)
        latent = (1 + pages.numel(), page_size, architecture.mla.kv_lora_rank + architecture.mla.qk_rope_head_dim)

        def cache(layer: int) -> KdaCache | LatentCache:
            if layer in architecture.mla_layers:
                return LatentCache(torch.zeros(latent, dtype=precision.storage, device=device))
            return KdaCache(
                torch.zeros(window, dtype=precision.storage, device=device),
                torch.zeros(matrix, dtype=precision.recurrent_state, device=device),
            )

        ranks = [{layer: cache(layer) for layer in range(architecture.layers)} for _ in range(tp)]
        return cls(ranks, slots, pages, [0] * requests)

    def slots_of(self, batch: Batch) -> Tensor:
        """[requests of the batch, 1 + verify width]; zeros for padding."""
        return _select(self.slots, batch)

    def pages_of(self, batch: Batch) -> Tensor:
        """[requests of the batch, pages]; zeros for padding."""
        return _select(self.pages, batch)

    def lengths_of(self, batch: Batch) -> list[int]:
        """Tokens before this step, 0 for padding."""
        return [0 if request == PADDING else self.lengths[request] for request in batch.requests]

    def offer(self, batch: Batch) -> None:
        """Notes that a decode step has left a state behind each of its tokens."""
        self.candidates.update(_live(batch, batch.counts))

    def commit(self, batch: Batch, accepted: Sequence[int]) -> None:
        """Keeps the first `accepted[i]` tokens of the last decode step for each request of `batch`.

        Raises UserError, and changes nothing, unless each is 0 to the tokens of that step: other slots hold states of
        other steps. What is said of padding is ignored.
        """
        if len(accepted) != len(batch.requests):
            raise UserError(f"{len(accepted)} accepted counts for {len(batch.requests)} requests", "give one for each")
        for request, kept in _live(batch, accepted).items():
            offered = self.candidates.get(request, 0)
            if not 0 <= kept <= offered:
                raise UserError(
                    f"request {request}: {kept} tokens accepted of {offered}",
                    f"accept 0 to {offered}, once for each decode step",
                )
        for request, kept in _live(batch, accepted).items():
            self.slots[request, [0, kept]] = self.slots[request, [kept, 0]]
            self.lengths[request] += kept
            self.candidates.pop(request, None)

    def extend(self, batch: Batch) -> None:
        """Counts the tokens of a prefill, which moved the committed state itself."""
        for request, count in _live(batch, batch.counts).items():
            self.lengths[request] += count
            self.candidates.pop(request, None)


def _live(batch: Batch, values: Sequence[int]) -> dict[int, int]:
    return {request: value for request, value in zip(batch.requests, values, strict=True) if request != PADDING}


def _select(table: Tensor, batch: Batch) -> Tensor:
    # Indexing with PADDING would return the last row of the table: a live request.
    requests = torch.tensor(batch.requests, device=table.device)
    return torch.where((requests == PADDING)[:, None], 0, table[requests.clamp(min=0)])
