"""The softmax mix of the residual streams and the RMSNorm behind it, one launch.

One program a row. It reads the row's sources, up to nine of 14 KB, once from memory: a first walk gathers the dot and
the square of each, a second one, which the first-level cache feeds, adds them up. Held in registers instead they spill,
which costs as many bytes in the same cache. Lanes lie along the channels and hold the same channels of every source:
the dots of all sources cross lanes together, once, and the mix not at all. A running maximum over sources would put
nine reductions of a block one behind the other.
"""

import triton
import triton.language as tl

HIDDEN = 7168
EPS = 1e-5


def launch(ctx, buffers, axes, config):
    """Enqueues one launch."""
    blocks, stream = axes["blocks"], buffers.stream
    banks = buffers.blocks if blocks else None
    # In units of 16 bytes, which the strides are multiples of.
    strides = (stream.stride(0) // 8, axes["block_stride"] // 8, axes["block_row_stride"] // 8)
    _mix_norm[(axes["rows"],)](
        stream, banks, buffers.res_norm, buffers.res_proj, buffers.out_norm, buffers.x, *strides,
        D=HIDDEN, BLOCKS=blocks, EPSILON=EPS, TILE=256 * config["num_warps"], num_warps=config["num_warps"],
    )  # fmt: skip


@triton.jit(do_not_specialize=["stream_stride", "block_stride", "block_row_stride"])
def _mix_norm(
    stream, blocks, res_norm, res_proj, out_norm, x, stream_stride, block_stride, block_row_stride,
    D: tl.constexpr, BLOCKS: tl.constexpr, EPSILON: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the mix of BLOCKS banked streams and the newest one, normalised."""
    WIDTH: tl.constexpr = triton.next_power_of_2(D)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, WIDTH)[None, :]
    inside = channel < D
    h = tl.load(stream + row * stream_stride * 8 + channel, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(out_norm + channel, mask=inside, other=0.0)
    if BLOCKS > 0:
        BANKS: tl.constexpr = triton.next_power_of_2(BLOCKS)
        blocks += row * block_row_stride * 8
        bank = tl.arange(0, BANKS)
        dots = tl.zeros([BANKS, TILE // 8], dtype=tl.float32)
        squares = tl.zeros([BANKS, TILE // 8], dtype=tl.float32)
        for index in tl.static_range((D + TILE - 1) // TILE):
            part = index * TILE + tl.arange(0, TILE)[None, :]
            source = blocks + bank.to(tl.int64)[:, None] * block_stride * 8 + part
            value = tl.load(source, mask=(part < D) & (bank[:, None] < BLOCKS), other=0.0).to(tl.float32)
            q = _query(res_norm, res_proj, part, part < D)
            # Eight neighbouring channels of a lane: added where they are.
            dots += tl.sum(tl.reshape(value * q, [BANKS, TILE // 8, 8]), axis=2)
            squares += tl.sum(tl.reshape(value * value, [BANKS, TILE // 8, 8]), axis=2)
        logits = tl.sum(dots, axis=1) * tl.rsqrt(tl.sum(squares, axis=1) / D + EPSILON)
        logits = tl.where(bank < BLOCKS, logits, float("-inf"))
        q = _query(res_norm, res_proj, channel, inside)
        last = tl.sum(h * q) * tl.rsqrt(tl.sum(h * h) / D + EPSILON)
        largest = tl.maximum(tl.max(logits, axis=0), last)
        shares = tl.exp(logits - largest)
        own = tl.exp(last - largest)
        total = tl.sum(shares, axis=0) + own
        h *= own
        for index in tl.static_range(BLOCKS):
            share = tl.sum(tl.where(bank == index, shares, 0.0), axis=0)
            h += share * tl.load(blocks + index * block_stride * 8 + channel, mask=inside, other=0.0).to(tl.float32)
        h /= total
    normed = h * tl.rsqrt(tl.sum(h * h) / D + EPSILON) * weight.to(tl.float32)
    tl.store(x + row * D + channel, normed.to(tl.bfloat16), mask=inside)


@triton.jit
def _query(res_norm, res_proj, channel, inside):
    """res_norm * res_proj in fp32: all that a logit needs of the two.

    Multiplied here, not once beforehand: as bfloat16 they lie in lanes like the sources do, a float32 row does not.
    """
    norm = tl.load(res_norm + channel, mask=inside, other=0.0).to(tl.float32)
    return norm * tl.load(res_proj + channel, mask=inside, other=0.0).to(tl.float32)
