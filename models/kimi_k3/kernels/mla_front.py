"""An MLA layer from its first AttnRes mix to what enters the mixture of experts: eight ops in one cooperative launch.

Of router and latent down-projection this rank computes its own rows, which all ranks gather.

Covers attn_res_norm, mla_projection, mla_query, mla_core, mla_value, o_proj_residual, attn_res_norm, front, and names
buffers as the contract of that part of the op graph does.

Read     attn_res_norm_1_stream, blocks, peers, page_table, lengths; the weights, all of which but the norms' `prepare`
         repacks; and of each row the cached rows within its length but the newest one.
Written  partial, o_proj_residual_stream, logits, latent, shared; the newest cached row of each live row. Nothing else.
Rounded  to bfloat16: the normed mixes, the normed query latent, q before its absorption, the absorbed query, softmax
         weights as they meet the values, the attended latent and the attention output, as operands of the products;
         the newest cached row; the outputs but `logits`. The projection, scores, sums of slices, values before the
         gate, the stream between the mixes, gate and up stay float32, where the published modules leave bfloat16.

Rows of length 0 or less are padding: their attention is zero, and none of their pages is read or written.

Serves any length whose pages the table has, pages of a multiple of 16 tokens, a bfloat16 cache (the contract has no
other), up to 16 heads a rank (TP 8 and 16 have 12 and 6). Slices of a row's tokens follow from its length and the
launch's number of rows alone. Eight rows at once: more are served eight by eight, each launch reading the weights
again. The kernel and what it waits for: cuda/mla_front.cu.
"""

import torch

from . import half_layer
from .half_layer import ROWS_AT_ONCE

Q_RANK = 1536
LATENT = 512
NOPE = 128
SHARED_KEY = 64
HEAD_DIM = 128
Q_EPS = 1e-6
KV_EPS = 1e-6
# 192^-0.5, and scores in powers of two: exp2 is the instruction that there is.
SCALE_LOG2 = 192**-0.5 * 1.4426950408889634

DEFAULT = {"slots": 11, "window": 2, "wide": 3, "query_blocks": 36, "least_units": 4, "pdl": False}
"""A config: slots of the ring, how many of them may be on their way at a time, and how many while blocks wait for
nothing but these, in in-projection and attention; blocks that multiply by q_b while the others have the output gate (of
132, 36 make shares about equal, of whole tiles or halves, at TP 8 and 16); the least of a slice, in units of 16 tokens;
whether the launch is programmatic, and streams weights before the kernel in front has ended."""

SOURCE = "kernels/cuda/mla_front.cu"
TOKENS = 16
# Cached rows of a unit, pairs 16 bytes apart from each other; a unit of weights is smaller.
SLOT_BYTES = TOKENS // 2 * (4 * (LATENT + SHARED_KEY) + 16)
SCRATCH_BYTES = 2 * ROWS_AT_ONCE * Q_RANK
# Beside the scratch: the newest cached row; of each row two scales, its length, its slices, a sum of each warp.
KEPT_BYTES = 2 * (LATENT + SHARED_KEY) + 4 * ROWS_AT_ONCE * (4 + half_layer.WARPS)


def scratch(axes, config):
    """What stages hand to each other behind barriers, for eight rows."""
    return half_layer.scratch()


def persistent(axes, config):
    """Arrivals at the grid barrier, the health word, and what carries its launch's number: that of the outer stages; of
    eight rows latents, gate, queries and values in two parts each and the absorbed queries; of each slice its sums."""
    heads = axes["mla_query_heads"]
    projected = Q_RANK + LATENT + SHARED_KEY + heads * HEAD_DIM
    a_row = 2 * (projected + heads * (NOPE + SHARED_KEY) + heads * HEAD_DIM) + heads * LATENT
    tagged = half_layer.MIX_CELLS + ROWS_AT_ONCE * a_row + half_layer.MAX_BLOCKS * heads * (LATENT + 2)
    return {"cells": ((half_layer.FIRST_TAGGED + tagged,), torch.int64, 0, "epoch")}


def prepare(ctx, static, axes, config):
    """Weights in units, up_key transposed head by head; what the outer stages need (half_layer.py)."""
    return half_layer.prepare(static) | {
        "in_proj_units": half_layer.units(static.qkv_a_g, 1),
        "q_b_units": half_layer.units(static.q_b, 1),
        "up_key_units": half_layer.units(static.up_key.transpose(1, 2).flatten(0, 1), 4),
        "up_value_units": half_layer.units(static.up_value.flatten(0, 1), 2),
    }


def launch(ctx, buffers, axes, config):
    """Enqueues one launch for every eight rows. Raises ValueError for pages that units of 16 tokens do not tile."""
    blocks, rows, page_size = ctx.hardware.multiprocessors, axes["rows"], axes["mla_query_page_size"]
    if page_size % TOKENS:
        raise ValueError(f"pages of {page_size} tokens: this kernel takes multiples of {TOKENS}")
    slots = config["slots"]
    shared_bytes = slots * (SLOT_BYTES + 16) + SCRATCH_BYTES + KEPT_BYTES + 16
    constants = {
        "BLOCKS": blocks, "SLOTS": slots, "WINDOW": config["window"], "WIDE": config["wide"],
        "SHARED_BYTES": shared_bytes, "HEADS": axes["mla_query_heads"], "PAGE": page_size,
        "QUERY_BLOCKS": config["query_blocks"], "LEAST_UNITS": config["least_units"], "CELLS": len(buffers.cells), "PDL": config["pdl"],
        "SCALE_LOG2": SCALE_LOG2, "Q_EPS": Q_EPS, "KV_EPS": KV_EPS,
    }  # fmt: skip
    stream, table, cache = buffers.attn_res_norm_1_stream, buffers.page_table, buffers.cache
    banks = half_layer.banks(buffers)
    for first in range(0, rows, ROWS_AT_ONCE):
        here = slice(first, min(first + ROWS_AT_ONCE, rows))
        kernel = ctx.cuda(
            SOURCE, "mla_front", threads=half_layer.THREADS, **half_layer.launched(config),
            constants=half_layer.constants(buffers, alone=here.stop - first == 1) | constants,
        )  # fmt: skip
        kernel[(blocks,)](
            # Where nothing is banked, the kernel reads none of the banks that it is given.
            stream[here], banks[:, here] if len(banks) else stream, table[here], buffers.lengths[here],
            buffers.peers[:, here], here.stop - first, len(banks), len(buffers.peers), bool(axes["restart"]),
            stream.stride(0), banks.stride(0), banks.stride(1), table.stride(0), *buffers.peers.stride()[:2],
            buffers.queries, buffers.attn_res_norm_1_out_norm, buffers.attn_res_norm_2_out_norm,
            buffers.in_proj_units, buffers.q_b_units, buffers.up_key_units, buffers.up_value_units,
            buffers.o_proj_units, buffers.front_units, buffers.q_a_norm, buffers.kv_a_norm,
            cache, cache.stride(0),
            buffers.partial[here], buffers.o_proj_residual_stream[here], buffers.logits[here], buffers.latent[here],
            buffers.shared[here],
            buffers.normed, buffers.others, buffers.bank_sums, buffers.bank_scalars, buffers.mix_squares,
            buffers.cells,
            shared_bytes=shared_bytes,
        )  # fmt: skip
