"""What the launches of a layer's first half share, whatever attention lies inside: sizes, and how weights are packed.

In CUDA C++: cuda/half_layer.cuh, cuda/split_product.cuh.
"""

import torch

HIDDEN = 7168
NORM_EPS = 1e-5
SITU_BETA = 4.0
SITU_LINEAR_BETA = 25.0

ROWS_AT_ONCE = 8
WARPS = 16
# Registers move between groups of four warps. Of this one, a warp streams the weights, three add up peers' shares.
PRODUCERS = 4
THREADS = 32 * (WARPS + PRODUCERS)
UNIT_BYTES = 16384
MAX_BLOCKS = 160
FIRST_TAGGED = 16
MIX_CELLS = ROWS_AT_ONCE * (7 * 32 + HIDDEN) + MAX_BLOCKS * 128 + HIDDEN // 2 + 7
"""Tagged cells of the outer stages: mail among blocks of a row, the output projection, parts of the front's tiles; the first mix
of a row alone, two columns a cell, and its sums of squares."""


def mix_cells_of_sixteen(front):
    """The same for more rows, sixteen at once: of all `front` rows of the front's weight four parts, two for each half of k."""
    return 16 * (7 * 32 + HIDDEN + 4 * front)


def scratch(rows=ROWS_AT_ONCE):
    """What the outer stages hand to each other behind barriers, for `rows` rows at once."""
    return {
        "normed": ((2, rows, HIDDEN), torch.bfloat16),
        "others": ((rows, HIDDEN), torch.float32),
        "bank_sums": ((rows, HIDDEN), torch.float32),
        "bank_scalars": ((rows, 2), torch.float32),
        "mix_squares": ((rows, 7), torch.float32),
    }


def prepare(static):
    """queries [2, 7168] fp32: key norm times query of either mix; output projection and front in units."""
    gate, up = static.shared_gate_up.chunk(2)
    pairs = torch.cat([gate.unflatten(0, (-1, 8)), up.unflatten(0, (-1, 8))], 1).flatten(0, 1)
    return {
        "queries": torch.stack(
            [
                static.attn_res_norm_1_res_norm.float() * static.attn_res_norm_1_res_proj.float(),
                static.attn_res_norm_2_res_norm.float() * static.attn_res_norm_2_res_proj.float(),
            ]
        ),
        "o_proj_units": units(static.o_proj, 2),
        "front_units": units(_front(static.router, static.latent_down, pairs), 1),
    }


def constants(buffers, rows=ROWS_AT_ONCE, *, alone=False):
    """Macros of the outer stages, for a launch of `rows` rows at once: a row `alone` has an instance of its own."""
    return {
        "ROWS_AT_ONCE": rows, "ALONE": alone and rows == ROWS_AT_ONCE,
        "ROUTER": buffers.logits.shape[1], "LATENT": buffers.latent.shape[1], "SHARED": buffers.shared.shape[1],
        "NORM_EPS": NORM_EPS, "SITU_BETA": SITU_BETA, "SITU_LINEAR_BETA": SITU_LINEAR_BETA,
    }  # fmt: skip


def launched(config):
    """How: all blocks at once, unless a configuration has `cooperative` false; `pdl`: beside the end of the kernel in front."""
    return {"cooperative": config.get("cooperative", True), "pdl": config["pdl"]}


def banks(buffers):
    """The banked streams [n, rows, 7168]; in front of layer 0, where the contract has no such tensor, none."""
    return getattr(buffers, "blocks", buffers.attn_res_norm_1_stream[None][:0])


def units(weight, groups):
    """[N, K] bf16 as [N / (16 groups), 512 K / groups, 8192]: what one warp after the other multiplies, lane by lane.

    A unit is `groups` times 16 rows by 512 / groups of k. Warp w has 32 of k: two MMA steps of 16, in which lane (g, q)
    holds rows g and g + 8 and of k 8 q + 4 s to 8 q + 4 s + 3. So eight consecutive activations are a lane's operand of
    both steps.
    """
    sharers = WARPS // groups
    # tile, group, row half, g | chunk, sharer, q, step, register half, element
    parts = weight.reshape(-1, groups, 2, 8, weight.shape[1] // (32 * sharers), sharers, 4, 2, 2, 2)
    return parts.permute(0, 4, 1, 5, 7, 3, 6, 8, 2, 9).reshape(-1, UNIT_BYTES // 2).contiguous()


def _front(router, latent_down, pairs):
    """This rank's rows of the three, the pairs at a multiple of 16 behind zeros."""
    gap = pairs.new_zeros(-(len(router) + len(latent_down)) % 16, pairs.shape[1])
    return torch.cat([router, latent_down, gap, pairs])
