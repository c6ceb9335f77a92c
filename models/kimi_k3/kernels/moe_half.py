"""From router logits to what a rank sends: choice, experts and, where it is given, the shared expert's second product.

One persistent CUDA C++ launch (`cuda/experts.cu`), for the part `routing+experts` of the op graph. The choice of one row
is made by every block for itself; of more rows by a block each, and handed on at a barrier. With `shared_down` among the
static weights the launch also leaves partial = shared shared_down^T, whose weights need no choice and come first.
"""

import torch

from . import experts_cuda
from .experts_cuda import TOP, enqueue
from .mxfp4_stages import BLOCK_ROWS

EXPERTS = 896


def scratch(axes, config):
    """Those of the experts, ids [rows, k] int32 and weights [rows, k] fp32."""
    chosen = (axes["rows"], TOP)
    return {
        **experts_cuda.scratch(axes, config),
        "ids": (chosen, torch.int32),
        "weights": (chosen, torch.float32),
    }


def persistent(axes, config):
    """See the experts."""
    return experts_cuda.persistent(axes, config)


def prepare(ctx, static, axes, config):
    """Those of the experts; shared_stages where there is `shared_down`."""
    prepared = experts_cuda.prepare(ctx, static, axes, config)
    if hasattr(static, "shared_down"):
        prepared["shared_stages"] = fragments(static.shared_down)
    return prepared


def fragments(matrix):
    """[N, K] bf16 as [N / 16, 8 slices of k, K / 128, 32 lanes, 4] int32: 16 x 16 fragments, the first operands of MMAs.

    Lane (g, q) holds columns 4 q to 4 q + 3 of rows g and g + 8: (g, first two), (g + 8, first two), (g, last two),
    (g + 8, last two).
    """
    pairs = matrix.contiguous().view(torch.int32).unflatten(1, (experts_cuda.SLICES, -1, 4, 2))
    # Axes: block, row half, g, slice, fragment, q, pair.
    return pairs.unflatten(0, (-1, 2, BLOCK_ROWS // 2)).permute(0, 3, 4, 2, 5, 6, 1).flatten(3, 4).flatten(4).contiguous()


def launch(ctx, buffers, axes, config):
    """Enqueues one launch."""
    logits, shared = buffers.logits, getattr(buffers, "shared_stages", None)
    leading = [logits, logits.stride(0), buffers.correction_bias, buffers.ids, buffers.weights]
    channels = 0
    if shared is not None:
        channels = buffers.shared.shape[1]
        leading += [shared, buffers.shared, buffers.shared.stride(0), buffers.partial]
    enqueue(ctx, buffers, {**axes, "experts": EXPERTS}, config, leading, route=True, shared_channels=channels)
