"""A KDA layer from its first AttnRes mix to what enters the mixture of experts: six ops in one cooperative launch.

Of a step of one token a request, or of one that verifies several: with kda_verify in place of kda_decode. Then rows of a request
are its tokens in order, and its table names a page to read and one to write behind each token.

Of router and latent down-projection this rank computes its own rows, which all ranks gather.

Covers attn_res_norm, in_projection, kda_decode or kda_verify, o_proj_residual, attn_res_norm, front, and names buffers as the
contract of that part of the op graph does.

Read     attn_res_norm_1_stream, blocks, peers, slots; the weights, of which `prepare` repacks the three large ones; and
         of each live row its pages of conv_state and recurrent_state.
Written  partial, o_proj_residual_stream, logits, latent, shared; the two pages of each live row, or behind each token of a live
         request. Nothing else.
Rounded  to bfloat16: the normed mixes and the attention output, as operands of the products; the gate projection
         f_b f_a, because the published layer rounds it; what enters conv_state; the outputs but `logits`. The
         projection, the stream between the mixes, gate and up stay float32, where the published modules leave bfloat16.

One launch for up to sixteen rows; more are served sixteen by sixteen, each launch reading the weights again. The kernel has
instances for eight rows at once, of which a row alone has its own that waits for no barrier, and for sixteen: they read the same packed weights and round at the same points, but add the
float32 sums in another order, since two blocks of the second one share a tile by k. A batch is served by one of them throughout,
so a row's bits depend on nothing but the row and on whether the batch has more than eight. The kernel and what it waits for:
cuda/kda_front.cu.
"""

import torch

from . import half_layer
from .half_layer import UNIT_BYTES

EXPERTS = 896
LATENT = 3584
HEAD_DIM = 128
GATE_RANK = 128
GATE_LOWER_BOUND = -5.0
L2_EPS = 1e-6
OUTPUT_EPS = 1e-5

DEFAULT = {"slots": 13, "window": 2, "wide": 3, "pdl": False}
"""A config: slots of the ring, how many of them may be on their way at a time, and how many while blocks do nothing but the
in-projection; whether the launch is programmatic, and streams weights before the kernel in front has ended."""

SOURCE = "kernels/cuda/kda_front.cu"
ROWS_AT_ONCE = (8, 16)
SCRATCH_BYTES = 16384


def scratch(axes, config):
    """What stages hand to each other behind barriers, for the rows of a launch."""
    heads, rows = axes["heads"], rows_at_once(axes["rows"])
    return half_layer.scratch(rows) | {
        "gated": ((rows, heads * HEAD_DIM), torch.float32),
        "squares": ((rows, heads, 8), torch.float32),
    }


def persistent(axes, config):
    """Arrivals at the grid barrier, the health word, and what carries its launch's number: that of the outer stages, and
    of the rows at once the projection, in two parts for each span of k; of a row alone what the KDA step leaves."""
    rows = rows_at_once(axes["rows"])
    width = _rounded_up(4 * axes["heads"] * HEAD_DIM + GATE_RANK + axes["heads"])
    front = _rounded_up(EXPERTS // axes["shards"] + LATENT // axes["shards"]) + 2 * axes["shared"]
    mix = half_layer.MIX_CELLS if rows == half_layer.ROWS_AT_ONCE else half_layer.mix_cells_of_sixteen(front)
    step = axes["heads"] * (HEAD_DIM + 8) if rows == half_layer.ROWS_AT_ONCE else 0
    tagged = mix + rows // 4 * rows * width + step
    return {"cells": ((half_layer.FIRST_TAGGED + tagged,), torch.int64, 0, "epoch")}


def prepare(ctx, static, axes, config):
    """rate [h] fp32: exp(a_log); in_proj in units; what the outer stages need (half_layer.py)."""
    return half_layer.prepare(static) | {
        "rate": static.a_log.exp(),
        "in_proj_units": half_layer.units(static.in_proj, 1),
    }


def launch(ctx, buffers, axes, config):
    """Enqueues one launch for up to eight rows, or one for every sixteen."""
    blocks, heads, rows = ctx.hardware.multiprocessors, axes["heads"], axes["rows"]
    # Of a step to verify whole requests are served together.
    tokens = axes.get("tokens", 0)
    of_request = max(tokens, 1)
    slots, instance = config["slots"], rows_at_once(rows)
    at_once = instance // of_request * of_request
    shared_bytes = slots * (UNIT_BYTES + 16) + SCRATCH_BYTES + 16
    constants = {
        "BLOCKS": blocks, "SLOTS": slots, "WINDOW": config["window"], "WIDE": config["wide"],
        "SHARED_BYTES": shared_bytes, "HEADS": heads, "CELLS": len(buffers.cells), "PDL": config["pdl"],
        "L2_EPS": L2_EPS, "OUTPUT_EPS": OUTPUT_EPS, "GATE_LOWER_BOUND": GATE_LOWER_BOUND,
    }  # fmt: skip
    stream, slots_of = buffers.attn_res_norm_1_stream, buffers.slots
    banks = half_layer.banks(buffers)
    for first in range(0, rows, at_once):
        here = slice(first, min(first + at_once, rows))
        count = here.stop - first
        table = slots_of[first // of_request : here.stop // of_request]
        kernel = ctx.cuda(
            SOURCE, "kda_front", threads=half_layer.THREADS, **half_layer.launched(config),
            constants=half_layer.constants(buffers, instance, alone=count == 1 and not tokens) | constants
            | {"TOKENS": tokens, "SPLIT": split(count // of_request * heads, blocks)},
        )  # fmt: skip
        kernel[(blocks,)](
            # Where nothing is banked, the kernel reads none of the banks that it is given.
            stream[here], banks[:, here] if len(banks) else stream, table, buffers.peers[:, here],
            count, len(banks), len(buffers.peers), bool(axes["restart"]),
            stream.stride(0), banks.stride(0), banks.stride(1), slots_of.stride(0), *buffers.peers.stride()[:2],
            buffers.queries, buffers.attn_res_norm_1_out_norm, buffers.attn_res_norm_2_out_norm,
            buffers.in_proj_units, buffers.o_proj_units, buffers.front_units,
            buffers.f_b, buffers.conv_weight, buffers.rate, buffers.dt_bias, buffers.o_norm,
            buffers.conv_state, buffers.recurrent_state,
            buffers.conv_state.stride(0), buffers.recurrent_state.stride(0),
            buffers.partial[here], buffers.o_proj_residual_stream[here], buffers.logits[here], buffers.latent[here],
            buffers.shared[here],
            buffers.normed, buffers.gated, buffers.squares, buffers.others,
            buffers.bank_sums, buffers.bank_scalars, buffers.mix_squares, buffers.cells,
            shared_bytes=shared_bytes,
        )  # fmt: skip


def rows_at_once(rows):
    """Rows of each launch of a batch: the kernel's instance. It is no choice of a config: weights are packed once a config."""
    return next((most for most in ROWS_AT_ONCE if rows <= most), ROWS_AT_ONCE[-1])


def split(heads_and_rows, blocks):
    """Blocks that share the value rows of one head: as many as there are blocks for, eight at most. One takes several heads where
    there are more of them than blocks."""
    return next(parts for parts in (8, 4, 2, 1) if parts * heads_and_rows <= blocks or parts == 1)


def _rounded_up(width):
    return -(-width // 16) * 16
