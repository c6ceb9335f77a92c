"""Queries in the latent space, and the newest row of the paged cache.

Three launches: both norms and the row of the cache; q = q_b RMSNorm(q_a), whose 64 unrotated columns a head are done;
and the absorption of the other 128 into the latent space, head by head. Between them lie the normed query latent and q
in bfloat16, as the published modules leave them. The two products are those of linear.py; the heads' up_key matrices,
transposed and one under the other, are one weight whose every tile belongs to one head.

Padding (length 0) touches no page, and its query is zero whatever its projection holds.
Page numbers times page stride pass 2^31 elements in real pools, hence the 64-bit page offsets.
"""

import torch
import triton
import triton.language as tl

from . import linear
from .linear import columns_of, product, rows_of

Q_RANK = 1536
LATENT = 512
NOPE = 128
ROPE = 64
Q_EPS = 1e-6
KV_EPS = 1e-6


def scratch(axes, config):
    """normed [rows, 1536] and q [rows, h, 128] bf16."""
    rows, heads = axes["rows"], axes["heads"]
    return {"normed": ((rows, Q_RANK), torch.bfloat16), "nope": ((rows, heads * NOPE), torch.bfloat16)}


def prepare(ctx, static, axes, config):
    """packed_q: q_b; packed_key: up_key transposed, [h * 512, 128]; both in contiguous tiles."""
    return {
        "packed_q": linear.pack(static.q_b, config),
        "packed_key": linear.pack(static.up_key.transpose(1, 2).flatten(0, 1), _absorbing(config)),
    }


def launch(ctx, buffers, axes, config):
    """Enqueues three launches."""
    rows, heads, projected, query = axes["rows"], axes["heads"], buffers.projected, buffers.query
    _latents[(rows,)](
        projected, buffers.page_table, buffers.lengths, buffers.q_a_norm, buffers.kv_a_norm,
        buffers.normed, buffers.cache, projected.stride(0) // 8, buffers.page_table.stride(0),
        buffers.cache.stride(0) // 8, PAGE=axes["page_size"], Q=Q_RANK, L=LATENT, S=ROPE,
        Q_EPSILON=Q_EPS, KV_EPSILON=KV_EPS, num_warps=4,
    )  # fmt: skip
    sizes = {"HEADS": heads, "L": LATENT, "NOPE_DIM": NOPE, "S": ROPE}
    columns = heads * (NOPE + ROPE)
    linear.enqueue(
        _queries, buffers.normed, buffers.packed_q, None, (buffers.lengths, buffers.nope, query),
        rows, columns, Q_RANK, {**config, "splits": 1}, **sizes,
    )  # fmt: skip
    linear.enqueue(
        _absorb, buffers.nope, buffers.packed_key, None, (buffers.lengths, query),
        rows, heads * LATENT, NOPE, _absorbing(config), **sizes,
    )  # fmt: skip


def _absorbing(config):
    """As the first product, with a tile as deep as a head."""
    return {**config, "block_k": NOPE, "splits": 1}


@triton.jit(do_not_specialize=["projected_stride", "table_stride", "page_stride"])
def _latents(
    projected, page_table, lengths, q_a_norm, kv_a_norm, normed, cache, projected_stride, table_stride, page_stride,
    PAGE: tl.constexpr, Q: tl.constexpr, L: tl.constexpr, S: tl.constexpr,
    Q_EPSILON: tl.constexpr, KV_EPSILON: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the normed query latent, and the newest row of the cache."""
    row = tl.program_id(0).to(tl.int64)
    wide = tl.arange(0, triton.next_power_of_2(Q))
    inside = wide < Q
    latent = tl.arange(0, L)
    shared = tl.arange(0, S)
    length = tl.load(lengths + row)
    x = projected + row * projected_stride * 8
    q = tl.load(x + wide, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(x + Q + latent).to(tl.float32)
    key = tl.load(x + Q + L + shared)
    weight = tl.load(q_a_norm + wide, mask=inside, other=0.0).to(tl.float32)
    c_weight = tl.load(kv_a_norm + latent).to(tl.float32)
    q = q * tl.rsqrt(tl.sum(q * q) / Q + Q_EPSILON) * weight
    tl.store(normed + row * Q + wide, q.to(tl.bfloat16), mask=inside)
    if length > 0:
        page = tl.load(page_table + row * table_stride + (length - 1) // PAGE).to(tl.int64)
        place = cache + page * page_stride * 8 + (length - 1) % PAGE * (L + S)
        c = c * tl.rsqrt(tl.sum(c * c) / L + KV_EPSILON) * c_weight
        tl.store(place + latent, c.to(tl.bfloat16))
        tl.store(place + L + shared, key)


@triton.jit(do_not_specialize=["x_stride", "rows"])
def _queries(
    x, weight, sums, lengths, nope, query, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr,
    HEADS: tl.constexpr, L: tl.constexpr, NOPE_DIM: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One tile of q: unrotated columns go to the query, the others on to their absorption."""
    n, row = columns_of(BN), rows_of(R)
    inside = row < rows
    live = tl.load(lengths + row, mask=inside, other=0) > 0
    q = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, 0, FORM)
    q = tl.where(live, q, 0.0).to(tl.bfloat16)
    head, part = n // (NOPE_DIM + S), n % (NOPE_DIM + S)
    inside = inside & (n < N)
    tl.store(nope + row * HEADS * NOPE_DIM + head * NOPE_DIM + part, q, mask=inside & (part < NOPE_DIM))
    place = query + (row * HEADS + head) * (L + S) + L + part - NOPE_DIM
    tl.store(place, q, mask=inside & (part >= NOPE_DIM))


@triton.jit(do_not_specialize=["x_stride", "rows"])
def _absorb(
    x, weight, sums, lengths, query, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr,
    HEADS: tl.constexpr, L: tl.constexpr, NOPE_DIM: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One tile of one head's latent query."""
    n, row = columns_of(BN), rows_of(R)
    inside = row < rows
    live = tl.load(lengths + row, mask=inside, other=0) > 0
    value = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, 0, FORM, L)
    value = tl.where(live, value, 0.0).to(tl.bfloat16)
    tl.store(query + (row * HEADS + n // L) * (L + S) + n % L, value, mask=inside)
