"""Where the rows of one step live: tables on the GPU that a captured step reads anew at each replay."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..step.state import Batch, State


@dataclass(frozen=True)
class Tables:
    """The device side of a batch. Shapes are fixed at capture; contents may change between replays."""

    slots: Tensor
    """[requests, 1 + w] int64: pages of the KDA pools; a request's committed state first, zeros for padding"""
    pages: Tensor
    """[requests, pages] int64: pages of the latent pools, zeros for padding"""
    lengths: Tensor
    """[requests] int32: tokens before this step"""
    starts: Tensor
    """[requests + 1] int32: the first row of each request, and the number of rows"""
    request_of: Tensor
    """[rows] int32"""
    live: Tensor
    """[rows] bool: not padding"""
    unaccepted: Tensor
    """[requests] int32 zeros, which points fla-core at the slot before the first: see `kda`"""
    width: int
    """The most rows of a request"""

    @classmethod
    def of(cls, batch: Batch, state: State, device: torch.device | str) -> "Tables":
        """The tables of `batch` as `state` has them now."""
        counts = torch.tensor(batch.counts, dtype=torch.int32)
        starts = torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32)])
        requests = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(counts)
        slots = state.slots_of(batch).to(device)
        return cls(
            slots=slots,
            pages=state.pages_of(batch).to(device),
            lengths=torch.tensor(state.lengths_of(batch), dtype=torch.int32, device=device),
            starts=starts.to(device),
            request_of=requests.to(device),
            live=(slots[:, 0] > 0)[requests.to(device).long()],
            unaccepted=torch.zeros(len(counts), dtype=torch.int32, device=device),
            width=max(batch.counts),
        )

    def refill(self, batch: Batch, state: State) -> None:
        """Takes over what `state` has of a batch of the same shape; captured steps see it at their next replay."""
        fresh = Tables.of(batch, state, self.slots.device)
        for name in ("slots", "pages", "lengths", "starts", "request_of", "live"):
            getattr(self, name).copy_(getattr(fresh, name))
