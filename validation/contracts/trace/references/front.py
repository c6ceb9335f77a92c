"""Router logits, latent and shared expert of a mixture-of-experts layer: three products. Needs PyTorch alone."""

import torch


def exact(router, latent_down, shared_gate_up, x, *, beta, linear_beta):
    """logits [rows, E], latent [rows, L], shared [rows, S], in float64."""
    x = x.double()
    gate, up = torch.nn.functional.linear(x, shared_gate_up.double()).chunk(2, dim=1)
    shared = beta * (gate / beta).tanh() * gate.sigmoid() * linear_beta * (up / linear_beta).tanh()
    logits, latent = (torch.nn.functional.linear(x, weight.double()) for weight in (router, latent_down))
    return {"logits": logits, "latent": latent, "shared": shared}
