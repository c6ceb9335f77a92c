"""One decode step of Kimi Delta Attention: from the fused in-projection's output to the gated norm.

Read     f_b, conv_weight (as `taps`, transposed), exp(a_log) (as `rate`), dt_bias, o_norm; projected, slots; and of
         each live row its pages of conv_state and recurrent_state.
Written  out, every row (zeros where slots <= 0), and the two pages of each live row. Nothing else.
Rounded  the gate projection f_b f_a to bfloat16, because the published layer does, and the output. The rest is float32.

Tiling. The recurrent state is the traffic: 64 KiB a row and head, read once and written once, in the one-pass form

    S' = S diag(a);  delta = beta (v - S' k);  o = S' q + delta (q . k);  S = S' + delta k^T

where both products read the decayed state before its update, so a tile of value rows is finished in registers.

fused  One program a (row, head). It owns its 3 x 128 convolution channels, so it shifts their state itself, walks the
       state in tiles of block_v value rows, and normalises the 128 outputs at the end. One launch.
split  One program a (row, head, value tile): fills the machine at small batch. Each recomputes q, k and the decay, so
       none may shift their convolution state while another still reads it: a second launch does that, with the norm.

A vector of 128 is spread over the lanes of one to four warps, and further warps hold copies. Where a program loads and
then stores the same address, a barrier keeps a fast warp's store from a slow warp's load.

Slot times page stride passes 2^31 elements in real pools, hence the 64-bit page offsets.
"""

import torch
import triton
import triton.language as tl

HEAD_DIM = 128
GATE_RANK = 128
GATE_LOWER_BOUND = -5.0
L2_EPS = 1e-6
NORM_EPS = 1e-5


def scratch(axes, config):
    """The core outputs that the two launches of `split` hand over: [rows, heads, 128] fp32."""
    if config["structure"] == "fused":
        return {}
    return {"core": ((axes["rows"], axes["heads"], HEAD_DIM), torch.float32)}


