"""Which experts a token goes to, and with what weight."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ....errors import UserError
from ..architecture import Moe
from .precision import Precision

RENORMALISATION_EPS = 1e-20
"""Added to the sum of the chosen scores; nothing else keeps a row of zero scores from dividing by zero."""


def router_logits(y: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    """y W^T, [rows, E], kept in the arithmetic type: the one product of the layer that is not rounded."""
    return F.linear(y, precision.wide(weight))


def choose(logits: Tensor, correction_bias: Tensor, moe: Moe, precision: Precision) -> tuple[Tensor, Tensor]:
    """Expert ids [rows, top_k] int64, best first, and their weights [rows, top_k].

    s = sigmoid(logits). The top_k largest s + bias are chosen; equal sums, +0 and -0 among them, go to the lower id,
    and NaN counts as -inf. The weights are those of s alone: s / (sum of the chosen s + 1e-20) times the scaling
    factor, so that a chosen NaN stays visible. Raises UserError for logits narrower than float32: rounding them to
    bfloat16 changes the chosen set of several tokens in a hundred.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        raise UserError(f"router logits are {logits.dtype}", "accumulate and keep them in float32")
    scores = precision.wide(logits).sigmoid()
    selection = scores + precision.wide(correction_bias)
    # Adding +0 turns -0 into +0: a sort over bit patterns would order the two.
    selection = torch.where(selection.isnan(), -math.inf, selection) + 0.0
    ids = selection.sort(dim=-1, descending=True, stable=True).indices[:, : moe.top_k]
    chosen = scores.gather(-1, ids)
    weights = chosen / (chosen.sum(-1, keepdim=True) + RENORMALISATION_EPS) * moe.routed_scaling_factor
    return ids, precision.round(weights, where=precision.round_routing_weights)
