"""The float64 oracle of `kda_decode`, one overridable method a stage, so that a known mistake is one override.

Notation: R live rows, h heads, D = 128 (head dimension, keys and values alike), p = h D channels of this rank.
Everything is float64 except the one rounding point of the contract: the decay gate's projection is rounded to
bfloat16, to nearest, ties to even, as a GEMM with a bfloat16 output leaves it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..architecture import KdaShard, NormEps


class Step(NamedTuple):
    """What the stages of one live step see."""

    projected: dict[str, Tensor]
    """q, k, v, g: [R, p]; f_a: [R, rank]; beta: [R, h]. float64 values of the bfloat16 projection."""
    window: Tensor
    """[R, width - 1, 3 p], float64: earlier projections of q | k | v, oldest first."""
    state: Tensor
    """[R, h, D (v), D (k)], float64."""
    static: dict[str, Tensor]
    """The static tensors in float64."""


class Oracle:
    """Computes the expected outputs and states; see `KdaDecode` for the tensors."""

    def __init__(self, shard: KdaShard, eps: NormEps, gate_lower_bound: float) -> None:
        self.shard = shard
        self.eps = eps
        self.gate_lower_bound = gate_lower_bound

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Expected `conv_state` (bf16, exact), `recurrent_state` (f64) and `out` (f64, zero in padded rows)."""
        live = self.live(inputs["slots"])
        slots = inputs["slots"][live].long()
        step = self.step(inputs)
        core, state = self.recurrence(step)
        out = torch.zeros(len(live), self.shard.channels, dtype=torch.float64)
        out[live] = self.output(step, core).flatten(1)
        recurrent_state = inputs["recurrent_state"].double()
        recurrent_state[slots] = state
        conv_state = inputs["conv_state"].clone()
        conv_state[slots] = self.shifted(step).to(conv_state.dtype)
        return {"conv_state": conv_state, "recurrent_state": recurrent_state, "out": out}

    def live(self, slots: Tensor) -> Tensor:
        """[rows] bool: rows that own a page. Slot 0 is the null page; negative slots mark padding."""
        return slots > 0

    def step(self, inputs: Mapping[str, Tensor]) -> Step:
        """The live rows' share of `inputs`, in float64."""
        live = self.live(inputs["slots"])
        slots = inputs["slots"][live].long()
        projected = inputs["projected"][live].double()
        return Step(
            projected={name: projected[:, columns] for name, columns in self.shard.columns.items()},
            window=inputs["conv_state"][slots].double(),
            state=inputs["recurrent_state"][slots].double(),
            static={name: inputs[name].double() for name in ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")},
        )

    def convolved(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v after the causal depthwise convolution over the last `width` projections, and SiLU: [R, h, D]."""
        newest = torch.cat([step.projected[name] for name in "qkv"], 1)
        taps = torch.cat([step.window, newest[:, None]], 1)
        mixed = torch.einsum("rtc,ct->rc", taps, self.taps(step.static["conv_weight"]))
        return tuple(part.unflatten(1, (self.shard.heads, -1)) for part in (mixed * mixed.sigmoid()).chunk(3, 1))

    def taps(self, weight: Tensor) -> Tensor:
        """[3 p, width]: the weight of each tap, oldest first."""
        return weight

    def shifted(self, step: Step) -> Tensor:
        """The next window, [R, width - 1, 3 p]: raw projections, the oldest dropped."""
        newest = torch.cat([step.projected[name] for name in "qkv"], 1)
        return torch.cat([step.window[:, 1:], newest[:, None]], 1)

    def normalised(self, x: Tensor) -> Tensor:
        """x / sqrt(sum(x^2) + eps) over the head's channels."""
        return x / (x.square().sum(-1, keepdim=True) + self.eps.kda_l2).sqrt()

    def scaled(self, query: Tensor) -> Tensor:
        """The query times D^-0.5."""
        return query * self.shard.head_dim**-0.5

    def gate(self, step: Step) -> Tensor:
        """gamma = bf16(f_b f_a), [R, h, D]: the contract's one intermediate rounding."""
        gamma = step.projected["f_a"] @ step.static["f_b"].T
        return self.round_gate(gamma).unflatten(1, (self.shard.heads, -1))

    def round_gate(self, gamma: Tensor) -> Tensor:
        """bfloat16 from float64 in one rounding: float32 in between rounds to odd first."""
        return to_bfloat16(gamma).double()

    def decay(self, step: Step) -> Tensor:
        """a = exp(lower_bound sigmoid(exp(A_log) (gamma + dt_bias))) in (e^lower_bound, 1), [R, h, D]."""
        bias = step.static["dt_bias"].unflatten(0, (self.shard.heads, -1))
        rate = step.static["a_log"].exp()[:, None]
        return (self.gate_lower_bound * torch.sigmoid(rate * (self.gate(step) + bias))).exp()

    def beta(self, step: Step) -> Tensor:
        """sigmoid(b), [R, h]: how much of the prediction error is written."""
        return step.projected["beta"].sigmoid()

    def recurrence(self, step: Step) -> tuple[Tensor, Tensor]:
        """The core output o [R, h, D] and the new state S [R, h, D, D], in the one-pass form.

        S' = S diag(a); delta = beta (v - S' k); S = S' + delta k^T; o = S q = S' q + delta (q . k).
        """
        query, key, value = self.convolved(step)
        query, key = self.scaled(self.normalised(query)), self.normalised(key)
        decayed = step.state * self.decay(step)[:, :, None, :]
        delta = self.beta(step)[..., None] * (value - matvec(self.read(step, decayed), key))
        core = self.core(decayed, delta, query, key)
        return core, decayed.add_(delta[..., :, None] * key[..., None, :])

    def core(self, decayed: Tensor, delta: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """o = S q of the updated state, from the decayed one: [R, h, D]."""
        return matvec(decayed, query) + delta * (query * key).sum(-1, keepdim=True)

    def read(self, step: Step, decayed: Tensor) -> Tensor:
        """The state that the prediction S k is read from."""
        return decayed

    def output(self, step: Step, core: Tensor) -> Tensor:
        """RMSNorm over each head's D values, times the shared weight, times the sigmoid of the gate: [R, h, D]."""
        return self.norm(core) * step.static["o_norm"] * self.output_gate(step)

    def norm(self, core: Tensor) -> Tensor:
        """core / sqrt(mean(core^2) + eps)."""
        return core / (core.square().mean(-1, keepdim=True) + self.eps.kda_output).sqrt()

    def output_gate(self, step: Step) -> Tensor:
        """sigmoid(g), [R, h, D]."""
        return step.projected["g"].sigmoid().unflatten(1, (self.shard.heads, -1))


def matvec(matrix: Tensor, vector: Tensor) -> Tensor:
    """[..., n, m] times [..., m]."""
    return (matrix @ vector[..., None])[..., 0]


def to_bfloat16(exact: Tensor) -> Tensor:
    """float64 -> bfloat16, to nearest even, without the double rounding of a cast through float32.

    Rounding to odd keeps in the last bit of float32 whether anything was lost, so the second rounding is right.
    """
    nearest = exact.float()
    bits = nearest.view(torch.int32)
    towards_zero = torch.where(nearest.double().abs() > exact.abs(), bits - 1, bits)
    odd = torch.where(nearest.double() == exact, bits, towards_zero | 1)
    return torch.where(exact.isfinite(), odd.view(torch.float32), nearest).bfloat16()
