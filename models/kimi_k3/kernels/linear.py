"""Products x W^T with a weight that is read once a step: what the ops with a dense weight share.

A decode step reads every weight for a handful of rows, so time is bytes over bandwidth plus fill and drain. Weights
never change: `pack` cuts W [N, K] into tiles [block_n, block_k] that lie one behind the other. A program then reads
one unbroken stretch of memory, 16 bytes a lane with neighbouring lanes side by side whatever K is, and N and K need no
masks: zeros fill the last tiles.

gemv   One program a tile of output columns and up to four rows, multiplied on the ordinary cores. block_k = 256 x
       num_warps gives each lane the same eight columns of every weight row, so that an element of x is loaded once a
       lane and never exchanged, and sums cross lanes once, at the end.
tiles  Tensor cores, with the weight as the first operand: its rows fill the instruction's M, and the batch is its N,
       padded to 8. `splits` slices of K go to programs of their own where there are too few columns to fill the
       machine; a second launch adds them in order.

A kernel calls `product` and finishes what it gives, [BN, R] float32 sums of columns n and rows r of the batch. All
three forms (the second launch of `tiles` is the third, "sum") give it tiles of the same meaning, so an op writes its
epilogue once.
"""

import torch
import triton
import triton.language as tl

# Columns that one program of the second launch adds.
SUM_COLUMNS = 16
GEMV_ROWS = 4


