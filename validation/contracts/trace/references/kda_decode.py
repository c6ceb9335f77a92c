"""One decode step of Kimi Delta Attention on one tensor-parallel rank, after the in-projection.

A row owns the page of the pools that its slot names; a slot <= 0 marks padding, whose output is zero and which touches
no page. Needs PyTorch alone. Everything is float64, but for the one rounding that the layer itself has: the decay
gate's projection is left in bfloat16.
"""

import torch


def exact(
    f_b, conv_weight, a_log, dt_bias, o_norm, projected, slots, conv_state, recurrent_state,
    *, l2_eps, norm_eps, gate_lower_bound,
):  # fmt: skip
    """The next pools and the output, in float64 (`conv_state` in its own type: it is only moved)."""
    heads, dim = recurrent_state.shape[1], recurrent_state.shape[2]
    channels, rank = f_b.shape
    rows = (slots > 0).nonzero().flatten()
    pages = slots[rows].long()
    x = projected[rows].double()
    q, k, v, gate, f_a, b = x.split([*4 * [channels], rank, x.shape[1] - 4 * channels - rank], dim=1)
    b = b[:, :heads]  # the columns behind are padding and may hold anything

    # Causal depthwise convolution over the last projections, SiLU.
    newest = projected[rows, None, : 3 * channels]
    window = torch.cat([conv_state[pages], newest], dim=1)
    mixed = (window.double() * conv_weight.double().T).sum(1)
    q, k, v = (mixed * mixed.sigmoid()).unflatten(1, (3, heads, dim)).unbind(1)
    q = q / (q.square().sum(-1, keepdim=True) + l2_eps).sqrt() * dim**-0.5
    k = k / (k.square().sum(-1, keepdim=True) + l2_eps).sqrt()

    # The decay of each key channel, and how much of the prediction error is written.
    gamma = nearest_bfloat16(f_a @ f_b.double().T).double() + dt_bias.double()
    rate = a_log.double().exp()[:, None]
    decay = (gate_lower_bound * torch.sigmoid(rate * gamma.unflatten(1, (heads, dim)))).exp()
    beta = b.sigmoid()[..., None]

    # S' = S diag(a); S = S' + beta (v - S' k) k^T; o = S q.  S is [value, key].
    state = recurrent_state[pages].double() * decay[:, :, None, :]
    error = beta * (v - torch.einsum("rhvk,rhk->rhv", state, k))
    state = state + error[..., None] * k[:, :, None, :]
    core = torch.einsum("rhvk,rhk->rhv", state, q)

    # RMSNorm of each head, times the sigmoid of the gate.
    normed = core / (core.square().mean(-1, keepdim=True) + norm_eps).sqrt() * o_norm.double()
    out = torch.zeros(len(slots), channels, dtype=torch.float64, device=projected.device)
    out[rows] = normed.flatten(1) * gate.sigmoid()
    new_conv_state, new_recurrent_state = conv_state.clone(), recurrent_state.double()
    new_conv_state[pages] = window[:, 1:]
    new_recurrent_state[pages] = state
    return {"conv_state": new_conv_state, "recurrent_state": new_recurrent_state, "out": out}


def nearest_bfloat16(x):
    """float64 to bfloat16 in one rounding; a cast would round twice, by way of float32."""
    narrow = x.float()
    bits = narrow.view(torch.int32)
    bits = torch.where(narrow.double().abs() > x.abs(), bits - 1, bits)
    bits = torch.where(bits.view(torch.float32).double() != x, bits | 1, bits)
    return torch.where(x.isfinite(), bits.view(torch.float32), narrow).bfloat16()
