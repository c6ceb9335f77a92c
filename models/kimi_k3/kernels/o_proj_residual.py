"""The output projection of either attention, and the residual stream behind it.

See residual.py for the sum over ranks and linear.py for the product, whose weight is the traffic.
"""

from . import linear, residual
from .residual import scratch

__all__ = ["launch", "prepare", "scratch"]


def prepare(ctx, static, axes, config):
    """packed: o_proj in contiguous tiles."""
    return {"packed": linear.pack(static.o_proj, config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch, or two where K is split."""
    residual.launch(buffers, axes, config)
