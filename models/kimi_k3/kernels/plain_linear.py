"""Ops that are one product: out = x W^T, rounded once to bfloat16. See linear.py for how it runs."""

import triton
import triton.language as tl

from . import linear
from .linear import columns_of, product, rows_of


def scratch(axes, config):
    """Partial sums where K is split."""
    return linear.scratch(axes["rows"], axes["n"], config)


def launch(x, weight, out, buffers, axes, config):
    """Enqueues out [rows, N] = x [rows, K] W^T; `weight` packed by linear.pack."""
    sums = buffers.sums if config["splits"] > 1 else None
    linear.enqueue(_project, x, weight, sums, (out,), axes["rows"], axes["n"], axes["k"], config)


@triton.jit(do_not_specialize=["x_stride", "rows"])
def _project(
    x, weight, sums, out, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr, N_PADDED: tl.constexpr = 0,
):  # fmt: skip
    """One tile of the product, stored."""
    acc = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, N_PADDED, FORM)
    n, row = columns_of(BN), rows_of(R)
    tl.store(out + row * N + n, acc.to(tl.bfloat16), mask=(n < N) & (row < rows))
