"""Absorbed MLA of one rank in decode over a paged latent cache: cuBLAS products around own Triton split-KV attention.

All heads of a request share each latent row that is read, the row being key and value at once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..architecture import Architecture
from ..layer_weights import MlaWeights
from ..step.state import LatentCache
from . import pointwise
from .step import Tables

_BLOCK_TOKENS = 32
"""Latent rows of a tile: 37 KB, two of which are in shared memory"""
_STAGES = 2
_TILES = (16, 32)
"""Queries (tokens of a request times heads) of a tile: accumulators of more do not fit in registers"""
_WARPS = {16: 4, 32: 8}
_RESIDENT = {16: 3, 32: 2}
"""Blocks of the attention kernel on a multiprocessor, by tile"""
_MERGED_COLUMNS = 64


@triton.jit
def _norm_insert_kernel(
    projected,  # [rows, W] bf16: q_a | kv_a | shared key | ...
    q_norm,  # [q_rank] bf16
    kv_norm,  # [latent] bf16
    query,  # [rows, q_rank] bf16
    cache,  # [pages, page_size, latent + shared] bf16, dense pages, page stride page_stride
    pages,  # [requests, .] int64, row stride pages_stride
    lengths,
    starts,
    request_of,
    projected_stride,
    page_stride,
    pages_stride,
    page_size,
    q_eps,
    kv_eps,
    q_rank: tl.constexpr,
    latent: tl.constexpr,
    shared: tl.constexpr,
    q_padded: tl.constexpr,
    latent_padded: tl.constexpr,
    shared_padded: tl.constexpr,
):
    row = tl.program_id(0)
    source = projected + row.to(tl.int64) * projected_stride
    if tl.program_id(1) == 0:
        q_column = tl.arange(0, q_padded)
        q_valid = q_column < q_rank
        q = tl.load(source + q_column, q_valid, 0).to(tl.float32)
        q = (q * tl.rsqrt(tl.sum(q * q) / q_rank + q_eps)).to(tl.bfloat16).to(tl.float32)
        q *= tl.load(q_norm + q_column, q_valid, 0).to(tl.float32)
        tl.store(query + row.to(tl.int64) * q_rank + q_column, q.to(tl.bfloat16), q_valid)
    else:
        request = tl.load(request_of + row)
        position = tl.load(lengths + request) + row - tl.load(starts + request)
        page = tl.load(pages + request * pages_stride + position // page_size)
        target = cache + page * page_stride + (position % page_size) * (latent + shared)
        column = tl.arange(0, latent_padded)
        valid = column < latent
        value = tl.load(source + q_rank + column, valid, 0).to(tl.float32)
        value = (value * tl.rsqrt(tl.sum(value * value) / latent + kv_eps)).to(tl.bfloat16).to(tl.float32)
        value *= tl.load(kv_norm + column, valid, 0).to(tl.float32)
        key_column = tl.arange(0, shared_padded)
        key_valid = key_column < shared
        shared_key = tl.load(source + q_rank + latent + key_column, key_valid, 0)
        if page > 0:
            tl.store(target + column, value.to(tl.bfloat16), valid)
            tl.store(target + latent + key_column, shared_key, key_valid)


@triton.jit
def _attend_kernel(
    absorbed,  # [heads, rows, latent] bf16
    queries,  # [rows, heads, nope + shared] bf16
    cache,  # [pages, page_size, latent + shared] bf16
    pages,
    lengths,
    starts,
    context,  # [splits, rows, heads, latent] float32: the split's softmax average
    logsumexp,  # [splits, rows, heads] float32, base 2; -inf for an empty split
    rows,
    page_stride,
    pages_stride,
    page_size,
    scale,  # softmax scale times log2(e)
    heads: tl.constexpr,
    nope: tl.constexpr,
    latent: tl.constexpr,
    shared: tl.constexpr,
    latent_padded: tl.constexpr,
    shared_padded: tl.constexpr,
    tile: tl.constexpr,  # queries of a program, each a token of the request and a head
    block: tl.constexpr,
    whole: tl.constexpr,  # a block of tokens lies in one page
):
    request, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    start = tl.load(starts + request)
    count = tl.load(starts + request + 1) - start
    before = tl.load(lengths + request)
    length = before + count
    share = tl.cdiv(tl.cdiv(length, splits), block) * block
    begin, end = split * share, tl.minimum((split + 1) * share, length)

    index = tl.program_id(2) * tile + tl.arange(0, tile)
    token, head = index // heads, index % heads
    exists = token < count
    row = (start + token).to(tl.int64)
    c, s = tl.arange(0, latent_padded), tl.arange(0, shared_padded)
    # Columns are a request's queries, so that the tokens' side fills the tensor cores and stays in shared memory.
    q = tl.load(
        absorbed + (head * rows + row)[None, :] * latent + c[:, None], exists[None, :] & (c < latent)[:, None], 0
    )
    q_shared = tl.load(
        queries + ((row * heads + head) * (nope + shared) + nope)[None, :] + s[:, None],
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
            page = tl.load(pages + request * pages_stride + at // page_size)
            source = cache + page * page_stride + (at % page_size + tl.arange(0, block)) * (latent + shared)
        else:
            page = tl.load(pages + request * pages_stride + position // page_size, inside, 0)
            source = cache + page * page_stride + (position % page_size) * (latent + shared)
        key = tl.load(source[:, None] + c[None, :], inside[:, None] & (c < latent)[None, :], 0)
        key_shared = tl.load(source[:, None] + latent + s[None, :], inside[:, None] & (s < shared)[None, :], 0)
        scores = tl.dot(key, q)
        scores = tl.dot(key_shared, q_shared, scores) * scale
        visible = inside[:, None] & (position[:, None] <= before + token[None, :])
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
    out,  # [heads, rows, latent] bf16
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
    weights = tl.exp2(each - tl.max(each))
    weights /= tl.sum(weights)
    c = tl.program_id(2) * columns + tl.arange(0, columns)
    parts = tl.load(
        context + ((split * rows + row) * heads + head)[:, None] * latent + c[None, :],
        (split < splits)[:, None] & (c < latent)[None, :],
        0,
    )
    merged = tl.sum(parts * weights[:, None], 0)
    tl.store(out + (head * rows + row) * latent + c, merged.to(tl.bfloat16), c < latent)


class Mla:
    """An MLA layer of one rank: normed input [rows, d] bf16 to a partial sum [rows, d] bf16; writes latent rows.

    Padding gives zeros and touches no page.
    """

    def __init__(self, architecture: Architecture, tp: int) -> None:
        self._sizes = architecture.mla
        self._heads = architecture.mla.heads // tp
        self._eps = architecture.eps
        self._processors = torch.cuda.get_device_properties().multi_processor_count

    def __call__(self, x: Tensor, weights: MlaWeights, cache: LatentCache, tables: Tables) -> Tensor:
        sizes, heads, rows = self._sizes, self._heads, len(x)
        projected = torch.mm(x, weights.qkv_a_g.T)
        queries = torch.mm(self._norm_insert(projected, weights, cache, tables), weights.q_b.T).view(rows, heads, -1)
        up_key, up_value = weights.kv_b.view(heads, -1, sizes.kv_lora_rank).split(
            [sizes.qk_nope_head_dim, sizes.v_head_dim], 1
        )
        absorbed = torch.bmm(queries[..., : sizes.qk_nope_head_dim].transpose(0, 1), up_key)
        context = self.attend(absorbed, queries, cache, tables)
        value = torch.bmm(context, up_value.transpose(1, 2))
        gate = projected[:, -heads * sizes.v_head_dim :]
        return torch.mm(pointwise.gate(value, gate, tables.live), weights.o_proj.T)

    def attend(self, absorbed: Tensor, queries: Tensor, cache: LatentCache, tables: Tables) -> Tensor:
        """softmax(q . row) row over each request's latent rows: [h, rows, latent] bf16, two launches."""
        sizes, heads, rows = self._sizes, self._heads, queries.shape[0]
        latent, requests = sizes.kv_lora_rank, len(tables.slots)
        page_size = cache.rows.shape[1]
        queries_each = tables.width * heads
        tile = min(_TILES[-1], max(_TILES[0], triton.next_power_of_2(queries_each)))
        tiles = triton.cdiv(queries_each, tile)
        # Enough to fill the card, none smaller than a block of tokens.
        splits = min(
            _RESIDENT[tile] * self._processors // (requests * tiles),
            triton.cdiv(tables.pages.shape[1] * page_size, _BLOCK_TOKENS),
        )
        splits = max(1, splits)
        context = absorbed.new_empty(splits, rows, heads, latent, dtype=torch.float32)
        logsumexp = absorbed.new_empty(splits, rows, heads, dtype=torch.float32)
        _attend_kernel[(requests, splits, tiles)](
            absorbed,
            queries,
            cache.rows,
            tables.pages,
            tables.lengths,
            tables.starts,
            context,
            logsumexp,
            rows,
            cache.rows.stride(0),
            tables.pages.stride(0),
            page_size,
            (sizes.qk_nope_head_dim + sizes.qk_rope_head_dim) ** -0.5 * 1.4426950408889634,
            heads,
            sizes.qk_nope_head_dim,
            latent,
            sizes.qk_rope_head_dim,
            triton.next_power_of_2(latent),
            triton.next_power_of_2(sizes.qk_rope_head_dim),
            tile,
            _BLOCK_TOKENS,
            page_size % _BLOCK_TOKENS == 0,
            num_warps=_WARPS[tile],
            num_stages=_STAGES,
        )
        out = torch.empty_like(absorbed)
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
        return out

    def _norm_insert(self, projected: Tensor, weights: MlaWeights, cache: LatentCache, tables: Tables) -> Tensor:
        sizes = self._sizes
        query = projected.new_empty(len(projected), sizes.q_lora_rank)
        _norm_insert_kernel[(len(projected), 2)](
            projected,
            weights.q_a_norm,
            weights.kv_a_norm,
            query,
            cache.rows,
            tables.pages,
            tables.lengths,
            tables.starts,
            tables.request_of,
            projected.stride(0),
            cache.rows.stride(0),
            tables.pages.stride(0),
            cache.rows.shape[1],
            self._eps.mla_q_a,
            self._eps.mla_kv_a,
            sizes.q_lora_rank,
            sizes.kv_lora_rank,
            sizes.qk_rope_head_dim,
            triton.next_power_of_2(sizes.q_lora_rank),
            triton.next_power_of_2(sizes.kv_lora_rank),
            triton.next_power_of_2(sizes.qk_rope_head_dim),
            num_warps=4,
        )
        return query
