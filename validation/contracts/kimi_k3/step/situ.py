"""The activation of every MLP of the model: dense layer, shared expert, routed experts."""

import torch
from torch import Tensor

from ..architecture import Situ


def situ(gate: Tensor, up: Tensor, constants: Situ) -> Tensor:
    """beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta), elementwise, unrounded.

    Bounded by beta * linear_beta. For small arguments it is SwiGLU, which is what hides missing constants.
    """
    bounded_gate = constants.beta * torch.tanh(gate / constants.beta)
    bounded_up = constants.linear_beta * torch.tanh(up / constants.linear_beta)
    return bounded_gate * gate.sigmoid() * bounded_up
