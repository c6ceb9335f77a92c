"""Row-parallel products that feed the residual stream: what a rank sends, and the stream after everyone's share.

The shares of the other ranks and the residual do not depend on the product, so they are asked for before it and arrive
while the weight streams in. This rank's own share enters the sum unrounded, which is closer to the exact sum than the
published rounding and needs no second pass.
"""

import triton
import triton.language as tl

from . import linear
from .linear import columns_of, product, rows_of

HIDDEN = 7168


def scratch(axes, config):
    """Partial sums where K is split."""
    return linear.scratch(axes["rows"], HIDDEN, config)


def launch(buffers, axes, config):
    """Enqueues one launch, or two where K is split. The weight is `packed` by linear.pack."""
    peers = buffers.peers
    residual = None if axes["restart"] else buffers.residual
    strides = (peers.stride(0) // 8, peers.stride(1) // 8, 0 if residual is None else residual.stride(0) // 8)
    arguments = (peers, residual, buffers.partial, buffers.stream, *strides)
    sums = buffers.sums if config["splits"] > 1 else None
    linear.enqueue(
        _project, buffers.x, buffers.packed, sums, arguments, axes["rows"], HIDDEN, axes["k"], config,
        PEERS=axes["tp"] - 1, RESTART=bool(axes["restart"]),
    )  # fmt: skip


@triton.jit(do_not_specialize=["peer_stride", "peer_row_stride", "residual_stride", "x_stride", "rows"])
def _project(
    x, weight, sums, peers, residual, partial, stream, peer_stride, peer_row_stride, residual_stride, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr, PEERS: tl.constexpr, RESTART: tl.constexpr, N_PADDED: tl.constexpr = 0,
):  # fmt: skip
    """One tile of the product: its own share and the stream."""
    n, row = columns_of(BN), rows_of(R)
    live = (n < N) & (row < rows)
    # As many ranks at once as keep a tile small: 32 values a lane of four warps.
    TOGETHER: tl.constexpr = max(1, min(16, 4096 // (BN * R)))
    others = tl.zeros([BN, R], dtype=tl.float32)
    shares = peers + row * peer_row_stride * 8 + n
    for first in tl.static_range(0, PEERS, TOGETHER):
        rank = first + tl.arange(0, TOGETHER)[:, None, None]
        given = tl.load(shares[None, :, :] + rank * peer_stride * 8, mask=(rank < PEERS) & live[None, :, :], other=0.0)
        others += tl.sum(given.to(tl.float32), axis=0)
    if not RESTART:
        others += tl.load(residual + row * residual_stride * 8 + n, mask=live, other=0.0).to(tl.float32)
    own = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, N_PADDED, FORM)
    tl.store(partial + row * N + n, own.to(tl.bfloat16), mask=live)
    tl.store(stream + row * N + n, (own + others).to(tl.bfloat16), mask=live)
