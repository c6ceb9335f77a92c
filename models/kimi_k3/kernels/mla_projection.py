"""The fused in-projection of an MLA layer: q latent | kv latent | shared key | output gate of x.

One product with one weight, which is the traffic: see linear.py for how it is packed, split and added.
"""

from . import linear, plain_linear
from .plain_linear import scratch

__all__ = ["launch", "prepare", "scratch"]


def prepare(ctx, static, axes, config):
    """packed: qkv_a_g in contiguous tiles."""
    return {"packed": linear.pack(static.qkv_a_g, config)}


def launch(ctx, buffers, axes, config):
    """Enqueues one launch, or two where K is split."""
    plain_linear.launch(buffers.x, buffers.packed, buffers.projected, buffers, axes, config)
