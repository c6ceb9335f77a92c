"""Sixteen MXFP4 experts a row on this rank's channels, their weights read packed and unpacked in registers.

gemv     Up to a few rows, where hardly any two places share an expert. One program a (tile of channels, row's place):
         gate and up of one expert and SiTU; then one program a (tile of outputs, row) walks the row's sixteen places
         in order, so that the weighted sum needs neither scratch nor atomics.
grouped  Above that an expert serves several rows and its weights must be read once: a first launch lists each expert's
         places, one program a (tile, expert) takes them 16 at a time on tensor cores and does nothing for an expert
         that no row chose, and a last launch adds each row's outputs in the order of its places.
resident, spread: one launch of CUDA C++, see experts_cuda.py.

Weights are repacked once: rows of gate and up alternate, so that a channel's two halves meet in one tile, and tiles
[block_n, block_k] of nibbles lie one behind the other as 32-bit words. Inside a tile the words are dealt out like
cards: four that follow one another in memory, the 16 bytes that a lane loads, are a quarter of the tile apart in K. So
each of the four multiplies eight elements of x beside those of the neighbouring lane, and x is loaded 16 bytes a lane
as well. With one warp a program (`gemv`) nothing of this passes through shared memory. E2M1 shifted into place is a
float32 with the smallest exponents, zero and the subnormal included, which one multiplication by 2^126 puts right
exactly.
"""

import torch
import triton
import triton.language as tl

from . import experts_cuda
from .situ import situ_of_pairs

LATENT = 3584
TOP = 16
GROUP = 32
# Rows of an expert that tensor cores take at once.
CHUNK = 16


def scratch(axes, config):
    """activation [rows, k, I] bf16; grouped as well: outputs [rows, k, L] fp32, members [E, rows] and counts [E]."""
    if _cuda(config):
        return experts_cuda.scratch(axes, config)
    rows, experts = axes["rows"], axes["experts"]
    shapes = {"activation": ((rows * TOP, axes["channels"]), torch.bfloat16)}
    if config["structure"] == "grouped":
        shapes["outputs"] = ((rows * TOP, LATENT), torch.float32)
        shapes["members"] = ((experts, rows), torch.int32)
        shapes["counts"] = ((experts,), torch.int32)
    return shapes


def persistent(axes, config):
    """Of CUDA C++ alone: its barrier."""
    return experts_cuda.persistent(axes, config) if _cuda(config) else {}


def prepare(ctx, static, axes, config):
    """words13, words2: tiles of nibbles, int32; scales13, scales2: tiles of their scales, uint8."""
    if _cuda(config):
        return experts_cuda.prepare(ctx, static, axes, config)
    pairs = [
        weight.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2) for weight in (static.w13_packed, static.w13_scale)
    ]
    words13, scales13 = _tiles(*pairs, config["block_n"], config["block_k"])
    words2, scales2 = _tiles(static.w2_packed, static.w2_scale, config["block_n"], _depth(axes, config))
    return {"words13": words13, "scales13": scales13, "words2": words2, "scales2": scales2}


def _cuda(config):
    return config["structure"] in experts_cuda.STRUCTURES


def _depth(axes, config):
    """How deep a tile of w2 is: at most block_k, and without a rest."""
    channels = axes["channels"]
    return min(config["block_k"], channels & -channels)


