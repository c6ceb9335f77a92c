"""The softmax mix of the residual streams and the RMSNorm behind it, one launch.

One program a row, and one pass: all sources of a row, up to nine rows of 14 KB, stay in registers as bfloat16 between
their logits and their sum. Lanes lie along the channels, so that every lane holds the same channels of every source:
the dots of all sources cross lanes together, once, and the mix not at all.

Reading the sources again for the sum would double the traffic of an op that is nothing but traffic, and a loop over
sources with a running maximum would put nine reductions of a block one behind the other.
"""

import triton
import triton.language as tl

HIDDEN = 7168
EPS = 1e-5


def prepare(ctx, static, axes, config):
    """query: res_norm * res_proj, [d] fp32, whose dot with a source is all that logits need."""
    return {"query": static.res_norm.float() * static.res_proj.float()}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch."""
    blocks, stream = axes["blocks"], buffers.stream
    banks = buffers.blocks if blocks else None
    # In units of 16 bytes, which the strides are multiples of.
    strides = (stream.stride(0) // 8, axes["block_stride"] // 8, axes["block_row_stride"] // 8)
    _mix_norm[(axes["rows"],)](
        stream, banks, buffers.query, buffers.out_norm, buffers.x, *strides,
        D=HIDDEN, BLOCKS=blocks, EPSILON=EPS, num_warps=config["num_warps"],
    )  # fmt: skip


@triton.jit(do_not_specialize=["stream_stride", "block_stride", "block_row_stride"])
def _mix_norm(
    stream, blocks, query, out_norm, x, stream_stride, block_stride, block_row_stride,
    D: tl.constexpr, BLOCKS: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the mix of BLOCKS banked streams and the newest one, normalised."""
    WIDTH: tl.constexpr = triton.next_power_of_2(D)
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, WIDTH)[None, :]
    inside = channel < D
    newest = tl.load(stream + row * stream_stride * 8 + channel, mask=inside, other=0.0)
    if BLOCKS > 0:
        BANKS: tl.constexpr = triton.next_power_of_2(BLOCKS)
        bank = tl.arange(0, BANKS)[:, None]
        source = blocks + row * block_row_stride * 8 + bank.to(tl.int64) * block_stride * 8 + channel
        banked = tl.load(source, mask=inside & (bank < BLOCKS), other=0.0)
    q = tl.load(query + channel, mask=inside, other=0.0)
    weight = tl.load(out_norm + channel, mask=inside, other=0.0).to(tl.float32)

    h = newest.to(tl.float32)
    if BLOCKS > 0:
        last = tl.sum(h * q, axis=1) * tl.rsqrt(tl.sum(h * h, axis=1) / D + EPSILON)
        wide = banked.to(tl.float32)
        logits = tl.sum(wide * q, axis=1) * tl.rsqrt(tl.sum(wide * wide, axis=1) / D + EPSILON)
        logits = tl.where(tl.arange(0, BANKS) < BLOCKS, logits, float("-inf"))
        largest = tl.maximum(tl.max(logits, axis=0), tl.max(last, axis=0))
        shares = tl.exp(logits - largest)
        own = tl.exp(last - largest)
        total = tl.sum(shares, axis=0) + own
        h = (tl.sum(banked.to(tl.float32) * shares[:, None], axis=0)[None, :] + h * own[:, None]) / total[:, None]
    normed = h * tl.rsqrt(tl.sum(h * h, axis=1) / D + EPSILON)[:, None] * weight
    tl.store(x + row * D + channel, normed.to(tl.bfloat16), mask=inside)
