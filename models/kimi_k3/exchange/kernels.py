"""The exchange alone, as two launches: `out = residual + sum over ranks`, and the count of it.

A fused path puts the two halves of it into other kernels: shares are published where a product ends and taken where the
next mix begins (mailbox.cuh). This one is for what has no such neighbours, and to measure the exchange by itself.
"""

from typing import Any

from torch import Tensor

from .mailboxes import WORDS, Mailbox

FILE = "exchange/exchange.cu"
SLICES = 8
"""Blocks a row"""


def exchange(ctx: Any, box: Mailbox, share: Tensor, residual: Tensor, out: Tensor) -> None:
    """Enqueues one exchange of `rows` rows on the current stream.

    share [rows, 7168] fp32: this rank's part; residual, out [rows, 7168] bf16, contiguous. Every rank must enqueue the
    same exchanges of the same rows in the same order; one that does not stops all (`Mailbox.check`). All blocks of a rank
    have to be able to run at once where several ranks share one GPU.
    """
    rows = share.shape[0]
    kernel = ctx.cuda(FILE, "exchange", threads=WORDS // SLICES)
    kernel[(rows, SLICES)](
        share, residual, out, box.counts, box.boxes, box.healths, box.rank, box.ranks, box.rows,
    )  # fmt: skip
    ctx.cuda(FILE, "advance", threads=box.rows)[(1,)](box.counts, rows)
