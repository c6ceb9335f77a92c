"""From router logits to the end of a layer: choice, experts, the shared expert's second product, latent up-projection.

One persistent CUDA C++ launch (`cuda/experts.cu`) for three parts of the op graph:

routing+experts                        The choice of one row is made by every block for itself, unless products are spread;
                                       of more rows by a block each, and handed on at a barrier.
routing+experts+shared_down            Also leaves partial = shared shared_down^T, whose weights need no choice and come
                                       first.
routing+experts+shared_down+latent_up  Also sums what all ranks sent, norms it, and finishes this rank's channels of the
                                       stream, behind a barrier at which what this rank sends is there.
"""

import torch

from . import experts_cuda
from .experts_cuda import LATENT, TOP, UP_ROWS, enqueue
from .mxfp4_stages import BLOCK_ROWS

EXPERTS = 896
NORM_EPS = 1e-5


def scratch(axes, config):
    """Those of the experts, ids [rows, k] int32 and weights [rows, k] fp32; ready [experts] int32 where they flow; with
    the layer's end normed [rows, L] bf16."""
    chosen = (axes["rows"], TOP)
    shapes = {
        **experts_cuda.scratch(axes, config),
        "ids": (chosen, torch.int32),
        "weights": (chosen, torch.float32),
    }
    if experts_cuda.flows(axes, config):
        shapes["ready"] = ((min(EXPERTS, axes["rows"] * TOP),), torch.int32)
    if "columns" in axes:
        shapes["normed"] = ((axes["rows"], LATENT), torch.bfloat16)
    return shapes


def persistent(axes, config):
    """See the experts."""
    return experts_cuda.persistent(axes, config)


def prepare(ctx, static, axes, config):
    """Those of the experts; shared_stages where there is `shared_down`, up_rows where there is `latent_up`."""
    prepared = experts_cuda.prepare(ctx, static, axes, config)
    if hasattr(static, "shared_down"):
        prepared["shared_stages"] = fragments(static.shared_down)
    if hasattr(static, "latent_up"):
        prepared["up_rows"] = half_fragments(static.latent_up)
    return prepared


def fragments(matrix):
    """[N, K] bf16 as [N / 16, 8 slices of k, K / 128, 32 lanes, 4] int32: 16 x 16 fragments, the first operands of MMAs.

    Lane (g, q) holds columns 4 q to 4 q + 3 of rows g and g + 8: (g, first two), (g + 8, first two), (g, last two),
    (g + 8, last two).
    """
    pairs = matrix.contiguous().view(torch.int32).unflatten(1, (experts_cuda.SLICES, -1, 4, 2))
    # Axes: block, row half, g, slice, fragment, q, pair.
    return pairs.unflatten(0, (-1, 2, BLOCK_ROWS // 2)).permute(0, 3, 4, 2, 5, 6, 1).flatten(3, 4).flatten(4).contiguous()


def half_fragments(matrix):
    """[N, K] bf16 as [N / 8, K / 32, 32 lanes, 8]: eight rows, of which lane (g, q) holds columns 8 q to 8 q + 7 of row g."""
    return matrix.unflatten(0, (-1, UP_ROWS)).unflatten(2, (-1, 4, 8)).transpose(1, 2).flatten(2, 3).contiguous()


def launch(ctx, buffers, axes, config):
    """Enqueues one launch."""
    logits, shared = buffers.logits, getattr(buffers, "shared_stages", None)
    leading = [logits, logits.stride(0), buffers.correction_bias, buffers.ids, buffers.weights]
    channels, up = 0, None
    if shared is not None:
        activation = buffers.shared_down_x
        channels = activation.shape[1]
        leading += [shared, activation, activation.stride(0), buffers.partial]
    if hasattr(buffers, "up_rows"):
        routed, theirs, residual = buffers.latent_up_routed, buffers.shared, buffers.residual
        up = {"COLUMNS": axes["columns"], "RANKS": axes["tp"], "NORM_EPS": NORM_EPS}
        leading += [
            buffers.up_rows, buffers.latent_norm, routed, *routed.stride()[:2], theirs, *theirs.stride()[:2], residual,
            residual.stride(0), buffers.stream, buffers.normed,
        ]  # fmt: skip
    enqueue(
        ctx, buffers, {**axes, "experts": EXPERTS}, config, leading, route=True, shared_channels=channels,
        x=buffers.experts_x if shared is not None else buffers.x,
        routed=buffers.experts_routed if up else buffers.routed, up=up,
    )  # fmt: skip
