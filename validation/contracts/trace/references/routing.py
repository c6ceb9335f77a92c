"""The best experts of each row, and their weights. Needs PyTorch alone."""

import math

import torch


def exact(correction_bias, logits, *, top_k, scaling, eps):
    """ids [rows, top_k] int32, best first; weights in float64. Equal sums go to the lower id, NaN comes last."""
    scores = logits.double().sigmoid()
    sums = scores + correction_bias.double()
    sums = torch.where(sums.isnan(), -math.inf, sums)
    ids = sums.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    chosen = scores.gather(1, ids)
    return {"ids": ids.int(), "weights": chosen / (chosen.sum(1, keepdim=True) + eps) * scaling}
