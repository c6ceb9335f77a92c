"""Gate and up-projection of a dense layer under SiTU, the bounded form of SwiGLU. Needs PyTorch alone."""

import torch


def exact(gate_up, x, *, beta, linear_beta):
    """activation [rows, n] in float64."""
    gate, up = torch.nn.functional.linear(x.double(), gate_up.double()).chunk(2, dim=1)
    return {"activation": beta * (gate / beta).tanh() * gate.sigmoid() * linear_beta * (up / linear_beta).tanh()}
