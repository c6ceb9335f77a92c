"""Values of each head from its attended latent, times the output gate.

The heads' matrices, one under the other, are one weight whose every tile belongs to one head and multiplies that
head's latent: see linear.py for the product.
"""

import triton
import triton.language as tl

from . import linear
from .linear import columns_of, product, rows_of

LATENT = 512
HEAD_DIM = 128


def scratch(axes, config):
    """Partial sums where K is split."""
    return linear.scratch(axes["rows"], axes["heads"] * HEAD_DIM, config)


def prepare(ctx, static, axes, config):
    """packed: up_value, head after head, in contiguous tiles."""
    return {"packed": linear.pack(static.up_value.flatten(0, 1), config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch, or two where K is split."""
    columns = axes["heads"] * HEAD_DIM
    gate = buffers.projected[:, axes["width"] - columns :]
    context = buffers.context.flatten(1)
    sums = buffers.sums if config["splits"] > 1 else None
    linear.enqueue(
        _value, context, buffers.packed, sums, (gate, buffers.out, gate.stride(0) // 8),
        axes["rows"], columns, LATENT, config, PER_HEAD=HEAD_DIM,
    )  # fmt: skip


@triton.jit(do_not_specialize=["gate_stride", "x_stride", "rows"])
def _value(
    x, weight, sums, gate, out, gate_stride, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr, PER_HEAD: tl.constexpr, N_PADDED: tl.constexpr = 0,
):  # fmt: skip
    """One tile of one head's values."""
    n, row = columns_of(BN), rows_of(R)
    live = row < rows
    opened = tl.sigmoid(tl.load(gate + row * gate_stride * 8 + n, mask=live, other=0.0).to(tl.float32))
    value = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, N_PADDED, FORM, PER_HEAD)
    tl.store(out + row * N + n, (value * opened).to(tl.bfloat16), mask=live)
