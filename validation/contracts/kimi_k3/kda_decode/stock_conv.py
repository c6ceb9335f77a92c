"""The paged convolution update of the stock path, in the form that serving stacks launch before the recurrence.

fla-core's own update keeps a dense window of four; serving keeps three taps in pages. Imports triton: GPU only.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def _update_kernel(
    projected,  # [rows, W] bf16, row stride projected_stride; the first 3 p columns are q | k | v
    window,  # [slots, 3, 3 p] bf16, page stride page_stride; read and shifted in place
    weight,  # [3 p, 4] fp32, oldest tap first
    slots,  # [rows] int32
    mixed,  # [3, rows, p] bf16
    projected_stride,
    page_stride,
    slots_stride,
    rows,
    p: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    page = window + tl.load(slots + row * slots_stride).to(tl.int64) * page_stride
    first = tl.load(page + channel)
    second = tl.load(page + 3 * p + channel)
    third = tl.load(page + 6 * p + channel)
    newest = tl.load(projected + row.to(tl.int64) * projected_stride + channel)
    u = first.to(tl.float32) * tl.load(weight + 4 * channel)
    u += second.to(tl.float32) * tl.load(weight + 4 * channel + 1)
    u += third.to(tl.float32) * tl.load(weight + 4 * channel + 2)
    u += newest.to(tl.float32) * tl.load(weight + 4 * channel + 3)
    u *= tl.sigmoid(u)
    tl.store(mixed + (channel // p * rows + row) * p + channel % p, u.to(tl.bfloat16))
    tl.store(page + channel, second)
    tl.store(page + 3 * p + channel, third)
    tl.store(page + 6 * p + channel, newest)


def update(projected: Tensor, window: Tensor, weight: Tensor, slots: Tensor) -> Tensor:
    """SiLU of the convolution for each row, [3 (q, k, v), rows, p] bf16; `window` is shifted in place."""
    rows, p = len(slots), len(weight) // 3
    mixed = torch.empty((3, rows, p), dtype=torch.bfloat16, device=projected.device)
    _update_kernel[(rows, 3 * p // _BLOCK)](
        projected,
        window,
        weight,
        slots,
        mixed,
        projected.stride(0),
        window.stride(0),
        slots.stride(0),
        rows,
        p,
        _BLOCK,
        num_warps=4,
    )
    return mixed
