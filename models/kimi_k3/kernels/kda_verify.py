"""A verify step of Kimi Delta Attention: a few tokens of each request, and the state behind each of them.

Read     f_b, conv_weight (as `taps`, transposed), exp(a_log) (as `rate`), dt_bias, o_norm; projected, slots; and of
         each live request its committed page (entry 0 of its slots) of conv_state and recurrent_state.
Written  out, every row (zeros where entry 0 <= 0), and pages 1 to `tokens` of each live request. Nothing else: the
         committed page keeps every bit, so that any number of tokens, none included, can be accepted.
Rounded  the gate projection f_b f_a to bfloat16, because the published layer does, and the output. The rest is float32,
         from the first token to the last.

Tiling. One program a (request, head, tile of block_v value rows) goes through the tokens in order. Its tile of the state
stays in registers: it is read once, and written once for each token, which is all the traffic that there must be. So do
the convolution's windows, of which each token appends one projection. Key channels (q, k, decay) are computed by every
tile of a head anew; the pages that are written are never read, so tiles need not wait for each other.

block_v 128  One tile a head: the program has all of a head's outputs and normalises them. One launch.
smaller      Tiles leave the core's outputs, and a second launch normalises them.

Slot times page stride passes 2^31 elements in real pools, hence the 64-bit page offsets. Steps of one token: kda_decode.py
"""

import torch
import triton
import triton.language as tl

from .kda_decode import _advance, _dot, _load_gate

HEAD_DIM = 128
GATE_RANK = 128
GATE_LOWER_BOUND = -5.0
L2_EPS = 1e-6
NORM_EPS = 1e-5


def scratch(axes, config):
    """What tiles hand to the second launch: core outputs, [rows, heads, 128] fp32."""
    if config["block_v"] == HEAD_DIM:
        return {}
    return {"core": ((axes["rows"], axes["heads"], HEAD_DIM), torch.float32)}


def prepare(ctx, static, axes, config):
    """taps: conv_weight as [4, 3 p], so that neighbouring channels load together. rate: exp(a_log), [h]."""
    return {"taps": static.conv_weight.T.contiguous(), "rate": static.a_log.exp()}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch (one tile a head) or two."""
    rows, heads, tokens, block_v = axes["rows"], axes["heads"], axes["tokens"], config["block_v"]
    projected, slots, out = buffers.projected, buffers.slots, buffers.out
    conv_state, recurrent_state = buffers.conv_state, buffers.recurrent_state
    whole = block_v == HEAD_DIM
    # In units of 16 bytes, which the contract's strides are multiples of.
    x_stride, slots_stride = projected.stride(0) // 8, slots.stride(0)
    _tokens[(rows // tokens, heads, HEAD_DIM // block_v)](
        projected, slots, conv_state, recurrent_state, out if whole else buffers.core,
        buffers.f_b, buffers.taps, buffers.rate, buffers.dt_bias, buffers.o_norm,
        x_stride, slots_stride, conv_state.stride(0) // 8, recurrent_state.stride(0) // 4, tokens,
        HEADS=heads, D=HEAD_DIM, RANK=GATE_RANK, BLOCK_V=block_v, WHOLE=whole,
        LOWER_BOUND=GATE_LOWER_BOUND, L2_EPS=L2_EPS, NORM_EPS=NORM_EPS, num_warps=config["num_warps"],
    )  # fmt: skip
    if not whole:
        _normalise[(rows, heads)](
            projected, slots, buffers.core, out, buffers.o_norm, x_stride, slots_stride, tokens,
            HEADS=heads, D=HEAD_DIM, NORM_EPS=NORM_EPS, num_warps=4,
        )  # fmt: skip


@triton.jit(do_not_specialize=["projected_stride", "slots_stride", "conv_page", "state_page", "tokens"])
def _tokens(
    projected, slots, conv_state, recurrent_state, out, f_b, taps, rate, dt_bias, o_norm,
    projected_stride, slots_stride, conv_page, state_page, tokens,
    HEADS: tl.constexpr, D: tl.constexpr, RANK: tl.constexpr, BLOCK_V: tl.constexpr, WHOLE: tl.constexpr,
    LOWER_BOUND: tl.constexpr, L2_EPS: tl.constexpr, NORM_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (requests, heads, value tiles). `out`: the output where the tile is WHOLE, else the core's outputs."""
    P: tl.constexpr = HEADS * D
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = head * D + tl.arange(0, D)
    row_of_head = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    value = head * D + row_of_head
    table = slots + request * slots_stride
    first = request * tokens
    slot = tl.load(table).to(tl.int64)
    if slot <= 0:
        if WHOLE:
            for t in range(tokens):
                tl.store(out + (first + t) * P + value, tl.zeros([BLOCK_V], dtype=tl.bfloat16))
        return
    tile = row_of_head[:, None] * D + tl.arange(0, D)[None, :] + head * D * D
    state = tl.load(recurrent_state + slot * state_page * 4 + tile)
    window = conv_state + slot * conv_page * 8
    q0, q1, q2 = _load_window(window, key, P)
    k0, k1, k2 = _load_window(window, P + key, P)
    v0, v1, v2 = _load_window(window, 2 * P + value, P)
    bias = tl.load(dt_bias + key)
    slope = tl.load(rate + head)
    weight = tl.load(o_norm + row_of_head).to(tl.float32)
    for t in range(tokens):
        x = projected + (first + t) * projected_stride * 8
        q3, k3, v3 = tl.load(x + key), tl.load(x + P + key), tl.load(x + 2 * P + value)
        f_a = tl.load(x + 4 * P + tl.arange(0, RANK)).to(tl.float32)
        beta = tl.sigmoid(tl.load(x + 4 * P + RANK + head).to(tl.float32))
        q = _convolve(q0, q1, q2, q3, taps, key, P)
        k = _convolve(k0, k1, k2, k3, taps, P + key, P)
        v = _convolve(v0, v1, v2, v3, taps, 2 * P + value, P)
        q *= tl.rsqrt(_dot(q, q) + L2_EPS) * (1.0 / tl.sqrt(D * 1.0))
        k *= tl.rsqrt(_dot(k, k) + L2_EPS)
        gamma = tl.sum(_load_gate(f_b, head, D, RANK).to(tl.float32) * f_a[None, :], axis=1)
        gamma = gamma.to(tl.bfloat16).to(tl.float32)
        decay = tl.exp(LOWER_BOUND * tl.sigmoid(slope * (gamma + bias)))
        state, o = _advance(state, v, q, k, decay, beta, _dot(q, k))
        q0, q1, q2 = q1, q2, q3
        k0, k1, k2 = k1, k2, k3
        v0, v1, v2 = v1, v2, v3

        page = tl.load(table + 1 + t).to(tl.int64)
        tl.store(recurrent_state + page * state_page * 4 + tile, state)
        window = conv_state + page * conv_page * 8
        _store_window(window, q0, q1, q2, key, P, tl.program_id(2) == 0)
        _store_window(window, k0, k1, k2, P + key, P, tl.program_id(2) == 0)
        _store_window(window, v0, v1, v2, 2 * P + value, P, True)
        y = out + (first + t) * P + value
        if WHOLE:
            gate = tl.load(x + 3 * P + value).to(tl.float32)
            normed = o * tl.rsqrt(_dot(o, o) / D + NORM_EPS) * weight * tl.sigmoid(gate)
            tl.store(y, normed.to(tl.bfloat16))
        else:
            tl.store(y, o)


