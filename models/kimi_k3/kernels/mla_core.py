"""Attention of all heads of a row over its latent rows in the paged cache, split over programs.

split    One program a (row, slice of its tokens, 16 heads): the heads, padded to 16, share each cached row, which serves
         as key and as value and is read once. Slices follow the row's length, so that whatever it is all programs get as
         much to do. Tensor cores take bfloat16: queries and rows are that already, probabilities are rounded to it before
         they meet the values; scores, the running maximum and all sums are float32.
combine  One program a (row, head): the slices' sums under their common maximum.

A cached row behind the length is never read: it may hold anything. Page numbers times page stride pass 2^31 elements
in real pools, hence the 64-bit page offsets.
"""

import torch
import triton
import triton.language as tl

LATENT = 512
SHARED = 64
# Heads of a program: what a tensor core takes at least. Ranks of TP 8 and more have fewer; those of less read a cached row
# once for every group.
HEADS_TOGETHER = 16
# 192^-0.5, and scores in powers of two: exp2 is the instruction that there is.
SCALE_LOG2 = 192**-0.5 * 1.4426950408889634


def scratch(axes, config):
    """Of each slice: sums [rows, splits, h, 512] under maximum and total [rows, splits, h], fp32."""
    shape = (axes["rows"], config["splits"], axes["heads"])
    return {
        "sums": ((*shape, LATENT), torch.float32),
        "largest": (shape, torch.float32),
        "totals": (shape, torch.float32),
    }


def launch(ctx, buffers, axes, config):
    """Enqueues two launches."""
    rows, heads, splits = axes["rows"], axes["heads"], config["splits"]
    slices = (buffers.sums, buffers.largest, buffers.totals)
    _attend[(splits, rows, triton.cdiv(heads, HEADS_TOGETHER))](
        buffers.query, buffers.page_table, buffers.lengths, buffers.cache, *slices,
        buffers.page_table.stride(0), buffers.cache.stride(0) // 8,
        HEADS=heads, PADDED=HEADS_TOGETHER, PAGE=axes["page_size"], L=LATENT, S=SHARED, SPLITS=splits,
        TOKENS=config["block_tokens"], SCALE=SCALE_LOG2, num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    _combine[(heads, rows)](
        buffers.lengths, *slices, buffers.context, HEADS=heads, L=LATENT, SPLITS=splits, num_warps=4
    )


@triton.jit(do_not_specialize=["table_stride", "page_stride"])
def _attend(
    query, page_table, lengths, cache, sums, largest, totals, table_stride, page_stride,
    HEADS: tl.constexpr, PADDED: tl.constexpr, PAGE: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
    SPLITS: tl.constexpr, TOKENS: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Grid (splits, rows, groups of heads)."""
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    length = tl.load(lengths + row)
    per_slice = tl.cdiv(tl.cdiv(length, SPLITS), TOKENS) * TOKENS
    first = split * per_slice
    last = tl.minimum(first + per_slice, length)
    head = tl.program_id(2) * PADDED + tl.arange(0, PADDED)
    live = head[:, None] < HEADS
    latent = tl.arange(0, L)
    shared = tl.arange(0, S)
    q = query + (row * HEADS + head[:, None]) * (L + S)
    q_latent = tl.load(q + latent[None, :], mask=live, other=0.0)
    q_shared = tl.load(q + L + shared[None, :], mask=live, other=0.0)
    table = page_table + row * table_stride
    top = tl.full([PADDED], float("-inf"), dtype=tl.float32)
    total = tl.zeros([PADDED], dtype=tl.float32)
    acc = tl.zeros([PADDED, L], dtype=tl.float32)
    for start in range(first, last, TOKENS):
        token = start + tl.arange(0, TOKENS)
        seen = token < last
        page = tl.load(table + token // PAGE, mask=seen, other=0).to(tl.int64)
        place = cache + page * page_stride * 8 + token % PAGE * (L + S)
        rows_latent = tl.load(place[:, None] + latent[None, :], mask=seen[:, None], other=0.0)
        rows_shared = tl.load(place[:, None] + L + shared[None, :], mask=seen[:, None], other=0.0)
        scores = tl.dot(q_latent, tl.trans(rows_latent))
        scores = tl.dot(q_shared, tl.trans(rows_shared), scores) * SCALE
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, axis=1))
        kept = tl.exp2(top - new)
        weights = tl.exp2(scores - new[:, None])
        total = total * kept + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(tl.bfloat16), rows_latent, acc * kept[:, None])
        top = new
    place = (row * SPLITS + split) * HEADS + head
    tl.store(largest + place, top, mask=head < HEADS)
    tl.store(totals + place, total, mask=head < HEADS)
    tl.store(sums + place[:, None] * L + latent[None, :], acc, mask=live)


@triton.jit
def _combine(
    lengths, sums, largest, totals, context, HEADS: tl.constexpr, L: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """Grid (heads, rows)."""
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    latent = tl.arange(0, L)
    length = tl.load(lengths + row)
    place = (row * SPLITS + tl.arange(0, SPLITS)) * HEADS + head
    top = tl.load(largest + place)
    total = tl.load(totals + place)
    highest = tl.max(top, axis=0)
    # An empty slice has a maximum of minus infinity, and so a share of zero.
    # Not a plain product: see _dot in kda_decode.py.
    whole = tl.sum(tl.fma(total, tl.exp2(top - highest), 0.0), axis=0)
    # Eight slices at a time: all of them would not fit the registers.
    TOGETHER: tl.constexpr = min(SPLITS, 8)
    value = tl.zeros([L], dtype=tl.float32)
    for first in tl.static_range(0, SPLITS, TOGETHER):
        place = (row * SPLITS + first + tl.arange(0, TOGETHER)) * HEADS + head
        share = tl.exp2(tl.load(largest + place) - highest)
        value += tl.sum(tl.load(sums + place[:, None] * L + latent[None, :]) * share[:, None], axis=0)
    value /= whole
    value = tl.where(length > 0, value, 0.0)
    tl.store(context + (row * HEADS + head) * L + latent, value.to(tl.bfloat16))
