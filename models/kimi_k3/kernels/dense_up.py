"""Gate and up-projection of the dense layer with its activation, in one launch.

Rows of gate and up alternate in the packed weight, so that both halves of a channel meet in one tile. See linear.py
for the product, whose weight is the traffic.
"""

import triton
import triton.language as tl

from . import linear
from .linear import product, rows_of
from .situ import interleaved, situ_of_pairs


def scratch(axes, config):
    """Partial sums where K is split."""
    return linear.scratch(axes["rows"], 2 * axes["channels"], config)


def prepare(ctx, static, axes, config):
    """packed: gate_up with its rows in pairs, in contiguous tiles."""
    return {"packed": linear.pack(interleaved(static.gate_up), config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch, or two where K is split."""
    x = buffers.x
    sums = buffers.sums if config["splits"] > 1 else None
    linear.enqueue(
        _up, x, buffers.packed, sums, (buffers.activation,), axes["rows"], 2 * axes["channels"], x.shape[1], config
    )


@triton.jit(do_not_specialize=["x_stride", "rows"])
def _up(
    x, weight, sums, activation, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr, N_PADDED: tl.constexpr = 0,
):  # fmt: skip
    """One tile of channels."""
    acc = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, N_PADDED, FORM)
    row = rows_of(R)
    channel = tl.program_id(0) * (BN // 2) + tl.arange(0, BN // 2)[:, None]
    value = situ_of_pairs(acc, BN, R)
    tl.store(activation + row * (N // 2) + channel, value.to(tl.bfloat16), mask=(channel < N // 2) & (row < rows))