def prepare(ctx, static, axes, config):
    """taps: conv_weight as [4, 3 p], so that neighbouring channels load together. rate: exp(a_log), [h]."""
    return {"taps": static.conv_weight.T.contiguous(), "rate": static.a_log.exp()}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch (`fused`) or two (`split`)."""
    rows, heads = axes["rows"], axes["heads"]
    projected, slots, out = buffers.projected, buffers.slots, buffers.out
    conv_state, recurrent_state = buffers.conv_state, buffers.recurrent_state
    strides = (projected.stride(0), slots.stride(0), conv_state.stride(0), recurrent_state.stride(0))
    weights = (buffers.f_b, buffers.taps, buffers.rate, buffers.dt_bias)
    sizes = {"HEADS": heads, "D": HEAD_DIM, "RANK": GATE_RANK}
    options = {"num_warps": config["num_warps"], "num_stages": config["num_stages"]}
    if config["structure"] == "fused":
        _fused[(rows, heads)](
            projected, slots, conv_state, recurrent_state, out, *weights, buffers.o_norm, *strides, **sizes,
            BLOCK_V=config["block_v"], LOWER_BOUND=GATE_LOWER_BOUND, L2_EPS=L2_EPS, NORM_EPS=NORM_EPS, **options,
        )  # fmt: skip
        return
    _recurrence[(rows, heads, HEAD_DIM // config["block_v"])](
        projected, slots, conv_state, recurrent_state, buffers.core, *weights, *strides, **sizes,
        BLOCK_V=config["block_v"], LOWER_BOUND=GATE_LOWER_BOUND, L2_EPS=L2_EPS, **options,
    )  # fmt: skip
    _finish[(rows, heads)](
        projected, slots, conv_state, buffers.core, out, buffers.o_norm, *strides[:3],
        HEADS=heads, D=HEAD_DIM, NORM_EPS=NORM_EPS, num_warps=4,
    )  # fmt: skip


@triton.jit
def _fused(
    projected, slots, conv_state, recurrent_state, out, f_b, taps, rate, dt_bias, o_norm,
    projected_stride, slots_stride, conv_page, state_page,
    HEADS: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr, BLOCK_V: tl.constexpr,
    LOWER_BOUND: tl.constexpr, L2_EPS: tl.constexpr, NORM_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads): everything that one head of one row needs."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = tl.arange(0, D)
    slot = tl.load(slots + row * slots_stride).to(tl.int64)
    y = out + row * HEADS * D + head * D + lane
    if slot <= 0:
        tl.store(y, tl.zeros([D], dtype=tl.bfloat16))
        return
    x = projected + row * projected_stride
    window = conv_state + slot * conv_page
    page = recurrent_state + slot * state_page + head * D * D

    q, k, decay, beta = _head_vectors(
        x, window, f_b, taps, rate, dt_bias, head, HEADS, D, RANK, LOWER_BOUND, L2_EPS
    )
    qk = tl.sum(q * k)
    # o is collected as [tiles, BLOCK_V]: a tile cannot be written into part of a register vector, but it can be
    # selected into its row.
    tile_index = tl.arange(0, D // BLOCK_V)[:, None]
    core = tl.zeros([D // BLOCK_V, BLOCK_V], dtype=tl.float32)
    for tile in tl.range(0, D // BLOCK_V):
        o = _advance(page, x, window, taps, q, k, decay, beta, qk, tile * BLOCK_V, head, HEADS, D, BLOCK_V)
        core = tl.where(tile_index == tile, o[None, :], core)

    mean = tl.sum(core * core) / D
    v_lane = tile_index * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    gate = tl.load(x + 3 * HEADS * D + head * D + v_lane).to(tl.float32)
    weight = tl.load(o_norm + v_lane).to(tl.float32)
    normed = core * tl.rsqrt(mean + NORM_EPS) * weight * tl.sigmoid(gate)
    tl.store(out + row * HEADS * D + head * D + v_lane, normed.to(tl.bfloat16))
    tl.debug_barrier()
    _shift(x, window, head, HEADS, D)


@triton.jit
def _recurrence(
    projected, slots, conv_state, recurrent_state, core, f_b, taps, rate, dt_bias,
    projected_stride, slots_stride, conv_page, state_page,
    HEADS: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr, BLOCK_V: tl.constexpr,
    LOWER_BOUND: tl.constexpr, L2_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads, value tiles): advances BLOCK_V value rows of the state; leaves conv_state alone."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = tl.program_id(2) * BLOCK_V
    slot = tl.load(slots + row * slots_stride).to(tl.int64)
    if slot <= 0:
        return
    x = projected + row * projected_stride
    window = conv_state + slot * conv_page
    page = recurrent_state + slot * state_page + head * D * D
    q, k, decay, beta = _head_vectors(
        x, window, f_b, taps, rate, dt_bias, head, HEADS, D, RANK, LOWER_BOUND, L2_EPS
    )
    o = _advance(page, x, window, taps, q, k, decay, beta, tl.sum(q * k), first, head, HEADS, D, BLOCK_V)
    tl.store(core + row * HEADS * D + head * D + first + tl.arange(0, BLOCK_V), o)


@triton.jit
def _finish(
    projected, slots, conv_state, core, out, o_norm, projected_stride, slots_stride, conv_page,
    HEADS: tl.constexpr, D: tl.constexpr, NORM_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads), after `_recurrence`: gated norm, and the shift of the head's convolution channels."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lane = head * D + tl.arange(0, D)
    slot = tl.load(slots + row * slots_stride).to(tl.int64)
    if slot <= 0:
        tl.store(out + row * HEADS * D + lane, tl.zeros([D], dtype=tl.bfloat16))
        return
    x = projected + row * projected_stride
    o = tl.load(core + row * HEADS * D + lane)
    gate = tl.load(x + 3 * HEADS * D + lane).to(tl.float32)
    weight = tl.load(o_norm + tl.arange(0, D)).to(tl.float32)
    normed = o * tl.rsqrt(tl.sum(o * o) / D + NORM_EPS) * weight * tl.sigmoid(gate)
    tl.store(out + row * HEADS * D + lane, normed.to(tl.bfloat16))
    _shift(x, conv_state + slot * conv_page, head, HEADS, D)


@triton.jit
def _head_vectors(
    x, window, f_b, taps, rate, dt_bias, head,
    HEADS: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr, LOWER_BOUND: tl.constexpr, L2_EPS: tl.constexpr,
):  # fmt: skip
    """q (normalised and scaled), k (normalised) and the decay of one head, [D] fp32 each, and beta, a scalar."""
    lane = head * D + tl.arange(0, D)
    # The gate's 32 KiB of weights first: everything else waits for less.
    rank = tl.arange(0, RANK)
    factors = tl.load(f_b + lane[:, None] * RANK + rank[None, :])
    f_a = tl.load(x + 4 * HEADS * D + rank)
    q = _convolve(x, window, taps, lane, HEADS, D)
    k = _convolve(x, window, taps, HEADS * D + lane, HEADS, D)
    q *= tl.rsqrt(tl.sum(q * q) + L2_EPS) * (1.0 / tl.sqrt(D * 1.0))
    k *= tl.rsqrt(tl.sum(k * k) + L2_EPS)
    gamma = tl.sum(factors.to(tl.float32) * f_a.to(tl.float32)[None, :], axis=1)
    gamma = gamma.to(tl.bfloat16).to(tl.float32)
    bias = tl.load(dt_bias + lane)
    decay = tl.exp(LOWER_BOUND * tl.sigmoid(tl.load(rate + head) * (gamma + bias)))
    beta = tl.sigmoid(tl.load(x + 4 * HEADS * D + RANK + head).to(tl.float32))
    return q, k, decay, beta


@triton.jit
def _advance(
    page, x, window, taps, q, k, decay, beta, qk, first, head,
    HEADS: tl.constexpr, D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Advances value rows [first, first + BLOCK_V) of one head's state in place; returns their outputs, fp32."""
    v_lane = first + tl.arange(0, BLOCK_V)
    tile = page + v_lane[:, None] * D + tl.arange(0, D)[None, :]
    state = tl.load(tile)
    v = _convolve(x, window, taps, 2 * HEADS * D + head * D + v_lane, HEADS, D)
    state *= decay[None, :]
    delta = beta * (v - tl.sum(state * k[None, :], axis=1))
    o = tl.sum(state * q[None, :], axis=1) + delta * qk
    tl.store(tile, state + delta[:, None] * k[None, :])
    return o


