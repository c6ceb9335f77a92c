"""The exchange's launches: one for each thing that ranks hand each other in a step. The kernels' side is exchange.cu.

Every rank must enqueue the same exchanges of the same rows in the same order; one that does not stops all
(`Mailbox.check`). Where several ranks share one GPU, all blocks of a rank have to be able to run at once.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .mailboxes import VALUES, WORDS, Mailbox

FILE = "exchange/exchange.cu"
CLUSTER, THREADS = 8, 128
NORM_EPS = 1e-5
BANKS = 8
PREFETCH_THREADS, PREFETCH_PIECE = 64, 16384


@dataclass(frozen=True)
class Mix:
    """The AttnRes mix behind an exchange, and its norm."""

    banks: Tensor | None
    """[banks, rows, 7168] bf16, columns side by side"""
    res_norm: Tensor
    res_proj: Tensor
    out_norm: Tensor
    """[7168] bf16 each"""
    x: Tensor
    """[rows, 7168] bf16: what the next product reads"""


@dataclass(frozen=True)
class Parcel:
    """Something that each rank sends each: 16- or 32-bit values, columns side by side."""

    sent: Tensor
    """[ranks, rows, width]: what goes to each peer, any strides (0 where all get the same)"""
    received: Tensor
    """[ranks, rows, width]: what came from each rank, in rank order"""
    keeps: bool
    """Whether this rank's own is copied as well, or lies there already"""

    def arguments(self) -> tuple:
        """As the kernel takes them, in 16-bit values."""
        (sent, *given), (received, *taken) = ((t, t.stride(1), t.stride(0)) for t in (self.sent, self.received))
        unit = self.sent.element_size() // 2
        width = self.sent.shape[2] * unit
        return sent, received, width, *(unit * stride for stride in (*given, *taken)), int(self.keeps)

    @property
    def words(self) -> int:
        """Of a row."""
        return -(-self.sent.shape[2] * self.sent.element_size() // 2 // VALUES)


def exchange(
    ctx: Any, box: Mailbox, share: Tensor, residual: Tensor | None, out: Tensor, *, mix: Mix | None = None,
    patience_ns: int | None = None,
) -> None:  # fmt: skip
    """Enqueues out = residual + the sum of all ranks' shares, and the mix behind it, on the current stream.

    share [rows, 7168] bf16: this rank's part, or [rows, 7168 / ranks], its columns: then out is all ranks' columns side by
    side. residual, out [rows, 7168] bf16. Sums are float32 in rank order, rounded once. `patience_ns`: how long a wait may
    last, if not as long as mailbox.cuh says.
    """
    rows, nothing = share.shape[0], ctx.scalar("u64", 0)
    gathers = share.shape[1] < out.shape[1]
    banked: tuple = (nothing, 0, 0, 0, nothing, nothing, nothing, nothing)
    if mix is not None:
        banks = () if mix.banks is None else mix.banks
        if len(banks) > BANKS:
            raise ValueError(f"{len(banks)} banked streams; the kernel mixes {BANKS} at most")
        first = (mix.banks, len(banks), *mix.banks.stride()[:2]) if len(banks) else banked[:4]
        banked = (*first, mix.res_norm, mix.res_proj, mix.out_norm, mix.x)
    constants = {"MIX": 1, "NORM_EPS": NORM_EPS} if mix is not None else {}
    kernel = ctx.cuda(FILE, "exchange", threads=THREADS, constants=constants | _patience(patience_ns))
    kernel[(CLUSTER, rows)](
        share, share.stride(0), nothing if residual is None else residual, 0 if residual is None else residual.stride(0),
        out, *banked, *_ranks(box), int(gathers),
    )  # fmt: skip


def gather(
    ctx: Any, box: Mailbox, first: Parcel, second: Parcel | None = None, *, patience_ns: int | None = None
) -> None:
    """Enqueues one launch that hands over one or two parcels, on the current stream. ValueError for what fits no row."""
    rows, nothing = first.sent.shape[1], ctx.scalar("u64", 0)
    words = first.words + (second.words if second else 0)
    if words > WORDS:
        raise ValueError(f"{words} words a row and rank; a mailbox has {WORDS}: send the parcels one by one")
    none = (nothing, nothing, 0, 0, 0, 0, 0, 0)
    kernel = ctx.cuda(FILE, "gather", threads=THREADS, constants=_patience(patience_ns))
    kernel[(CLUSTER, rows)](*first.arguments(), *(second.arguments() if second else none), *_ranks(box))


def prefetch(ctx: Any, memory: Tensor, most: int) -> None:
    """Enqueues a launch that asks for the first `most` bytes of `memory` (on 16 bytes) to be brought into the L2."""
    size = min(most, memory.nbytes)
    kernel = ctx.cuda(FILE, "prefetch", threads=PREFETCH_THREADS)
    blocks = max(1, -(-size // (PREFETCH_THREADS * PREFETCH_PIECE)))
    kernel[(blocks,)](memory, ctx.scalar("u64", size))


def _ranks(box: Mailbox) -> tuple:
    return box.counts, box.boxes, box.healths, box.rank, box.ranks, box.rows


def _patience(nanoseconds: int | None) -> dict[str, int]:
    return {} if nanoseconds is None else {"PATIENCE_NS": nanoseconds}
