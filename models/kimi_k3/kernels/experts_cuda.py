"""Sixteen MXFP4 experts a row in one persistent CUDA C++ launch: `cuda/experts.cu` bound to a rank's sizes.

A block a multiprocessor, all at once (a cooperative launch). Each warp keeps a ring of `num_stages` stages of weights
under way, across row blocks, experts and the barrier between the two projections.

resident  Up to 16 rows: a block adds a row's experts itself, one barrier.
spread    The second projection is cut evenly over all warps; products go through scratch, two barriers.
"""

import torch

from .mxfp4_stages import CHUNK, gate_over_up, stages

LATENT = 3584
TOP = 16
BETA = 4.0
LINEAR_BETA = 25.0
WARPS = 16
SLICES = 8
STRUCTURES = ("resident", "spread")


def scratch(axes, config):
    """activation [rows k, I] bf16; spread as well: outputs [rows k, L] fp32."""
    places = axes["rows"] * TOP
    shapes = {"activation": ((places, axes["channels"]), torch.bfloat16)}
    if config["structure"] == "spread":
        shapes["outputs"] = ((places, LATENT), torch.float32)
    return shapes


def persistent(axes, config):
    """barrier: what the grid's barrier counts, whether a block ever gave up waiting, and work claimed so far."""
    return {"barrier": ((4,), torch.int32, 0, "epoch")}


def prepare(ctx, static, axes, config):
    """stages13, stages2: see mxfp4_stages.py."""
    w13 = [gate_over_up(matrix) for matrix in (static.w13_packed, static.w13_scale)]
    return {
        "stages13": stages(*w13, LATENT // CHUNK // SLICES),
        "stages2": stages(static.w2_packed, static.w2_scale, axes["channels"] // CHUNK),
    }


def launch(ctx, buffers, axes, config):
    """Enqueues one launch."""
    rows, spread = axes["rows"], config["structure"] == "spread"
    constants = {
        "EXPERTS": axes["experts"], "TOP": TOP, "LATENT": LATENT, "CHANNELS": axes["channels"],
        "MOST_ROWS": _most_rows(rows), "STAGES": config["num_stages"], "SPREAD": spread,
        "SITU_BETA": BETA, "SITU_LINEAR_BETA": LINEAR_BETA,
    }  # fmt: skip
    shared = _shared_bytes(constants)
    kernel = ctx.cuda(
        "kernels/cuda/experts.cu", "experts", threads=32 * WARPS, cooperative=True,
        constants={**constants, "SHARED_BYTES": shared},
    )  # fmt: skip
    kernel[(ctx.hardware.multiprocessors,)](
        buffers.stages13, buffers.stages2, buffers.x, buffers.x.stride(0), buffers.ids, buffers.weights, rows,
        buffers.activation, buffers.outputs if spread else buffers.activation, buffers.barrier, buffers.routed,
        shared_bytes=shared,
    )  # fmt: skip


def _most_rows(rows):
    """8, 16, 32 or 64: few variants for many row counts."""
    return 8 << max(0, (rows - 1) // 8).bit_length()


def _shared_bytes(constants):
    """What `struct Shared` takes at most; the kernel asserts it."""
    places, experts, spread = constants["MOST_ROWS"] * TOP, constants["EXPERTS"], constants["SPREAD"]
    stage = max(LATENT // CHUNK // SLICES, constants["CHANNELS"] // CHUNK) * 544
    ring = WARPS * constants["STAGES"] * (stage + 8)
    work = max(4 * experts, 2 * WARPS * 16 * 8 * 4, 0 if spread else 2 * places * 16 * 4)
    lists = 256 + 4 * WARPS * (1 + constants["STAGES"]) + 4 * min(experts, places) + 2 * places + (0 if spread else 4 * places)
    return -(-(ring + work + lists) // 128) * 128 + 128
