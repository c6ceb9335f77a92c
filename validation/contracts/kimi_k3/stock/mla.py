"""Absorbed MLA of one rank in decode over a paged latent cache: cuBLAS products, Triton between them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..architecture import Architecture
from ..layer_weights import MlaWeights
from ..step.state import LatentCache
from . import pointwise
from .mla_core import Paging, attend
from .step import Tables


@triton.jit
def _norm_insert_kernel(
    projected,  # [rows, W] bf16: q_a | kv_a | shared key | ...
    q_norm,  # [q_rank] bf16
    kv_norm,  # [latent] bf16
    query,  # [rows, q_rank] bf16
    cache,  # [pages, page_size, latent + shared] bf16, dense pages, page stride page_stride
    pages,  # [requests, .] int64, row stride pages_stride
    lengths,  # single: with this step's token; else before this step
    starts,  # single: not read, like request_of
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
    single: tl.constexpr,
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
        if single:
            request = row
            position = tl.load(lengths + row) - 1
        else:
            request = tl.load(request_of + row)
            position = tl.load(lengths + request) + row - tl.load(starts + request)
        seen = position >= 0
        page = tl.load(pages + request * pages_stride + position // page_size, seen, 0).to(tl.int64)
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
def _concat_kernel(
    queries,  # [rows, heads, nope + shared] bf16
    query,  # [rows, heads, latent + shared] bf16: gets the shared part; zeros, all of it, where `lengths` is 0
    lengths,
    nope,
    heads,
    latent: tl.constexpr,
    shared: tl.constexpr,
    padded: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    at = row.to(tl.int64) * heads + head
    live = tl.load(lengths + row) > 0
    column = tl.arange(0, padded)
    shares = (column >= latent) & (column < latent + shared)
    value = tl.load(queries + at * (nope + shared) + nope + column - latent, shares & live, 0)
    tl.store(query + at * (latent + shared) + column, value, shares | ((column < latent) & (not live)))


class Mla:
    """An MLA layer of one rank: normed input [rows, d] bf16 to a partial sum [rows, d] bf16; writes latent rows.

    Padding gives zeros and touches no page.
    """

    def __init__(self, architecture: Architecture, tp: int) -> None:
        self._sizes = architecture.mla
        self._heads = architecture.mla.heads // tp
        self._eps = architecture.eps
        self.processors = torch.cuda.get_device_properties().multi_processor_count

    def __call__(self, x: Tensor, weights: MlaWeights, cache: LatentCache, tables: Tables) -> Tensor:
        sizes, heads = self._sizes, self._heads
        projected = torch.mm(x, weights.qkv_a_g.T)
        paging = Paging(tables.pages, tables.lengths, tables.starts, tables.width)
        up_key, up_value = weights.kv_b.view(heads, -1, sizes.kv_lora_rank).split(
            [sizes.qk_nope_head_dim, sizes.v_head_dim], 1
        )
        low = self.norm_insert(projected, weights.q_a_norm, weights.kv_a_norm, cache.rows, paging, tables.request_of)
        absorbed, unrotated = self.query(low, weights.q_b, up_key)
        context = absorbed.new_empty(absorbed.shape)
        attend(absorbed, unrotated, cache.rows, paging, sizes, context, self.processors)
        gated = self.value(context, projected, up_value, live=tables.live)
        return torch.mm(gated, weights.o_proj.T)

    def query(self, low: Tensor, q_b: Tensor, up_key: Tensor) -> tuple[Tensor, Tensor]:
        """absorbed [rows, h, latent] and unrotated [rows, h, shared] from the normed low rank: two products."""
        queries = torch.mm(low, q_b.T).view(len(low), self._heads, -1)
        nope, unrotated = queries.split([self._sizes.qk_nope_head_dim, self._sizes.qk_rope_head_dim], 2)
        return torch.bmm(nope.transpose(0, 1), up_key).transpose(0, 1), unrotated

    def joined_query(self, low: Tensor, q_b: Tensor, up_key: Tensor, lengths: Tensor, out: Tensor) -> None:
        """absorbed | unrotated, [rows, h, latent + shared], in one tensor; zeros where `lengths` [rows] is 0."""
        sizes, heads = self._sizes, self._heads
        queries = torch.mm(low, q_b.T).view(len(low), heads, -1)
        absorbed = out[..., : sizes.kv_lora_rank].transpose(0, 1)
        torch.bmm(queries[..., : sizes.qk_nope_head_dim].transpose(0, 1), up_key, out=absorbed)
        _concat_kernel[(len(low), heads)](
            queries,
            out,
            lengths,
            sizes.qk_nope_head_dim,
            heads,
            sizes.kv_lora_rank,
            sizes.qk_rope_head_dim,
            triton.next_power_of_2(out.shape[2]),
            num_warps=1,
        )

    def value(
        self,
        context: Tensor,
        projected: Tensor,
        up_value: Tensor,
        *,
        live: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Values of `context` [rows, h, latent] times the gate in the last columns of `projected`, [rows, h v]."""
        value = torch.bmm(context.transpose(0, 1), up_value.transpose(1, 2))
        gate = projected[:, -self._heads * self._sizes.v_head_dim :]
        return pointwise.gate(value, gate, live, out)

    def norm_insert(
        self,
        projected: Tensor,
        q_a_norm: Tensor,
        kv_a_norm: Tensor,
        rows: Tensor,
        paging: Paging,
        request_of: Tensor | None = None,
    ) -> Tensor:
        """The normed low rank of the queries, [rows, q_rank]; puts each token's latent row into the cache `rows`."""
        sizes, single = self._sizes, paging.starts is None
        query = projected.new_empty(len(projected), sizes.q_lora_rank)
        _norm_insert_kernel[(len(projected), 2)](
            projected,
            q_a_norm,
            kv_a_norm,
            query,
            rows,
            paging.pages,
            paging.lengths,
            paging.lengths if single else paging.starts,
            paging.lengths if single else request_of,
            projected.stride(0),
            rows.stride(0),
            paging.pages.stride(0),
            rows.shape[1],
            self._eps.mla_q_a,
            self._eps.mla_kv_a,
            sizes.q_lora_rank,
            sizes.kv_lora_rank,
            sizes.qk_rope_head_dim,
            triton.next_power_of_2(sizes.q_lora_rank),
            triton.next_power_of_2(sizes.kv_lora_rank),
            triton.next_power_of_2(sizes.qk_rope_head_dim),
            single,
            num_warps=4,
        )
        return query
