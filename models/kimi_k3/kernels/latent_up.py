"""The end of a MoE layer: routed sum over ranks, RMSNorm, up-projection, shared sum and residual.

fused  One launch for one or two rows. The norm's factor is one number a row, so it can follow the product: each
       program adds the ranks' rows as it walks K, multiplies them by the norm's weight and the matrix, and sums their
       squares on the way. Every program reads all ranks' rows again, which the cache gives.
tiles, gemv  A first launch leaves the normed row in bfloat16, as the published module does; then the product, see
       linear.py.
"""

import torch
import triton
import triton.language as tl

from . import linear
from .linear import columns_of, product, rows_of

LATENT = 3584
EPS = 1e-5


def scratch(axes, config):
    """normed [rows, L] bf16, and partial sums where K is split; nothing when fused."""
    if config["structure"] == "fused":
        return {}
    sums = linear.scratch(axes["rows"], axes["columns"], config)
    return {"normed": ((axes["rows"], LATENT), torch.bfloat16), **sums}


def prepare(ctx, static, axes, config):
    """packed: latent_up in contiguous tiles."""
    return {"packed": linear.pack(static.latent_up, config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch (`fused`), two, or three where K is split."""
    rows, columns, ranks = axes["rows"], axes["columns"], axes["tp"]
    routed, shared, residual = buffers.routed, buffers.shared, buffers.residual
    # In units of 16 bytes, which the strides are multiples of.
    tail = (shared, residual, buffers.stream, *(s // 8 for s in (*shared.stride()[:2], residual.stride(0))))
    if config["structure"] == "fused":
        grid = (triton.cdiv(columns, config["block_n"]), rows)
        _fused[grid](
            routed, buffers.latent_norm, buffers.packed, *tail, routed.stride(0) // 8, routed.stride(1) // 8,
            N=columns, K=LATENT, BN=config["block_n"], BK=config["block_k"], RANKS=ranks, EPSILON=EPS,
            num_warps=config["num_warps"],
        )  # fmt: skip
        return
    _norm[(rows,)](
        routed, buffers.latent_norm, buffers.normed, routed.stride(0) // 8, routed.stride(1) // 8,
        L=LATENT, RANKS=ranks, EPSILON=EPS, num_warps=8,
    )  # fmt: skip
    sums = buffers.sums if config["splits"] > 1 else None
    linear.enqueue(_up, buffers.normed, buffers.packed, sums, tail, rows, columns, LATENT, config, RANKS=ranks)


@triton.jit(do_not_specialize=["routed_stride", "routed_row_stride"])
def _norm(
    routed, latent_norm, normed, routed_stride, routed_row_stride,
    L: tl.constexpr, RANKS: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Grid (rows): RMSNorm of the sum over ranks."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, triton.next_power_of_2(L))
    inside = channel < L
    weight = tl.load(latent_norm + channel, mask=inside, other=0.0).to(tl.float32)
    share = routed + row * routed_row_stride * 8 + channel
    total = tl.zeros([triton.next_power_of_2(L)], dtype=tl.float32)
    for rank in tl.static_range(RANKS):
        total += tl.load(share + rank * routed_stride * 8, mask=inside, other=0.0).to(tl.float32)
    total = total * tl.rsqrt(tl.sum(total * total) / L + EPSILON) * weight
    tl.store(normed + row * L + channel, total.to(tl.bfloat16), mask=inside)


@triton.jit(
    do_not_specialize=["shared_stride", "shared_row_stride", "residual_stride", "routed_stride", "routed_row_stride"]
)
def _fused(
    routed, latent_norm, weight, shared, residual, stream, shared_stride, shared_row_stride, residual_stride,
    routed_stride, routed_row_stride,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RANKS: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Grid (columns, rows)."""
    TILES: tl.constexpr = (K + BK - 1) // BK
    row = tl.program_id(1) + tl.zeros([1, 1], dtype=tl.int32)
    n = columns_of(BN)
    others = _others(shared, residual, shared_stride, shared_row_stride, residual_stride, n, row, row >= 0, RANKS, N)
    lane = tl.arange(0, BK)[None, :]
    tile = weight + tl.program_id(0).to(tl.int64) * (TILES * BN * BK) + tl.arange(0, BN)[:, None] * BK + lane
    routed += tl.program_id(1) * routed_row_stride * 8
    acc = tl.zeros([BN, BK], dtype=tl.float32)
    squares = tl.zeros([1, BK], dtype=tl.float32)
    for index in tl.static_range(TILES):
        w = tl.load(tile + index * BN * BK, eviction_policy="evict_first").to(tl.float32)
        k = index * BK + lane
        inside = k < K
        total = tl.zeros([1, BK], dtype=tl.float32)
        for rank in tl.static_range(RANKS):
            total += tl.load(routed + rank * routed_stride * 8 + k, mask=inside, other=0.0).to(tl.float32)
        squares += total * total
        acc += w * (total * tl.load(latent_norm + k, mask=inside, other=0.0).to(tl.float32))
    own = tl.sum(acc, axis=1)[:, None] * tl.rsqrt(tl.sum(squares) / K + EPSILON)
    tl.store(stream + row * N + n, (own + others).to(tl.bfloat16), mask=n < N)


@triton.jit(do_not_specialize=["shared_stride", "shared_row_stride", "residual_stride", "x_stride", "rows"])
def _up(
    x, weight, sums, shared, residual, stream, shared_stride, shared_row_stride, residual_stride, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr, RANKS: tl.constexpr, N_PADDED: tl.constexpr = 0,
):  # fmt: skip
    """One tile of the product of the normed rows."""
    n, row = columns_of(BN), rows_of(R)
    live = (n < N) & (row < rows)
    others = _others(shared, residual, shared_stride, shared_row_stride, residual_stride, n, row, live, RANKS, N)
    own = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, N_PADDED, FORM)
    tl.store(stream + row * N + n, (own + others).to(tl.bfloat16), mask=live)


@triton.jit
def _others(
    shared, residual, shared_stride, shared_row_stride, residual_stride, n, row, live,
    RANKS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The shared expert's sum over ranks and the residual, fp32, of columns n and rows `row`."""
    inside = live & (n < N)
    others = tl.load(residual + row * residual_stride * 8 + n, mask=inside, other=0.0).to(tl.float32)
    share = shared + row * shared_row_stride * 8 + n
    for rank in tl.static_range(RANKS):
        others += tl.load(share + rank * shared_stride * 8, mask=inside, other=0.0).to(tl.float32)
    return others
