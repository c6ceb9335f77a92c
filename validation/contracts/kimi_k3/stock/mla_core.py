"""The core of absorbed MLA over a paged latent cache: own Triton split-KV attention, and the merge of its splits.

All heads and tokens of a request share each latent row that is read, the row being key and value at once. Tiles of queries
that are too many for one are neighbours in the order of programs, so that the rows come from memory once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..architecture import Mla as Sizes

_TILES = (16, 32)
"""Queries (tokens of a request times heads) of a tile: accumulators of more do not fit in registers"""
_MERGED_COLUMNS = 64


@dataclass(frozen=True)
class Tactic:
    """How the attention kernel is cut. A latent row is 1152 bytes, and `block * stages` of them are in flight."""

    block: int
    """Latent rows of a tile"""
    stages: int
    warps: int
    resident: int
    """Blocks on a multiprocessor, which decides how often a request's rows are split"""


TACTICS = {16: Tactic(32, 2, 4, 3), 32: Tactic(32, 2, 8, 2)}
"""By the queries of a tile. Tiles of 64 rows, which Triton maps to wgmma, gain up to a tenth where a multiprocessor has
some hundreds of rows, and do not sit the exam on an H200 with Triton 3.6 (TP16, pages drawn): they stay out"""


@dataclass(frozen=True)
class Paging:
    """Where the cached rows of each request lie, and which rows of the batch are its own."""

    pages: Tensor
    """[requests, .] int: any row stride; without `starts`, [rows, .], alike for rows of a request"""
    lengths: Tensor
    """[requests] int32: tokens before this step; without `starts`, [rows]: tokens that a row sees, none if it is padding"""
    starts: Tensor | None = None
    """[requests + 1] int32: the first row of each request. None: each has `width` of them, live ones first"""
    width: int = 1
    """The most rows of a request"""

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self.pages) // (self.width if self.starts is None else 1)


