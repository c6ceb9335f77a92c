"""The top 16 of 896 experts of each row and their weights: exact, one program a row.

An order that has no ties makes selection exact whatever the network that sorts does: score plus bias as an integer
that orders as the float does, above the complement of the expert's number, in 64 bits. Equal sums go to the lower
number, NaN counts as minus infinity, and places behind the last expert lie below every expert.
"""

import triton
import triton.language as tl

EXPERTS = 896
TOP = 16


def launch(ctx, buffers, axes, config):
    """Enqueues one launch."""
    _route[(axes["rows"],)](
        buffers.logits, buffers.correction_bias, buffers.ids, buffers.weights, buffers.logits.stride(0) // 4,
        E=EXPERTS, K=TOP, num_warps=config["num_warps"],
    )  # fmt: skip


@triton.jit(do_not_specialize=["logits_stride"])
def _route(logits, correction_bias, ids, weights, logits_stride, E: tl.constexpr, K: tl.constexpr):
    """Grid (rows)."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_stride * 4
    expert = tl.arange(0, triton.next_power_of_2(E))
    inside = expert < E
    score = tl.sigmoid(tl.load(logits + expert, mask=inside, other=0.0))
    choice = score + tl.load(correction_bias + expert, mask=inside, other=0.0)
    choice = tl.where(choice == choice, choice, float("-inf"))
    # -0 and +0 are equal, their bits are not.
    bits = tl.where(choice == 0.0, 0.0, choice).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (ordered.to(tl.int64) << 32) | (E - 1 - expert).to(tl.int64)
    best = tl.topk(tl.where(inside, key, -0x7FFFFFFFFFFFFFFF), K)
    chosen = E - 1 - (best & 0xFFFFFFFF).to(tl.int32)
    # Read again rather than carried along: sixteen loads that hit the cache, and the same bits as above.
    own = tl.sigmoid(tl.load(logits + chosen))
    place = row * K + tl.arange(0, K)
    tl.store(ids + place, chosen)
    tl.store(weights + place, tl.math.div_rn(own, tl.sum(own) + 1e-20))
