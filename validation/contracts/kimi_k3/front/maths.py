"""Inputs, oracle, plain path and known mistakes of `front`."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..drawing import (
    Distributions,
    Inputs,
    bf16,
    every_other,
    fp8,
    integers,
    matrix,
    normal,
    scales,
)
from .. import linear_maths
from ..linear_maths import cancel, common_mistakes
from ..step.situ import situ

_NAMES = ("router", "latent_down", "shared_gate_up")


def _weights(contract, workload, random) -> Inputs:
    width, (experts, latent) = contract.architecture.hidden_size, contract.own(workload)
    return {
        "router": matrix(random, experts, width),
        "latent_down": matrix(random, latent, width),
        "shared_gate_up": matrix(random, 2 * workload.axes["shared"], width),
    }


def _inputs(contract, workload, random) -> Inputs:
    # Twice the unit: half of the gates leave the range where SiTU is SwiGLU.
    return {"x": (2 * normal(random, workload.axes["rows"], contract.architecture.hidden_size)).bfloat16()}


DISTRIBUTIONS = Distributions(_weights, _inputs, "activations of scale two: gates of a few units, where tanh bends")


@DISTRIBUTIONS("gates and up-projections of tens: catches bounds left out, exchanged, or put inside the sigmoid")
def saturated(inputs, contract, workload, random) -> None:
    inputs["shared_gate_up"] *= 8


@DISTRIBUTIONS("small integers, whose sums are exact in every order: catches any rounding but one to nearest even")
def exact(inputs, contract, workload, random) -> None:
    inputs["x"] = integers(random, 8, *inputs["x"].shape)
    for name in _NAMES:
        inputs[name] = integers(random, 8, *inputs[name].shape)
    inputs["shared_gate_up"] *= 2.0**-10


@DISTRIBUTIONS("halves of K that cancel but for a sixteenth: catches partial sums narrower than float32")
def cancelling(inputs, contract, workload, random) -> None:
    for name in _NAMES:
        cancel(inputs["x"], inputs[name])


@DISTRIBUTIONS("rows scaled from 2^-10 to 2^30: catches operands or results in half precision, and tanh of infinities")
def wide_range(inputs, contract, workload, random) -> None:
    inputs["x"] *= scales(random, 10, len(inputs["x"]), 1)
    inputs["x"][0] *= 2**20


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    inputs["x"][every_other(len(inputs["x"]), random)] = math.nan


class Oracle(linear_maths.Oracle):
    """The stages of the op in float64, each to be overridden by a mistake."""

    def __call__(self) -> dict[str, Tensor]:
        """logits, latent, shared."""
        x = self.x()
        gate, up = self.halves(self.product(x, self.weight("shared_gate_up")))
        return {
            "logits": self.logits(x),
            "latent": self.stored(self.product(x, self.weight("latent_down"))),
            "shared": self.stored(self.activation(gate, up)),
        }

    @property
    def constants(self):
        """SiTU's."""
        return self.contract.architecture.situ

    def weight(self, name: str) -> Tensor:
        """[N, d]."""
        return self.inputs[name].double()

    def logits(self, x: Tensor) -> Tensor:
        """[rows, E]."""
        return self.product(x, self.weight("router"))

    def halves(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """gate, up: [rows, S]."""
        return both.chunk(2, 1)

    def activation(self, gate: Tensor, up: Tensor) -> Tensor:
        """[rows, S]."""
        return situ(gate, up, self.constants)


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Module by module: router in float32; latent, gate, up and the activation in bfloat16."""
    constants, x = contract.architecture.situ, inputs["x"].float()
    size = workload.axes["shared"]
    gate = F.linear(x, inputs["shared_gate_up"][:size].float()).bfloat16().float()
    up = F.linear(x, inputs["shared_gate_up"][size:].float()).bfloat16().float()
    bounded = constants.beta * (gate / constants.beta).tanh() / (1 + (-gate).exp())
    return {
        "logits": F.linear(x, inputs["router"].float()),
        "latent": F.linear(x, inputs["latent_down"].float()).bfloat16(),
        "shared": (bounded * constants.linear_beta * (up / constants.linear_beta).tanh()).bfloat16(),
    }


MISTAKES = common_mistakes(Oracle, "fp8")


@MISTAKES("router logits are rounded to bfloat16")
class _(Oracle):
    def logits(self, x):
        return bf16(super().logits(x))


@MISTAKES("the router reads the input rounded to FP8")
class _(Oracle):
    def logits(self, x):
        return super().logits(fp8(x))


@MISTAKES("the sigmoid is applied to the logits here: routing applies it again")
class _(Oracle):
    def logits(self, x):
        return super().logits(x).sigmoid()


@MISTAKES("gate and up are exchanged")
class _(Oracle):
    def halves(self, both):
        return super().halves(both)[::-1]


@MISTAKES("rows of gate and up are taken as interleaved")
class _(Oracle):
    def halves(self, both):
        return both[:, 0::2], both[:, 1::2]


@MISTAKES("the activation is SwiGLU: SiTU's constants were not found")
class _(Oracle):
    def activation(self, gate, up):
        return gate * gate.sigmoid() * up


@MISTAKES("the up-projection is not bounded")
class _(Oracle):
    def activation(self, gate, up):
        return self.constants.beta * (gate / self.constants.beta).tanh() * gate.sigmoid() * up


@MISTAKES("the sigmoid is taken of the bounded gate")
class _(Oracle):
    def activation(self, gate, up):
        bounded = self.constants.beta * (gate / self.constants.beta).tanh()
        return situ(gate, up, self.constants) / gate.sigmoid() * bounded.sigmoid()


@MISTAKES("the bounds of gate and up are exchanged")
class _(Oracle):
    def activation(self, gate, up):
        swapped = type(self.constants)(beta=self.constants.linear_beta, linear_beta=self.constants.beta)
        return situ(gate, up, swapped)


@MISTAKES("tanh is computed from exponentials that overflow: large gates become NaN")
class _(Oracle):
    def activation(self, gate, up):
        grown = (2 * gate / self.constants.beta).float().exp().double()
        bounded = self.constants.beta * (grown - 1) / (grown + 1)
        return bounded * gate.sigmoid() * situ(torch.full_like(up, math.inf), up, self.constants) / self.constants.beta