def pack(weight, config):
    """[N, K] as contiguous tiles [N / block_n, K / block_k, block_n, block_k], padded with zeros."""
    block_n, block_k = config["block_n"], config["block_k"]
    n, k = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -k % block_k, 0, -n % block_n))
    return padded.view(-1, block_n, padded.shape[1] // block_k, block_k).transpose(1, 2).contiguous()


def scratch(rows, n, config):
    """Partial sums [splits, N padded, rows padded] float32 where K is split, else nothing."""
    if config["splits"] == 1:
        return {}
    columns = triton.cdiv(n, config["block_n"]) * config["block_n"]
    return {"sums": ((config["splits"], columns, padded_rows(rows)), torch.float32)}


def padded_rows(rows):
    """Rows of a tile on tensor cores: a power of two, 8 at least."""
    return max(8, triton.next_power_of_2(rows))


def enqueue(kernel, x, weight, sums, arguments, rows, n, k, config, **constants):
    """Enqueues `kernel` in the form that `config` asks for: x [rows, K], weight packed, sums the scratch or None.

    `kernel` takes (x, weight, sums, *arguments, x_stride, rows), the constants of `product`, and its own.
    """
    block_n, splits = config["block_n"], config["splits"]
    columns = triton.cdiv(n, block_n)
    # In units of 16 bytes, which rows of x are multiples of: the compiler sees alignment without specialising.
    scalars = (x.stride(0) // 8, rows)
    sizes = {"N": n, "K": k, "BK": config["block_k"], "SPLITS": splits, **constants}
    options = {"num_warps": config["num_warps"], "num_stages": config["num_stages"]}
    if config["structure"] == "gemv":
        r = min(GEMV_ROWS, triton.next_power_of_2(rows))
        grid = (columns, triton.cdiv(rows, r))
        kernel[grid](x, weight, None, *arguments, *scalars, FORM="gemv", BN=block_n, R=r, **sizes, **options)
        return
    r = padded_rows(rows)
    if splits == 1:
        kernel[(columns,)](x, weight, None, *arguments, *scalars, FORM="tiles", BN=block_n, R=r, **sizes, **options)
        return
    partial_product[(columns, splits)](
        x, weight, sums, *scalars, K=k, BN=block_n, BK=config["block_k"], R=r, SPLITS=splits,
        PER_HEAD=constants.get("PER_HEAD", 0), **options,
    )  # fmt: skip
    grid = (triton.cdiv(n, SUM_COLUMNS),)
    sizes["N_PADDED"] = columns * block_n
    kernel[grid](None, None, sums, *arguments, *scalars, FORM="sum", BN=SUM_COLUMNS, R=r, **sizes, num_warps=4)


@triton.jit
def product(
    x, weight, sums, x_stride, rows,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr, SPLITS: tl.constexpr,
    N_PADDED: tl.constexpr, FORM: tl.constexpr, PER_HEAD: tl.constexpr = 0,
):  # fmt: skip
    """[BN, R] fp32: columns program_id(0) BN.. of x W^T, for rows program_id(1) R.. of the batch.

    PER_HEAD: so many columns, a multiple of BN, read K elements of x of their own, one head's behind the other's.
    """
    if PER_HEAD > 0 and FORM != "sum":
        x += tl.program_id(0) * BN // PER_HEAD * K
    if FORM == "gemv":
        acc = _gemv(x, weight, x_stride, rows, K, BN, BK, R)
    elif FORM == "tiles":
        acc = _dots(x, weight, x_stride, rows, 0, tl.cdiv(K, BK), K, BN, BK, R)
    else:
        acc = _sum(sums, BN, R, SPLITS, N_PADDED)
    return acc


@triton.jit
def columns_of(BN: tl.constexpr):
    """[BN, 1]: the columns of this program's tile."""
    return tl.program_id(0) * BN + tl.arange(0, BN)[:, None]


@triton.jit
def rows_of(R: tl.constexpr):
    """[1, R]: the rows of the batch of this program's tile."""
    return tl.program_id(1) * R + tl.arange(0, R)[None, :]


@triton.jit
def _gemv(x, weight, x_stride, rows, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr):
    """[BN, R] fp32 for R = 1, 2 or 4 rows: one accumulator a lane, column and row, reduced at the end."""
    TILES: tl.constexpr = (K + BK - 1) // BK
    row = tl.program_id(1) * R
    lane = tl.arange(0, BK)[None, :]
    tile = weight + tl.program_id(0).to(tl.int64) * (TILES * BN * BK) + tl.arange(0, BN)[:, None] * BK + lane
    x += row * x_stride * 8
    a0 = tl.zeros([BN, BK], dtype=tl.float32)
    a1, a2, a3 = a0, a0, a0
    for index in tl.static_range(TILES):
        w = tl.load(tile + index * BN * BK, eviction_policy="evict_first").to(tl.float32)
        k = index * BK + lane
        inside = k < K
        a0 += w * tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        if R > 1:
            a1 += w * tl.load(x + x_stride * 8 + k, mask=inside & (row + 1 < rows), other=0.0).to(tl.float32)
        if R > 2:
            a2 += w * tl.load(x + x_stride * 16 + k, mask=inside & (row + 2 < rows), other=0.0).to(tl.float32)
            a3 += w * tl.load(x + x_stride * 24 + k, mask=inside & (row + 3 < rows), other=0.0).to(tl.float32)
    acc = tl.sum(a0, axis=1)[:, None]
    if R > 1:
        acc = tl.join(tl.sum(a0, axis=1), tl.sum(a1, axis=1))
    if R > 2:
        even, odd = tl.join(tl.sum(a0, axis=1), tl.sum(a2, axis=1)), tl.join(tl.sum(a1, axis=1), tl.sum(a3, axis=1))
        acc = tl.reshape(tl.join(even, odd), [BN, R])
    return acc


@triton.jit
def _dots(x, weight, x_stride, rows, first, last, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr):
    """[BN, R] fp32 for all rows of the batch: tiles `first` to `last` of K, on tensor cores."""
    TILES: tl.constexpr = (K + BK - 1) // BK
    row = tl.arange(0, R)[None, :]
    lane = tl.arange(0, BK)
    tile = weight + tl.program_id(0).to(tl.int64) * (TILES * BN * BK)
    tile += tl.arange(0, BN)[:, None] * BK + lane[None, :]
    x += row * x_stride * 8 + lane[:, None]
    acc = tl.zeros([BN, R], dtype=tl.float32)
    for index in range(first, last):
        w = tl.load(tile + index * BN * BK, eviction_policy="evict_first")
        inside = row < rows
        if K % BK != 0:
            inside = inside & (index * BK + lane[:, None] < K)
        acc = tl.dot(w, tl.load(x + index * BK, mask=inside, other=0.0), acc)
    return acc


@triton.jit(do_not_specialize=["x_stride", "rows"])
def partial_product(
    x, weight, sums, x_stride, rows,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr, SPLITS: tl.constexpr,
    PER_HEAD: tl.constexpr,
):  # fmt: skip
    """Grid (columns, splits): one slice of K of a tile of columns, left in sums [splits, N padded, R]."""
    if PER_HEAD > 0:
        x += tl.program_id(0) * BN // PER_HEAD * K
    TILES: tl.constexpr = (K + BK - 1) // BK
    SLICE: tl.constexpr = (TILES + SPLITS - 1) // SPLITS
    first = tl.program_id(1) * SLICE
    acc = _dots(x, weight, x_stride, rows, first, tl.minimum(first + SLICE, TILES), K, BN, BK, R)
    place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + place * (BN * R) + tl.arange(0, BN)[:, None] * R + tl.arange(0, R)[None, :], acc)


@triton.jit
def _sum(sums, BN: tl.constexpr, R: tl.constexpr, SPLITS: tl.constexpr, N_PADDED: tl.constexpr):
    """[BN, R] fp32: the slices of K, added in order."""
    place = sums + columns_of(BN) * R + tl.arange(0, R)[None, :]
    acc = tl.load(place)
    for split in tl.static_range(1, SPLITS):
        acc += tl.load(place + split * (N_PADDED * R))
    return acc