def _tiles(packed, scale, block_n, block_k):
    """[E, N, K / 2] and [E, N, K / 32] as tiles [E, N tiles, K tiles, block_n, ..]: words, dealt out, and scales."""

    def cut(tensor, width):
        return tensor.unflatten(2, (-1, width)).unflatten(1, (-1, block_n)).transpose(2, 3).contiguous()

    words = cut(packed, block_k // 2).view(torch.int32)
    return words.unflatten(-1, (4, -1)).transpose(-1, -2).contiguous(), cut(scale, block_k // GROUP)


def launch(ctx, buffers, axes, config):
    """Enqueues two launches (`gemv`), four (`grouped`), or CUDA C++'s one."""
    if _cuda(config):
        experts_cuda.launch(ctx, buffers, axes, config)
        return
    rows, channels, experts, x = axes["rows"], axes["channels"], axes["experts"], buffers.x
    block_n, block_k = config["block_n"], config["block_k"]
    up = (2 * channels // block_n, LATENT // block_n)
    tile = {"BN": block_n, "num_warps": config["num_warps"], "num_stages": config["num_stages"]}
    depth = _depth(axes, config)
    stride = x.stride(0) // 8
    if config["structure"] == "gemv":
        _up[(up[0], rows * TOP)](
            x, buffers.ids, buffers.words13, buffers.scales13, buffers.activation, stride,
            N=2 * channels, K=LATENT, PLACES=TOP, BK=block_k, **tile,
        )  # fmt: skip
        _down[(up[1], rows)](
            buffers.activation, buffers.ids, buffers.weights, buffers.words2, buffers.scales2, buffers.routed,
            N=LATENT, K=channels, PLACES=TOP, BK=depth, **tile,
        )  # fmt: skip
        return
    _list[(experts,)](
        buffers.ids, buffers.members, buffers.counts, rows, PLACES=TOP, SLOTS=triton.next_power_of_2(rows * TOP),
        num_warps=4,
    )  # fmt: skip
    lists = (buffers.members, buffers.counts)
    _grouped[(up[0], experts)](
        x, buffers.words13, buffers.scales13, *lists, buffers.activation, stride, rows,
        N=2 * channels, K=LATENT, PER_ROW=TOP, R=CHUNK, ACTIVATE=True, BK=block_k, **tile,
    )  # fmt: skip
    _grouped[(up[1], experts)](
        buffers.activation, buffers.words2, buffers.scales2, *lists, buffers.outputs, channels // 8, rows,
        N=LATENT, K=channels, PER_ROW=1, R=CHUNK, ACTIVATE=False, BK=depth, **tile,
    )  # fmt: skip
    _add[(rows, LATENT // 512)](buffers.outputs, buffers.weights, buffers.routed, L=LATENT, PLACES=TOP, BLOCK=512)


@triton.jit
def _unpack(words, scales, BN: tl.constexpr, BK: tl.constexpr):
    """The elements [BN, 4, BK / 32, 8] fp32 of one tile, K in order, times their scales, exactly."""
    LANES: tl.constexpr = BK // 32
    line = tl.arange(0, BN)[:, None, None, None]
    quarter = tl.arange(0, 4)[None, :, None, None]
    lane = tl.arange(0, LANES)[None, None, :, None]
    packed = tl.load(words + (line * LANES + lane) * 4 + quarter, eviction_policy="evict_first")
    group = (quarter * LANES + lane) // 4
    exponent = tl.load(scales + line * LANES + group).to(tl.int32)
    # A biased exponent is a float32 but for 0, which is 2^-127, and 255, which is NaN.
    bits = tl.where(exponent == 0, 0x00400000, tl.where(exponent == 255, 0x7FC00000, exponent << 23))
    # The nibble's sign at the top, and its three other bits where a float32 has the end of its exponent.
    top = packed << (28 - 4 * tl.arange(0, 8)[None, None, None, :])
    tiny = ((top & -0x80000000) | ((top >> 6) & 0x01C00000)).to(tl.float32, bitcast=True)
    return tiny * 8.507059173023462e37 * bits.to(tl.float32, bitcast=True)


@triton.jit
def _columns(BK: tl.constexpr):
    """[1, 4, BK / 32, 8]: the columns of a tile."""
    quarter = tl.arange(0, 4)[None, :, None, None]
    lane = tl.arange(0, BK // 32)[None, None, :, None]
    return (quarter * (BK // 32) + lane) * 8 + tl.arange(0, 8)[None, None, None, :]


@triton.jit(do_not_specialize=["x_stride"])
def _up(
    x, ids, words, scales, activation, x_stride,
    N: tl.constexpr, K: tl.constexpr, PLACES: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of gate and up in pairs, rows x places): SiTU of one expert's channels."""
    TILES: tl.constexpr = K // BK
    slot = tl.program_id(1)
    tile = (tl.load(ids + slot).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * TILES
    x += slot // PLACES * x_stride * 8
    x += _columns(BK)
    acc = tl.zeros([BN, BK // 32], dtype=tl.float32)
    for index in tl.static_range(TILES):
        w = _unpack(words + (tile + index) * (BN * BK // 8), scales + (tile + index) * (BN * BK // 32), BN, BK)
        acc += tl.sum(tl.sum(w * tl.load(x + index * BK).to(tl.float32), axis=3), axis=1)
    value = situ_of_pairs(tl.sum(acc, axis=1)[:, None], BN, 1)
    channel = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)[:, None]
    tl.store(activation + slot.to(tl.int64) * (N // 2) + channel, value.to(tl.bfloat16))


@triton.jit
def _down(
    activation, ids, weights, words, scales, routed,
    N: tl.constexpr, K: tl.constexpr, PLACES: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of outputs, rows): the weighted sum over the row's experts."""
    TILES: tl.constexpr = K // BK
    row = tl.program_id(1)
    column = _columns(BK)
    total = tl.zeros([BN, BK // 32], dtype=tl.float32)
    for place in range(PLACES):
        slot = row * PLACES + place
        tile = (tl.load(ids + slot).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * TILES
        acc = tl.zeros([BN, BK // 32], dtype=tl.float32)
        for index in tl.static_range(TILES):
            w = _unpack(words + (tile + index) * (BN * BK // 8), scales + (tile + index) * (BN * BK // 32), BN, BK)
            t = tl.load(activation + slot.to(tl.int64) * K + index * BK + column).to(tl.float32)
            acc += tl.sum(tl.sum(w * t, axis=3), axis=1)
        total += acc * tl.load(weights + slot)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    tl.store(routed + row.to(tl.int64) * N + n, tl.sum(total, axis=1).to(tl.bfloat16))


@triton.jit(do_not_specialize=["rows"])
def _list(ids, members, counts, rows, PLACES: tl.constexpr, SLOTS: tl.constexpr):
    """Grid (experts): the slots (row x places + place) that chose the expert, in order, and how many."""
    expert = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    chosen = tl.load(ids + slot, mask=slot < rows * PLACES, other=-1) == expert
    order = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(members + expert * rows + order, slot, mask=chosen)
    tl.store(counts + expert, tl.sum(chosen.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["x_stride", "rows"])
def _grouped(
    x, words, scales, members, counts, out, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, PER_ROW: tl.constexpr, R: tl.constexpr, ACTIVATE: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, experts): one tile of an expert's matrix times the rows that chose it, R at a time.

    `x` has one row for PER_ROW slots. ACTIVATE: columns are gate and up in pairs, `out` is their SiTU in bfloat16.
    """
    TILES: tl.constexpr = K // BK
    expert = tl.program_id(1)
    count = tl.load(counts + expert)
    tile = (expert.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * TILES
    column = tl.arange(0, BK)[:, None]
    for first in range(0, count, R):
        member = first + tl.arange(0, R)[None, :]
        slot = tl.load(members + expert * rows + member, mask=member < count, other=0).to(tl.int64)
        source = x + slot // PER_ROW * x_stride * 8
        acc = tl.zeros([BN, R], dtype=tl.float32)
        for index in range(TILES):
            w = _unpack(words + (tile + index) * (BN * BK // 8), scales + (tile + index) * (BN * BK // 32), BN, BK)
            rhs = tl.load(source + index * BK + column, mask=member < count, other=0.0)
            acc = tl.dot(tl.reshape(w.to(tl.bfloat16), [BN, BK]), rhs, acc)
        if ACTIVATE:
            channel = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)[:, None]
            value = situ_of_pairs(acc, BN, R).to(tl.bfloat16)
            tl.store(out + slot * (N // 2) + channel, value, mask=member < count)
        else:
            n = tl.program_id(0) * BN + tl.arange(0, BN)[:, None]
            tl.store(out + slot * N + n, acc, mask=member < count)


@triton.jit
def _add(outputs, weights, routed, L: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (rows, columns): a row's outputs, weighted and added in the order of its places."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for place in tl.static_range(PLACES):
        slot = row * PLACES + place
        total += tl.load(weights + slot) * tl.load(outputs + slot * L + column)
    tl.store(routed + row * L + column, total.to(tl.bfloat16))