@triton.jit
def _attend_kernel(
    absorbed,  # [rows, heads, latent] bf16, any strides of rows and heads
    unrotated,  # [rows, heads, shared] bf16, any strides of rows and heads
    cache,  # [pages, page_size, latent + shared] bf16
    pages,
    lengths,  # with `each`: [rows], what a row sees; else [requests], before this step
    starts,  # [requests + 1] int32; not read with `each`
    context,  # [splits, rows, heads, latent] float32: the split's softmax average
    logsumexp,  # [splits, rows, heads] float32, base 2; -inf for an empty split
    rows,
    absorbed_row_stride,
    absorbed_head_stride,
    unrotated_row_stride,
    unrotated_head_stride,
    page_stride,
    pages_stride,
    page_size,
    scale,  # softmax scale times log2(e)
    heads: tl.constexpr,
    latent: tl.constexpr,
    shared: tl.constexpr,
    latent_padded: tl.constexpr,
    shared_padded: tl.constexpr,
    tile: tl.constexpr,  # queries of a program, each a token of the request and a head
    block: tl.constexpr,
    whole: tl.constexpr,  # a block of tokens lies in one page
    each: tl.constexpr,  # rows of every request; 0: see `starts`
):
    request, split, splits = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    index = tl.program_id(0) * tile + tl.arange(0, tile)
    token, head = index // heads, index % heads
    if each > 0:
        start, count = request * each, each
    else:
        start = tl.load(starts + request)
        count = tl.load(starts + request + 1) - start
    exists = token < count
    # Tokens that each query sees, and the most of them.
    if each == 1:
        length = tl.load(lengths + request)
        limit = length + token
    elif each > 1:
        limit = tl.load(lengths + start + token, exists, 0)
        length = tl.max(limit)
    else:
        before = tl.load(lengths + request)
        length = before + count
        limit = before + token + 1
    table = start if each > 0 else request
    share = tl.cdiv(tl.cdiv(length, splits), block) * block
    begin, end = split * share, tl.minimum((split + 1) * share, length)

    row, head = (start + token).to(tl.int64), head.to(tl.int64)
    c, s = tl.arange(0, latent_padded), tl.arange(0, shared_padded)
    # Columns are a request's queries, so that the tokens' side fills the tensor cores and stays in shared memory.
    q = tl.load(
        absorbed + (row * absorbed_row_stride + head * absorbed_head_stride)[None, :] + c[:, None],
        exists[None, :] & (c < latent)[:, None],
        0,
    )
    q_shared = tl.load(
        unrotated + (row * unrotated_row_stride + head * unrotated_head_stride)[None, :] + s[:, None],
        exists[None, :] & (s < shared)[:, None],
        0,
    )
    largest = tl.full([tile], float("-inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    average = tl.zeros([latent_padded, tile], tl.float32)
    for at in tl.range(begin, end, block):
        position = at + tl.arange(0, block)
        inside = position < end
        if whole:
            page = tl.load(pages + table * pages_stride + at // page_size).to(tl.int64)
            source = cache + page * page_stride + (at % page_size + tl.arange(0, block)) * (latent + shared)
        else:
            page = tl.load(pages + table * pages_stride + position // page_size, inside, 0).to(tl.int64)
            source = cache + page * page_stride + (position % page_size) * (latent + shared)
        key = tl.load(source[:, None] + c[None, :], inside[:, None] & (c < latent)[None, :], 0)
        key_shared = tl.load(source[:, None] + latent + s[None, :], inside[:, None] & (s < shared)[None, :], 0)
        scores = tl.dot(key, q)
        scores = tl.dot(key_shared, q_shared, scores) * scale
        visible = inside[:, None] & (position[:, None] < limit[None, :])
        scores = tl.where(visible, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 0))
        # A query that has seen nothing yet has no maximum to subtract.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        keep, weights = tl.exp2(largest - base), tl.exp2(scores - base[None, :])
        total = total * keep + tl.sum(weights, 0)
        average = tl.dot(tl.trans(key), weights.to(tl.bfloat16), average * keep[None, :])
        largest = larger
    seen = total > 0
    average = average / tl.where(seen, total, 1.0)[None, :]
    place = (split * rows + row) * heads + head
    tl.store(context + place[None, :] * latent + c[:, None], average, exists[None, :] & (c < latent)[:, None])
    tl.store(logsumexp + place, tl.where(seen, largest + tl.log2(tl.where(seen, total, 1.0)), float("-inf")), exists)


@triton.jit
def _merge_kernel(
    context,
    logsumexp,
    out,  # [rows, heads, latent] bf16
    rows,
    splits,
    heads: tl.constexpr,
    latent: tl.constexpr,
    columns: tl.constexpr,
    splits_padded: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split = tl.arange(0, splits_padded)
    each = tl.load(logsumexp + (split * rows + row) * heads + head, split < splits, float("-inf"))
    largest = tl.max(each)
    # A row that sees nothing gets zeros.
    weights = tl.exp2(each - tl.where(largest == float("-inf"), 0.0, largest))
    weights /= tl.maximum(tl.sum(weights), 1e-30)
    c = tl.program_id(2) * columns + tl.arange(0, columns)
    parts = tl.load(
        context + ((split * rows + row) * heads + head)[:, None] * latent + c[None, :],
        (split < splits)[:, None] & (c < latent)[None, :],
        0,
    )
    merged = tl.sum(parts * weights[:, None], 0)
    tl.store(out + (row * heads + head) * latent + c, merged.to(tl.bfloat16), c < latent)


def attend(
    absorbed: Tensor,
    unrotated: Tensor,
    cache: Tensor,
    paging: Paging,
    sizes: Sizes,
    out: Tensor,
    processors: int,
    tactic: Tactic | None = None,
) -> None:
    """softmax(q . row) row over each request's latent rows, into `out` [rows, h, latent] bf16: two launches.

    absorbed [rows, h, latent] and unrotated [rows, h, shared] bf16, dense in their last axis; cache [pages, page size,
    latent + shared] bf16. `processors`: multiprocessors of the card. `tactic` is chosen by size unless given.
    """
    rows, heads, latent = absorbed.shape
    requests, page_size, queries = paging.requests, cache.shape[1], paging.width * heads
    tile = min(_TILES[-1], max(_TILES[0], triton.next_power_of_2(queries)))
    tiles, tokens = triton.cdiv(queries, tile), paging.pages.shape[1] * page_size
    tactic = tactic or TACTICS[tile]
    # Enough to fill the card, none smaller than a block of tokens.
    splits = min(tactic.resident * processors // (requests * tiles), triton.cdiv(tokens, tactic.block))
    splits = max(1, splits)
    context = absorbed.new_empty(splits, rows, heads, latent, dtype=torch.float32)
    logsumexp = absorbed.new_empty(splits, rows, heads, dtype=torch.float32)
    shared = unrotated.shape[2]
    alike = paging.starts is None
    _attend_kernel[(tiles, requests, splits)](
        absorbed,
        unrotated,
        cache,
        paging.pages,
        paging.lengths,
        paging.lengths if alike else paging.starts,
        context,
        logsumexp,
        rows,
        *absorbed.stride()[:2],
        *unrotated.stride()[:2],
        cache.stride(0),
        paging.pages.stride(0),
        page_size,
        (sizes.qk_nope_head_dim + sizes.qk_rope_head_dim) ** -0.5 * 1.4426950408889634,
        heads,
        latent,
        shared,
        triton.next_power_of_2(latent),
        triton.next_power_of_2(shared),
        tile,
        tactic.block,
        page_size % tactic.block == 0,
        paging.width if alike else 0,
        num_warps=tactic.warps,
        num_stages=tactic.stages,
    )
    _merge_kernel[(rows, heads, triton.cdiv(latent, _MERGED_COLUMNS))](
        context,
        logsumexp,
        out,
        rows,
        splits,
        heads,
        latent,
        _MERGED_COLUMNS,
        triton.next_power_of_2(splits),
        num_warps=4,
    )