@triton.jit
def _convolve(x, window, taps, channel, HEADS: tl.constexpr, D: tl.constexpr):
    """Causal depthwise convolution of width 4 and SiLU for the given channels of q | k | v, fp32."""
    WIDTH: tl.constexpr = 3 * HEADS * D
    u = tl.load(window + channel).to(tl.float32) * tl.load(taps + channel)
    u += tl.load(window + WIDTH + channel).to(tl.float32) * tl.load(taps + WIDTH + channel)
    u += tl.load(window + 2 * WIDTH + channel).to(tl.float32) * tl.load(taps + 2 * WIDTH + channel)
    u += tl.load(x + channel).to(tl.float32) * tl.load(taps + 3 * WIDTH + channel)
    return u * tl.sigmoid(u)


@triton.jit
def _shift(x, window, head, HEADS: tl.constexpr, D: tl.constexpr):
    """Drops the oldest of three taps of one head's q, k and v channels and appends the raw projection."""
    WIDTH: tl.constexpr = 3 * HEADS * D
    part = tl.arange(0, 4)[:, None]
    channel = part * HEADS * D + head * D + tl.arange(0, D)[None, :]
    mask = (part < 3) & (channel >= 0)
    second = tl.load(window + WIDTH + channel, mask=mask)
    third = tl.load(window + 2 * WIDTH + channel, mask=mask)
    newest = tl.load(x + channel, mask=mask)
    tl.debug_barrier()
    tl.store(window + channel, second, mask=mask)
    tl.store(window + WIDTH + channel, third, mask=mask)
    tl.store(window + 2 * WIDTH + channel, newest, mask=mask)
