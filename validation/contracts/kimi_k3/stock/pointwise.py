"""Row-wise pieces between products: RMSNorm, SiTU, the two output gates. Each is one launch, rounding as published."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from ..architecture import Situ

_SITU_BLOCK = 256


@triton.jit
def _rms_norm_kernel(x, weight, out, eps, width: tl.constexpr, padded: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, padded)
    valid = column < width
    value = tl.load(x + row + column, valid, 0).to(tl.float32)
    normed = (value * tl.rsqrt(tl.sum(value * value) / width + eps)).to(tl.bfloat16).to(tl.float32)
    tl.store(out + row + column, (normed * tl.load(weight + column, valid, 0).to(tl.float32)).to(tl.bfloat16), valid)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of dense rows [rows, width] bf16."""
    out = torch.empty_like(x)
    width = x.shape[1]
    _rms_norm_kernel[(len(x),)](x, weight, out, eps, width, triton.next_power_of_2(width), num_warps=8)
    return out


@triton.jit
def _situ_kernel(gate_up, out, width, stride, factor, beta, linear_beta, block: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * block + tl.arange(0, block)
    valid = column < width
    gate = tl.load(gate_up + row * stride + column, valid, 0).to(tl.float32) * factor
    up = tl.load(gate_up + row * stride + width + column, valid, 0).to(tl.float32) * factor
    value = beta * libdevice.tanh(gate / beta) * tl.sigmoid(gate) * (linear_beta * libdevice.tanh(up / linear_beta))
    tl.store(out + row * width + column, value.to(tl.bfloat16), valid)


def situ(gate_up: Tensor, constants: Situ, *, factor: float = 1.0, out: Tensor | None = None) -> Tensor:
    """SiTU of rows gate | up times `factor`, [rows, 2 n] with any row stride -> dense rows [rows, n] bf16."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    if out is None:
        out = gate_up.new_empty(rows, width)
    _situ_kernel[(triton.cdiv(width, _SITU_BLOCK), rows)](
        gate_up,
        out,
        width,
        gate_up.stride(0),
        factor,
        constants.beta,
        constants.linear_beta,
        _SITU_BLOCK,
        num_warps=4,
    )
    return out


@triton.jit
def _gated_norm_kernel(
    core,  # [rows, heads, dim] float32, live rows side by side
    place,  # [rows] int32: where a row lies in `core`; -1: it gets zeros
    gate,  # [rows, heads * dim] bf16, row stride gate_stride
    weight,  # [dim] bf16
    out,  # [rows, heads * dim] bf16
    gate_stride,
    eps,
    heads: tl.constexpr,
    dim: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, dim)
    at = tl.load(place + row).to(tl.int64)
    live = at >= 0
    value = tl.load(core + (at * heads + head) * dim + channel, live & (channel < dim), 0)
    normed = value * tl.rsqrt(tl.sum(value * value) / dim + eps) * tl.load(weight + channel).to(tl.float32)
    normed *= tl.sigmoid(tl.load(gate + row * gate_stride + head * dim + channel).to(tl.float32))
    normed = tl.where(live, normed, 0.0)
    tl.store(out + (row * heads + head) * dim + channel, normed.to(tl.bfloat16))


def gated_norm(core: Tensor, place: Tensor, gate: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """RMSNorm per head times sigmoid(gate), rounded once, into `out` [rows, h D] bf16; zeros where `place` is -1.

    core [rows, h, D] float32, of which row i of the batch is row `place`[i]; gate [rows, h D] with any row stride.
    """
    rows, heads, dim = core.shape
    _gated_norm_kernel[(rows, heads)](core, place, gate, weight, out, gate.stride(0), eps, heads, dim, num_warps=1)


@triton.jit
def _gate_kernel(
    value,  # [heads, rows, dim] bf16
    gate,  # [rows, heads * dim] bf16, row stride gate_stride
    live,  # [rows] bool
    out,  # [rows, heads * dim] bf16
    rows,
    gate_stride,
    heads: tl.constexpr,
    dim: tl.constexpr,
    masked: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, dim)
    gated = tl.load(value + (head * rows + row) * dim + channel).to(tl.float32)
    gated *= tl.sigmoid(tl.load(gate + row * gate_stride + head * dim + channel).to(tl.float32))
    if masked:
        gated = tl.where(tl.load(live + row), gated, 0.0)
    tl.store(out + (row * heads + head) * dim + channel, gated.to(tl.bfloat16))


def gate(value: Tensor, gate: Tensor, live: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """value [h, rows, D] times sigmoid(gate [rows, h D], any row stride), as dense rows [rows, h D] bf16.

    Rows that are not `live` get zeros, whatever they hold.
    """
    heads, rows, dim = value.shape
    if out is None:
        out = value.new_empty(rows, heads * dim)
    _gate_kernel[(rows, heads)](
        value, gate, out if live is None else live, out, rows, gate.stride(0), heads, dim, live is not None, num_warps=1
    )
    return out
