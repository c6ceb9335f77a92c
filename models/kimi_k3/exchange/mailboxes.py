"""The memory of an exchange: one mailbox a rank, addressable by all of them. The kernels' side is mailbox.cuh."""

from dataclasses import dataclass

import torch

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


def words_of(ranks: int, rows: int) -> int:
    """64-bit words of one rank's mailbox with its health words behind it."""
    return size_bytes(ranks, rows) // 8 + 2


def mailbox(rank: int, rows: int, memory: torch.Tensor, starts: list[int], owner: object) -> Mailbox:
    """A mailbox in `memory`, [words_of(ranks, rows)] int64 zeros; `starts`: where every rank's lies, as seen from here."""
    ranks = len(starts)
    size = size_bytes(ranks, rows)
    boxes = torch.tensor(starts, dtype=torch.int64, device=memory.device)
    return Mailbox(
        rank, ranks, rows, memory[: size // 8].view(SLOTS, rows, ranks, WORDS, WORD_BYTES // 8),
        memory[size // 8 :].view(torch.int32)[:2], torch.zeros(rows, dtype=torch.int32, device=memory.device),
        boxes, boxes + size, owner=owner,
    )  # fmt: skip


def local(ranks: int, rows: int, device: torch.device | str) -> tuple[Mailbox, ...]:
    """Mailboxes of `ranks` simulated ranks on one device."""
    memories = [torch.zeros(words_of(ranks, rows), dtype=torch.int64, device=device) for _ in range(ranks)]
    starts = [memory.data_ptr() for memory in memories]
    return tuple(mailbox(rank, rows, memory, starts, memories) for rank, memory in enumerate(memories))
