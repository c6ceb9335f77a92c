"""Sixteen MXFP4 experts a row in one persistent CUDA C++ launch: `cuda/experts.cu` bound to a rank's sizes.

A block a multiprocessor, all at once (a cooperative launch). Each warp keeps a ring of `num_stages` stages of weights
under way, across row blocks, experts and the barrier between the two projections.

resident  A block adds a row's experts itself, one barrier. More than 16 rows are spread: shared memory holds no more.
spread    The second projection is cut evenly over all warps; products go through scratch, two barriers; with a choice before,
          one: a warp waits for the experts that it takes.

A configuration may have, beside `structure` and `num_stages`: `pdl` (false), a programmatic launch; with it `early` (1), stages of
each ring, fewer than all, that are asked for before the kernel in front has ended; `cooperative` (true).

The same kernel can choose the experts before, and stream the shared expert's second product meanwhile: `moe_half.py`.
"""

import torch

from .mxfp4_stages import CHUNK, gate_over_up, stages

HIDDEN = 7168
LATENT = 3584
TOP = 16
BETA = 4.0
LINEAR_BETA = 25.0
ROUTED_SCALING = 1.0
WARPS = 16
SLICES = 8
STRUCTURES = ("resident", "spread")
RESIDENT_ROWS = 16
FLOWING_ROWS = 8
"""Up to which a counter an expert pays: on an H200 a mixture of 8 rows gained 2.4 us of 98, one of 64 lost 6 of 399"""
UP_ROWS = 8
"""Rows of the latent up-projection that a block keeps"""


def scratch(axes, config):
    """activation [rows k, I] bf16; spread as well: outputs [rows k, L] fp32."""
    places = axes["rows"] * TOP
    shapes = {"activation": ((places, axes["channels"]), torch.bfloat16)}
    if spreads(axes, config):
        shapes["outputs"] = ((places, LATENT), torch.float32)
    return shapes


def persistent(axes, config):
    """barrier: what the grid's barrier counts, and whether a block ever gave up waiting."""
    return {"barrier": ((2,), torch.int32, 0, "epoch")}


def prepare(ctx, static, axes, config):
    """stages13, stages2: see mxfp4_stages.py."""
    w13 = [gate_over_up(matrix) for matrix in (static.w13_packed, static.w13_scale)]
    return {
        "stages13": stages(*w13, LATENT // CHUNK // SLICES),
        "stages2": stages(static.w2_packed, static.w2_scale, axes["channels"] // CHUNK),
    }


def launch(ctx, buffers, axes, config):
    """Enqueues one launch."""
    enqueue(ctx, buffers, axes, config, (buffers.ids, buffers.weights), route=False, shared_channels=0)


def enqueue(ctx, buffers, axes, config, leading, *, route, shared_channels, x=None, routed=None, up=None):
    """One launch with the arguments `leading` before those of the experts. `shared_channels`: 0 without the product.

    `up`: constants of the layer's end, where it comes in the same launch.
    """
    x, routed = buffers.x if x is None else x, buffers.routed if routed is None else routed
    spread, flowing = spreads(axes, config), route and flows(axes, config)
    pdl = config.get("pdl", False)
    constants = {
        "EXPERTS": axes["experts"], "TOP": TOP, "LATENT": LATENT, "CHANNELS": axes["channels"], "HIDDEN": HIDDEN,
        "SHARED_CHANNELS": shared_channels, "MOST_ROWS": _most_rows(axes["rows"]), "STAGES": config["num_stages"],
        "SPREAD": spread, "FLOWS": flowing, "ROUTE": route, "SHARED": shared_channels > 0, "BLOCKS": ctx.hardware.multiprocessors,
        "PDL": pdl, "EARLY": config.get("early", 1) if pdl else 0,
        "SITU_BETA": BETA, "SITU_LINEAR_BETA": LINEAR_BETA, "ROUTED_SCALING": ROUTED_SCALING, "UP": up is not None,
        **(up or {}),
    }  # fmt: skip
    shared_bytes = _shared_bytes(constants)
    kernel = ctx.cuda(
        "kernels/cuda/experts.cu", "experts", threads=32 * WARPS, cooperative=config.get("cooperative", True), pdl=pdl,
        constants={**constants, "SHARED_BYTES": shared_bytes},
    )  # fmt: skip
    kernel[(ctx.hardware.multiprocessors,)](
        *leading, buffers.stages13, buffers.stages2, x, x.stride(0), axes["rows"], buffers.activation,
        buffers.outputs if spread else buffers.activation, buffers.barrier, routed,
        *((buffers.ready,) if flowing else ()), shared_bytes=shared_bytes,
    )  # fmt: skip


def spreads(axes, config):
    """Whether products go through memory."""
    return config["structure"] == "spread" or axes["rows"] > RESIDENT_ROWS


def flows(axes, config):
    """Whether a second product waits for its own expert's first one alone, where the choice is in the same launch."""
    return spreads(axes, config) and axes["rows"] <= FLOWING_ROWS


def _most_rows(rows):
    """8, 16, 32 or 64: few variants for many row counts."""
    return 8 << max(0, (rows - 1) // 8).bit_length()


def _shared_bytes(constants):
    """What `struct Shared` takes at most; the kernel asserts it."""
    places, experts, spread = constants["MOST_ROWS"] * TOP, constants["EXPERTS"], constants["SPREAD"]
    stage = max(LATENT // CHUNK // SLICES, constants["CHANNELS"] // CHUNK) * 544
    ring = WARPS * constants["STAGES"] * (stage + 8)
    work = max(4 * max(experts, 2 * 8 * TOP) + 4 * WARPS + 8, 2 * WARPS * 16 * 8 * 4, 0 if spread else 2 * places * 64)
    lists = 128 + 4 * min(experts, places) + 2 * places + 4 * (TOP if spread else places)
    routing = 4 * experts + 16 * WARPS * TOP if constants["ROUTE"] else 0
    up = 2 * UP_ROWS * LATENT + 256 if constants["UP"] else 0
    return -(-(ring + work + lists + routing + up) // 128) * 128 + 128