@triton.jit(do_not_specialize=["projected_stride", "slots_stride", "tokens"])
def _normalise(
    projected, slots, core, out, o_norm, projected_stride, slots_stride, tokens,
    HEADS: tl.constexpr, D: tl.constexpr, NORM_EPS: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads), after `_tokens`: the gated norm of what its tiles left."""
    row = tl.program_id(0).to(tl.int64)
    value = tl.program_id(1) * D + tl.arange(0, D)
    y = out + row * HEADS * D + value
    if tl.load(slots + row // tokens * slots_stride) <= 0:
        tl.store(y, tl.zeros([D], dtype=tl.bfloat16))
        return
    o = tl.load(core + row * HEADS * D + value)
    gate = tl.load(projected + row * projected_stride * 8 + 3 * HEADS * D + value).to(tl.float32)
    weight = tl.load(o_norm + tl.arange(0, D)).to(tl.float32)
    normed = o * tl.rsqrt(_dot(o, o) / D + NORM_EPS) * weight * tl.sigmoid(gate)
    tl.store(y, normed.to(tl.bfloat16))


@triton.jit
def _load_window(window, channel, P: tl.constexpr):
    """The three projections before the step for the given channels of q | k | v, oldest first: bf16."""
    WIDTH: tl.constexpr = 3 * P
    return tl.load(window + channel), tl.load(window + WIDTH + channel), tl.load(window + 2 * WIDTH + channel)


@triton.jit
def _store_window(window, oldest, second, newest, channel, P: tl.constexpr, mine):
    """The three projections behind a token, where they are `mine` to write."""
    WIDTH: tl.constexpr = 3 * P
    if mine:
        tl.store(window + channel, oldest)
        tl.store(window + WIDTH + channel, second)
        tl.store(window + 2 * WIDTH + channel, newest)


@triton.jit
def _convolve(oldest, second, third, newest, taps, channel, P: tl.constexpr):
    """Causal depthwise convolution of width 4 and SiLU for the given channels of q | k | v, fp32."""
    WIDTH: tl.constexpr = 3 * P
    u = oldest.to(tl.float32) * tl.load(taps + channel)
    u += second.to(tl.float32) * tl.load(taps + WIDTH + channel)
    u += third.to(tl.float32) * tl.load(taps + 2 * WIDTH + channel)
    u += newest.to(tl.float32) * tl.load(taps + 3 * WIDTH + channel)
    return u * tl.sigmoid(u)
