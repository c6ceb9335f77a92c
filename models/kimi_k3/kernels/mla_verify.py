"""A verify step of MLA: attention of a few tokens of each request over its latent rows in the paged cache.

Read     query [rows, h, 576], the page table of each request's first row, the length of every row, and the cached rows
         that a request's last live token sees. Nothing behind them: it may hold anything.
Written  context [rows, h, 512], every row: zeros where its length is 0.
Rounded  probabilities to bfloat16, before they meet the values, and the context. Scores, maxima and sums: float32.

attend   One program a (tile of queries, slice of the request's cached rows, request). Queries are the heads of all
         tokens of a request, side by side: 96 of eight tokens at TP 8, 48 at TP 16. They share each cached row, which
         serves as key and as value, so that a tile reads it once; a token does not see the rows of those behind it.
         More queries than `block_q`, whose sums fill the registers, are several tiles. They are neighbours in the
         order of programs: what one of them reads, the next ones find in L2, and memory is asked once for the request.
combine  One program a (row, head): as in mla_core.py, which serves steps of one token.

Slices follow what the tile's last token sees, so that whatever it is all programs get as much to do. In a slice, a
token may see nothing yet. Page numbers times page stride pass 2^31 elements in real pools: 64-bit page offsets.
"""

import torch
import triton
import triton.language as tl

from .mla_core import _combine

LATENT = 512
SHARED = 64
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
    rows, heads, tokens, splits = axes["rows"], axes["heads"], axes["tokens"], config["splits"]
    slices = (buffers.sums, buffers.largest, buffers.totals)
    _attend[(triton.cdiv(tokens * heads, config["block_q"]), splits, rows // tokens)](
        buffers.query, buffers.page_table, buffers.lengths, buffers.cache, *slices,
        buffers.page_table.stride(0), buffers.cache.stride(0) // 8, tokens,
        HEADS=heads, QUERIES=config["block_q"], PAGE=axes["page_size"], L=LATENT, S=SHARED, SPLITS=splits,
        TOGETHER=config["block_tokens"], SCALE=SCALE_LOG2, num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    _combine[(heads, rows)](
        buffers.lengths, *slices, buffers.context, HEADS=heads, L=LATENT, SPLITS=splits, num_warps=4
    )


@triton.jit(do_not_specialize=["table_stride", "page_stride", "tokens"])
def _attend(
    query, page_table, lengths, cache, sums, largest, totals, table_stride, page_stride, tokens,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, PAGE: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
    SPLITS: tl.constexpr, TOGETHER: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of queries, splits, requests)."""
    split = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    index = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    row = request * tokens + index // HEADS
    head = index % HEADS
    inside = index < tokens * HEADS
    length = tl.load(lengths + row, mask=inside, other=0)
    longest = tl.max(length, axis=0)
    per_slice = tl.cdiv(tl.cdiv(longest, SPLITS), TOGETHER) * TOGETHER
    first = split * per_slice
    last = tl.minimum(first + per_slice, longest)
    latent = tl.arange(0, L)
    shared = tl.arange(0, S)
    # Queries of padding may be NaN, and so would be what is computed of them: it is not used.
    q = query + (row[:, None] * HEADS + head[:, None]) * (L + S)
    q_latent = tl.load(q + latent[None, :], mask=inside[:, None], other=0.0)
    q_shared = tl.load(q + L + shared[None, :], mask=inside[:, None], other=0.0)
    table = page_table + request * tokens * table_stride
    top = tl.full([QUERIES], float("-inf"), dtype=tl.float32)
    total = tl.zeros([QUERIES], dtype=tl.float32)
    acc = tl.zeros([QUERIES, L], dtype=tl.float32)
    for start in range(first, last, TOGETHER):
        token = start + tl.arange(0, TOGETHER)
        there = token < last
        page = tl.load(table + token // PAGE, mask=there, other=0).to(tl.int64)
        place = cache + page * page_stride * 8 + token % PAGE * (L + S)
        rows_latent = tl.load(place[:, None] + latent[None, :], mask=there[:, None], other=0.0)
        rows_shared = tl.load(place[:, None] + L + shared[None, :], mask=there[:, None], other=0.0)
        scores = tl.dot(q_latent, tl.trans(rows_latent))
        scores = tl.dot(q_shared, tl.trans(rows_shared), scores) * SCALE
        seen = there[None, :] & (token[None, :] < length[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(top, tl.max(scores, axis=1))
        # A query that has seen nothing yet has no maximum to subtract.
        base = tl.where(new == float("-inf"), 0.0, new)
        kept = tl.exp2(top - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * kept + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(tl.bfloat16), rows_latent, acc * kept[:, None])
        top = new
    place = (row * SPLITS + split) * HEADS + head
    tl.store(largest + place, top, mask=inside)
    tl.store(totals + place, total, mask=inside)
    tl.store(sums + place[:, None] * L + latent[None, :], acc, mask=inside[:, None])
