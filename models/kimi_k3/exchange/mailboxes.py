"""The memory of an exchange: one mailbox a rank, addressable by all of them. The kernels' side is mailbox.cuh."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import torch.distributed as dist

HIDDEN = 7168
VALUES = 7
WORDS = HIDDEN // VALUES
WORD_BYTES = 16
SLOTS = 2


class Stopped(RuntimeError):
    """An exchange was given up: a peer did not come, or said that another did not."""


@dataclass(frozen=True)
class Mailbox:
    """What one rank holds, and where all of them lie.

    box      [2, rows, ranks, 1024, 2] int64: this rank's mailbox; a word is 16 bytes. Zeros before the first exchange.
    health   [2] int32: 0, or 1 + the rank that was waited for in vain; 0, or 1 + the peer that gave up.
    counts   [rows] int32: how often each row has been exchanged. Its own memory: no peer looks at it.
    boxes    [ranks] int64: device addresses of every rank's `box`, as seen from here.
    healths  [ranks] int64: the same of `health`.
    """

    rank: int
    ranks: int
    rows: int
    box: torch.Tensor
    health: torch.Tensor
    counts: torch.Tensor
    boxes: torch.Tensor
    healths: torch.Tensor
    owner: object = None
    """What keeps the memory mapped"""

    def check(self) -> None:
        """Raises Stopped where this rank gave up or was told to. Waits for the device: call it behind a step, not in it."""
        waited, told = self.health.tolist()
        if waited:
            raise Stopped(
                f"rank {self.rank} waited for rank {waited - 1} in vain: it is gone, stalled, or replays another batch; "
                "its results of this step are void, restart all ranks"
            )
        if told:
            raise Stopped(f"rank {told - 1} gave up an exchange; results of this step are void, restart all ranks")


def size_bytes(ranks: int, rows: int) -> int:
    """Bytes of one rank's mailbox."""
    return SLOTS * rows * ranks * WORDS * WORD_BYTES


def local(ranks: int, rows: int, device: torch.device | str) -> tuple[Mailbox, ...]:
    """Mailboxes of `ranks` simulated ranks on one device."""
    shape = (SLOTS, rows, ranks, WORDS, WORD_BYTES // 8)
    boxes = [torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(ranks)]
    healths = [torch.zeros(2, dtype=torch.int32, device=device) for _ in range(ranks)]
    tables = [
        torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64, device=device)
        for tensors in (boxes, healths)
    ]
    return tuple(
        Mailbox(
            rank, ranks, rows, boxes[rank], healths[rank], torch.zeros(rows, dtype=torch.int32, device=device), *tables,
            owner=(boxes, healths),
        )
        for rank in range(ranks)
    )  # fmt: skip


def symmetric(rows: int, group: "dist.ProcessGroup") -> Mailbox:
    """This rank's mailbox in memory that all ranks of `group` map (torch symmetric memory; no multicast is used).

    A collective. Raises RuntimeError where the ranks' devices cannot map each other's memory.
    """
    import torch.distributed._symmetric_memory as symm_mem

    ranks, device = group.size(), torch.device("cuda", torch.cuda.current_device())
    size = size_bytes(ranks, rows)
    memory = symm_mem.empty(size // 8 + 2, dtype=torch.int64, device=device)
    memory.zero_()
    handle = symm_mem.rendezvous(memory, group)
    rank, starts = handle.rank, [int(address) for address in handle.buffer_ptrs]
    offset = memory.data_ptr() - starts[rank]
    boxes = torch.tensor([start + offset for start in starts], dtype=torch.int64, device=device)
    handle.barrier()  # every mailbox is empty before anybody stores into one
    return Mailbox(
        rank, ranks, rows, memory[: size // 8].view(SLOTS, rows, ranks, WORDS, WORD_BYTES // 8),
        memory[size // 8 :].view(torch.int32)[:2], torch.zeros(rows, dtype=torch.int32, device=device), boxes, boxes + size,
        owner=(memory, handle),
    )  # fmt: skip
