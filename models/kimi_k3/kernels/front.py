"""Router logits, latent row and shared expert's activation of one row: three products of one input in one launch.

Of router and latent down-projection a rank has a part of the rows. The weights are packed as one matrix, router | latent
| gate and up in alternating rows, so that the small ones fill the machine together and pay for one start. A tile may
hold columns of two results, and stores of each what it has. Pairs begin at an even column: behind an odd number of others lies
a row of zeros. See linear.py for the product.
"""

import torch
import triton
import triton.language as tl

from . import linear
from .linear import columns_of, product, rows_of
from .situ import interleaved, situ_of_pairs

EXPERTS = 896
LATENT = 3584


def scratch(axes, config):
    """Partial sums where K is split."""
    return linear.scratch(axes["rows"], _columns(axes), config)


def prepare(ctx, static, axes, config):
    """packed: router | latent_down | shared_gate_up in pairs, in contiguous tiles."""
    pairs = interleaved(static.shared_gate_up)
    weight = torch.cat([static.router, static.latent_down, pairs.new_zeros(_gap(axes), pairs.shape[1]), pairs])
    return {"packed": linear.pack(weight, config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch, or two where K is split."""
    x, (experts, latent) = buffers.x, _own(axes)
    sums = buffers.sums if config["splits"] > 1 else None
    linear.enqueue(
        _front, x, buffers.packed, sums, (buffers.logits, buffers.latent, buffers.shared),
        axes["rows"], _columns(axes), x.shape[1], config, E=experts, L=latent,
    )  # fmt: skip


def _own(axes):
    return EXPERTS // axes["shards"], LATENT // axes["shards"]


def _gap(axes):
    return sum(_own(axes)) % 2


def _columns(axes):
    return sum(_own(axes)) + _gap(axes) + 2 * axes["shared"]


@triton.jit(do_not_specialize=["x_stride", "rows"])
def _front(
    x, weight, sums, logits, latent, shared, x_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr,
    SPLITS: tl.constexpr, FORM: tl.constexpr, E: tl.constexpr, L: tl.constexpr, N_PADDED: tl.constexpr = 0,
):  # fmt: skip
    """One tile of the three products."""
    acc = product(x, weight, sums, x_stride, rows, K, BN, BK, R, SPLITS, N_PADDED, FORM)
    n, row = columns_of(BN), rows_of(R)
    live = row < rows
    first = tl.program_id(0) * BN
    if first < E:
        tl.store(logits + row * E + n, acc, mask=live & (n < E))
    if (first + BN > E) & (first < E + L):
        tl.store(latent + row * L + (n - E), acc.to(tl.bfloat16), mask=live & (n >= E) & (n < E + L))
    START: tl.constexpr = (E + L + 1) // 2 * 2
    if first + BN > START:
        S: tl.constexpr = (N - START) // 2
        # Tiles begin at even columns, and so does this result.
        channel = (first - START) // 2 + tl.arange(0, BN // 2)[:, None]
        value = situ_of_pairs(acc, BN, R)
        tl.store(shared + row * S + channel, value.to(tl.bfloat16), mask=live & (channel >= 0) & (channel < S))
