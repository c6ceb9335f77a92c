"""One decode step of Kimi Delta Attention: from the fused in-projection's output to the gated norm.

Read     f_b, conv_weight (as `taps`, transposed), exp(a_log) (as `rate`), dt_bias, o_norm; projected, slots; and of
         each live row its pages of conv_state and recurrent_state.
Written  out, every row (zeros where slots <= 0), and the two pages of each live row. Nothing else.
Rounded  the gate projection f_b f_a to bfloat16, because the published layer does, and the output. The rest is float32.

Tiling. The recurrent state is the traffic: 64 KiB a row and head, read once and written once, in the one-pass form

    S' = S diag(a);  delta = beta (v - S' k);  o = S' q + delta (q . k);  S = S' + delta k^T

where both products read the decayed state before its update, so a tile of value rows is finished in registers.

fused  One program a (row, head). It owns its 3 x 128 convolution channels, so it shifts their state itself, walks the
       state in tiles of block_v value rows, one tile ahead, and normalises the 128 outputs at the end. One launch.
split  One program a (row, head, value tile): fills the machine at small batch. Each recomputes q, k and the decay, so
       none may shift their convolution state while another still reads it: a second launch does that, with the norm.

At small batch one dependent trip to memory costs as much as the arithmetic, so each program asks for all it will need
before its first reduction. A vector of 128 fills one to four warps and further warps hold copies; a barrier stands
between loading conv_state and storing it, or a fast warp's store could reach a slow warp's load.

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
    """What the first launch of `split` hands to the second: core outputs, [rows, heads, 128] fp32."""
    if config["structure"] == "fused":
        return {}
    return {"core": ((axes["rows"], axes["heads"], HEAD_DIM), torch.float32)}


def prepare(ctx, static, axes, config):
    """taps: conv_weight as [4, 3 p], so that neighbouring channels load together. rate: exp(a_log), [h]."""
    return {"taps": static.conv_weight.T.contiguous(), "rate": static.a_log.exp()}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch (`fused`) or two (`split`)."""
    grid = (axes["rows"], axes["heads"])
    projected, slots, out = buffers.projected, buffers.slots, buffers.out
    conv_state, recurrent_state = buffers.conv_state, buffers.recurrent_state
    weights = (buffers.f_b, buffers.taps, buffers.rate, buffers.dt_bias)
    # In units of 16 bytes, which the contract's strides are multiples of: the compiler sees aligned pages without a
    # variant of its own for each stride.
    strides = (projected.stride(0) // 8, slots.stride(0), conv_state.stride(0) // 8, recurrent_state.stride(0) // 4)
    block_v = config["block_v"]
    sizes = {"HEADS": axes["heads"], "D": HEAD_DIM, "RANK": GATE_RANK, "BLOCK_V": block_v}
    constants = {"LOWER_BOUND": GATE_LOWER_BOUND, "L2_EPS": L2_EPS}
    if config["structure"] == "fused":
        _fused[grid](
            projected, slots, conv_state, recurrent_state, out, *weights, buffers.o_norm, *strides,
            **sizes, **constants, NORM_EPS=NORM_EPS, num_warps=config["num_warps"],
        )  # fmt: skip
        return
    _recurrence[(*grid, HEAD_DIM // block_v)](
        projected, slots, conv_state, recurrent_state, buffers.core, *weights, *strides,
        **sizes, **constants, num_warps=config["num_warps"],
    )  # fmt: skip
    _finish[grid](
        projected, slots, conv_state, buffers.core, out, buffers.o_norm, *strides[:3],
        HEADS=axes["heads"], D=HEAD_DIM, NORM_EPS=NORM_EPS, num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["projected_stride", "slots_stride", "conv_page", "state_page"])
def _fused(
    projected, slots, conv_state, recurrent_state, out, f_b, taps, rate, dt_bias, o_norm,
    projected_stride, slots_stride, conv_page, state_page,
    HEADS: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr, BLOCK_V: tl.constexpr,
    LOWER_BOUND: tl.constexpr, L2_EPS: tl.constexpr, NORM_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads): everything that one head of one row needs."""
    TILES: tl.constexpr = D // BLOCK_V
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    # All value channels as [TILES, BLOCK_V]: outputs are selected into the row of their tile.
    tile_of = tl.arange(0, TILES)[:, None]
    value = head * D + tile_of * BLOCK_V + tl.arange(0, BLOCK_V)[None, :]
    y = out + row * HEADS * D + value
    factors = _load_gate(f_b, head, D, RANK)
    slot = tl.load(slots + row * slots_stride).to(tl.int64)
    if slot <= 0:
        tl.store(y, tl.zeros([TILES, BLOCK_V], dtype=tl.bfloat16))
        return
    x = projected + row * projected_stride * 8
    window = conv_state + slot * conv_page * 8
    tile = recurrent_state + slot * state_page * 4 + head * D * D
    tile += tl.arange(0, BLOCK_V)[:, None] * D + tl.arange(0, D)[None, :]

    state = tl.load(tile)
    v = _convolve(x, window, taps, 2 * HEADS * D + head * D + tl.arange(0, BLOCK_V), HEADS, D)
    gate = tl.load(x + 3 * HEADS * D + value).to(tl.float32)
    weight = tl.load(o_norm + (value - head * D)).to(tl.float32)
    second, third, newest = _load_window(x, window, head, HEADS, D)
    q, k, decay, beta = _head_vectors(
        x, window, factors, taps, rate, dt_bias, head, HEADS, D, RANK, LOWER_BOUND, L2_EPS
    )
    qk = _dot(q, k)
    core = tl.zeros([TILES, BLOCK_V], dtype=tl.float32)
    for index in tl.static_range(TILES):
        if index + 1 < TILES:
            ahead = tl.load(tile + (index + 1) * BLOCK_V * D)
            channel = 2 * HEADS * D + head * D + (index + 1) * BLOCK_V + tl.arange(0, BLOCK_V)
            v_ahead = _convolve(x, window, taps, channel, HEADS, D)
        state, o = _advance(state, v, q, k, decay, beta, qk)
        tl.store(tile + index * BLOCK_V * D, state)
        core = tl.where(tile_of == index, o[None, :], core)
        if index + 1 < TILES:
            state, v = ahead, v_ahead

    normed = core * tl.rsqrt(_dot(core, core) / D + NORM_EPS) * weight * tl.sigmoid(gate)
    tl.store(y, normed.to(tl.bfloat16))
    tl.debug_barrier()
    _store_window(window, second, third, newest, head, HEADS, D)


@triton.jit(do_not_specialize=["projected_stride", "slots_stride", "conv_page", "state_page"])
def _recurrence(
    projected, slots, conv_state, recurrent_state, core, f_b, taps, rate, dt_bias,
    projected_stride, slots_stride, conv_page, state_page,
    HEADS: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr, BLOCK_V: tl.constexpr,
    LOWER_BOUND: tl.constexpr, L2_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads, value tiles): advances BLOCK_V value rows of the state; leaves conv_state alone."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = head * D + tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    factors = _load_gate(f_b, head, D, RANK)
    slot = tl.load(slots + row * slots_stride).to(tl.int64)
    if slot <= 0:
        return
    x = projected + row * projected_stride * 8
    window = conv_state + slot * conv_page * 8
    tile = recurrent_state + slot * state_page * 4 + value[:, None] * D + tl.arange(0, D)[None, :]
    state = tl.load(tile)
    v = _convolve(x, window, taps, 2 * HEADS * D + value, HEADS, D)
    q, k, decay, beta = _head_vectors(
        x, window, factors, taps, rate, dt_bias, head, HEADS, D, RANK, LOWER_BOUND, L2_EPS
    )
    state, o = _advance(state, v, q, k, decay, beta, _dot(q, k))
    tl.store(tile, state)
    tl.store(core + row * HEADS * D + value, o)


@triton.jit(do_not_specialize=["projected_stride", "slots_stride", "conv_page"])
def _finish(
    projected, slots, conv_state, core, out, o_norm, projected_stride, slots_stride, conv_page,
    HEADS: tl.constexpr, D: tl.constexpr, NORM_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads), after `_recurrence`: gated norm, and the shift of the head's convolution channels."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    value = head * D + tl.arange(0, D)
    slot = tl.load(slots + row * slots_stride).to(tl.int64)
    if slot <= 0:
        tl.store(out + row * HEADS * D + value, tl.zeros([D], dtype=tl.bfloat16))
        return
    x = projected + row * projected_stride * 8
    window = conv_state + slot * conv_page * 8
    o = tl.load(core + row * HEADS * D + value)
    gate = tl.load(x + 3 * HEADS * D + value).to(tl.float32)
    weight = tl.load(o_norm + tl.arange(0, D)).to(tl.float32)
    second, third, newest = _load_window(x, window, head, HEADS, D)
    normed = o * tl.rsqrt(_dot(o, o) / D + NORM_EPS) * weight * tl.sigmoid(gate)
    tl.store(out + row * HEADS * D + value, normed.to(tl.bfloat16))
    tl.debug_barrier()
    _store_window(window, second, third, newest, head, HEADS, D)


@triton.jit
def _load_gate(f_b, head, D: tl.constexpr, RANK: tl.constexpr):
    """The head's rows of f_b, [D, RANK] bf16: 32 KiB that need not wait for the slot."""
    lane = head * D + tl.arange(0, D)
    return tl.load(f_b + lane[:, None] * RANK + tl.arange(0, RANK)[None, :])


@triton.jit
def _head_vectors(
    x, window, factors, taps, rate, dt_bias, head,
    HEADS: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr, LOWER_BOUND: tl.constexpr, L2_EPS: tl.constexpr,
):  # fmt: skip
    """q (normalised and scaled), k (normalised) and the decay of one head, [D] fp32 each, and beta, a scalar."""
    lane = head * D + tl.arange(0, D)
    f_a = tl.load(x + 4 * HEADS * D + tl.arange(0, RANK))
    q = _convolve(x, window, taps, lane, HEADS, D)
    k = _convolve(x, window, taps, HEADS * D + lane, HEADS, D)
    bias = tl.load(dt_bias + lane)
    slope = tl.load(rate + head)
    beta = tl.sigmoid(tl.load(x + 4 * HEADS * D + RANK + head).to(tl.float32))
    q *= tl.rsqrt(_dot(q, q) + L2_EPS) * (1.0 / tl.sqrt(D * 1.0))
    k *= tl.rsqrt(_dot(k, k) + L2_EPS)
    gamma = tl.sum(factors.to(tl.float32) * f_a.to(tl.float32)[None, :], axis=1)
    gamma = gamma.to(tl.bfloat16).to(tl.float32)
    decay = tl.exp(LOWER_BOUND * tl.sigmoid(slope * (gamma + bias)))
    return q, k, decay, beta


@triton.jit
def _advance(state, v, q, k, decay, beta, qk):
    """One step of a [BLOCK_V, D] tile of the state: the new tile, and the tile's outputs [BLOCK_V] fp32."""
    state = state * decay[None, :]
    delta = beta * (v - tl.sum(state * k[None, :], axis=1))
    o = tl.sum(state * q[None, :], axis=1) + delta * qk
    return state + delta[:, None] * k[None, :], o


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
def _load_window(x, window, head, HEADS: tl.constexpr, D: tl.constexpr):
    """The next window of one head's q, k and v channels, oldest first: [4, D] bf16 each, the fourth row unused."""
    WIDTH: tl.constexpr = 3 * HEADS * D
    part = tl.arange(0, 4)[:, None]
    channel = part * HEADS * D + head * D + tl.arange(0, D)[None, :]
    second = tl.load(window + WIDTH + channel, mask=part < 3)
    third = tl.load(window + 2 * WIDTH + channel, mask=part < 3)
    newest = tl.load(x + channel, mask=part < 3)
    return second, third, newest


@triton.jit
def _store_window(window, second, third, newest, head, HEADS: tl.constexpr, D: tl.constexpr):
    """Shifts one head's convolution state: drops the oldest tap, appends the raw projection."""
    WIDTH: tl.constexpr = 3 * HEADS * D
    part = tl.arange(0, 4)[:, None]
    channel = part * HEADS * D + head * D + tl.arange(0, D)[None, :]
    tl.store(window + channel, second, mask=part < 3)
    tl.store(window + WIDTH + channel, third, mask=part < 3)
    tl.store(window + 2 * WIDTH + channel, newest, mask=part < 3)


@triton.jit
def _dot(a, b):
    """sum(a b), one bit pattern in every lane. Written as a plain product, its rounding would be fused into the first
    exchange between lanes (x y + the neighbour's), each lane would end with another last bit, and since Triton 3.8 all
    of them store their sum to one place."""
    return tl.sum(tl.fma(a, b, 0.0))
