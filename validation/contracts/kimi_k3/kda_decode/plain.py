"""The plain path of `kda_decode`: unfused float32 PyTorch, written from the layer's definition and not the oracle.

Rounds where the published model rounds: the gate projection to bfloat16, the finished output to bfloat16. Everything
between stays float32. Two passes over the state: read for the prediction, then again for the output.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..architecture import KdaShard, NormEps


def step(inputs: Mapping[str, Tensor], shard: KdaShard, eps: NormEps, gate_lower_bound: float) -> dict[str, Tensor]:
    """`conv_state` (bf16), `recurrent_state` (f32) and `out` (bf16) after one step; `inputs` stay as they are."""
    heads, dim, channels = shard.heads, shard.head_dim, shard.channels
    conv_state, recurrent_state = inputs["conv_state"].clone(), inputs["recurrent_state"].clone()
    out = torch.zeros(len(inputs["slots"]), channels, dtype=torch.bfloat16)
    sizes = [channels] * 4 + [shard.gate_rank, heads]
    for row, slot in enumerate(inputs["slots"].tolist()):
        if slot <= 0:
            continue
        q, k, v, g, f_a, b = inputs["projected"][row, : sum(sizes)].split(sizes)

        history = torch.cat([conv_state[slot], torch.cat([q, k, v])[None]])
        conv_state[slot] = history[1:]
        mixed = F.conv1d(history.T.float()[None], inputs["conv_weight"][:, None], groups=3 * channels)
        q, k, v = F.silu(mixed.view(3, heads, dim))

        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + eps.kda_l2) * dim**-0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + eps.kda_l2)
        gamma = F.linear(f_a.float(), inputs["f_b"].float()).bfloat16().float()
        rate = inputs["a_log"].exp().repeat_interleave(dim)
        decay = torch.exp(gate_lower_bound * torch.sigmoid(rate * (gamma + inputs["dt_bias"]))).view(heads, 1, dim)

        state = recurrent_state[slot]
        state.mul_(decay)
        error = v - torch.einsum("hvk,hk->hv", state, k)
        state += torch.einsum("hv,hk->hvk", torch.sigmoid(b.float())[:, None] * error, k)
        core = torch.einsum("hvk,hk->hv", state, q)

        normed = core * torch.rsqrt(core.square().mean(-1, keepdim=True) + eps.kda_output) * inputs["o_norm"].float()
        out[row] = (normed.flatten() * torch.sigmoid(g.float())).bfloat16()
    return {"conv_state": conv_state, "recurrent_state": recurrent_state, "out": out}
