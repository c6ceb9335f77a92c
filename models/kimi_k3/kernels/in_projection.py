"""The fused in-projection of a KDA layer: q | k | v | gate | f_a | beta of x, as kda_decode reads them.

One product with one weight, which is the traffic: see linear.py for how it is packed, split and added.
"""

from . import linear, plain_linear
from .plain_linear import scratch

__all__ = ["launch", "prepare", "scratch"]


def prepare(ctx, static, axes, config):
    """packed: in_proj in contiguous tiles."""
    return {"packed": linear.pack(static.in_proj, config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch, or two where K is split."""
    plain_linear.launch(buffers.x, buffers.packed, buffers.projected, buffers, axes, config)
