"""Attention residuals: a softmax mix of banked residual streams, and the RMSNorm behind it. Needs PyTorch alone."""

import torch


def exact(res_norm, res_proj, out_norm, stream, blocks, *, eps):
    """x [rows, d] in float64. Keys are normalised; what is mixed are the raw sources, the stream last."""
    sources = torch.cat([blocks, stream[None]]).double()
    query = res_norm.double() * res_proj.double()
    logits = (sources @ query) / (sources.square().mean(-1) + eps).sqrt()
    mixed = (logits.softmax(0)[..., None] * sources).sum(0)
    return {"x": mixed / (mixed.square().mean(-1, keepdim=True) + eps).sqrt() * out_norm.double()}
