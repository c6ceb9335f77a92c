"""What a rank does with partial sums once they lie in its memory: sum over ranks, residual, norm. Rounds as published.

Stands in for the all-reduce of an engine, whose transport is no part of an op: the buffers are given.
"""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _sum_residual_kernel(
    own,  # [rows, width] bf16
    peers,  # [ranks, rows, width] bf16
    residual,  # [rows, width] bf16
    out,  # [rows, width] bf16
    width,
    peer_stride,
    peer_row_stride,
    residual_stride,
    ranks: tl.constexpr,
    has_residual: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * block + tl.arange(0, block)
    valid = column < width
    total = tl.load(own + row * width + column, valid, 0).to(tl.float32)
    for rank in tl.static_range(ranks):
        total += tl.load(peers + rank * peer_stride + row * peer_row_stride + column, valid, 0).to(tl.float32)
    stream = total.to(tl.bfloat16)
    if has_residual:
        before = tl.load(residual + row * residual_stride + column, valid, 0).to(tl.float32)
        stream = (stream.to(tl.float32) + before).to(tl.bfloat16)
    tl.store(out + row * width + column, stream, valid)


def sum_residual(own: Tensor, peers: Tensor, residual: Tensor | None, out: Tensor) -> None:
    """out [rows, d] = residual + sum of `own` [rows, d] and `peers` [ranks - 1, rows, d]; all bf16."""
    rows, width = own.shape
    # A group of one has no peers, and their tensor no strides worth reading.
    _sum_residual_kernel[(triton.cdiv(width, _BLOCK), rows)](
        own,
        peers,
        own if residual is None else residual,
        out,
        width,
        peers.stride(0),
        peers.stride(1),
        0 if residual is None else residual.stride(0),
        len(peers),
        residual is not None,
        _BLOCK,
        num_warps=4,
    )


@triton.jit
def _sum_norm_kernel(
    parts,  # [ranks, rows, width] bf16
    weight,  # [width] bf16
    out,  # [rows, width] bf16
    rank_stride,
    row_stride,
    eps,
    width: tl.constexpr,
    padded: tl.constexpr,
    ranks: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, padded)
    valid = column < width
    total = tl.zeros([padded], tl.float32)
    for rank in tl.static_range(ranks):
        total += tl.load(parts + rank * rank_stride + row * row_stride + column, valid, 0).to(tl.float32)
    total = total.to(tl.bfloat16).to(tl.float32)
    normed = (total * tl.rsqrt(tl.sum(total * total) / width + eps)).to(tl.bfloat16).to(tl.float32)
    normed *= tl.load(weight + column, valid, 0).to(tl.float32)
    tl.store(out + row * width + column, normed.to(tl.bfloat16), valid)


def sum_norm(parts: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """out [rows, width] = RMSNorm of the sum of `parts` [ranks, rows, width]; all bf16."""
    ranks, rows, width = parts.shape
    _sum_norm_kernel[(rows,)](
        parts,
        weight,
        out,
        parts.stride(0),
        parts.stride(1),
        eps,
        width,
        triton.next_power_of_2(width),
        ranks,
        num_warps=8,
    )


@triton.jit
def _sum_add_kernel(
    product,  # [rows, width] bf16
    parts,  # [ranks, rows, width] bf16
    residual,  # [rows, width] bf16
    out,  # [rows, width] bf16
    width,
    rank_stride,
    row_stride,
    residual_stride,
    ranks: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * block + tl.arange(0, block)
    valid = column < width
    total = tl.zeros([block], tl.float32)
    for rank in tl.static_range(ranks):
        total += tl.load(parts + rank * rank_stride + row * row_stride + column, valid, 0).to(tl.float32)
    total = total.to(tl.bfloat16).to(tl.float32)
    total = (total + tl.load(product + row * width + column, valid, 0).to(tl.float32)).to(tl.bfloat16).to(tl.float32)
    total += tl.load(residual + row * residual_stride + column, valid, 0).to(tl.float32)
    tl.store(out + row * width + column, total.to(tl.bfloat16), valid)


def sum_add(product: Tensor, parts: Tensor, residual: Tensor, out: Tensor) -> None:
    """out [rows, c] = residual + (product + sum of `parts` [ranks, rows, c]); all bf16."""
    ranks, rows, width = parts.shape
    _sum_add_kernel[(triton.cdiv(width, _BLOCK), rows)](
        product,
        parts,
        residual,
        out,
        width,
        parts.stride(0),
        parts.stride(1),
        residual.stride(0),
        ranks,
        _BLOCK,
        num_warps=4,
    )
