"""This rank's share of the shared expert's down-projection.

One product with one weight, which is the traffic: see linear.py for how it is packed, split and added.
"""

from . import linear, plain_linear
from .plain_linear import scratch

__all__ = ["launch", "prepare", "scratch"]


def prepare(ctx, static, axes, config):
    """packed: shared_down in contiguous tiles."""
    return {"packed": linear.pack(static.shared_down, config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch, or two where K is split."""
    plain_linear.launch(buffers.x, buffers.packed, buffers.partial, buffers, axes, config)
