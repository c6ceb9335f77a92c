"""Inputs, oracle, plain path and known mistakes of `dense_up`: those of `front` that concern the activation."""

import math

import torch.nn.functional as F
from torch import Tensor

from ..drawing import Distributions, Inputs, Mistakes, every_other, integers, matrix, normal, scales
from ..front import maths as front
from ..linear_maths import cancel


def _weights(contract, workload, random) -> Inputs:
    return {"gate_up": matrix(random, 2 * workload.axes["channels"], contract.architecture.hidden_size)}


def _inputs(contract, workload, random) -> Inputs:
    return {"x": (2 * normal(random, workload.axes["rows"], contract.architecture.hidden_size)).bfloat16()}


DISTRIBUTIONS = Distributions(_weights, _inputs, "activations of scale two: gates of a few units, where tanh bends")


@DISTRIBUTIONS("gates and up-projections of tens: catches bounds left out, exchanged, or put inside the sigmoid")
def saturated(inputs, contract, workload, random) -> None:
    inputs["gate_up"] *= 8


@DISTRIBUTIONS("small integers, whose sums are exact in every order: catches any rounding but one to nearest even")
def exact(inputs, contract, workload, random) -> None:
    inputs["x"] = integers(random, 8, *inputs["x"].shape)
    inputs["gate_up"] = integers(random, 8, *inputs["gate_up"].shape) * 2.0**-10


@DISTRIBUTIONS("halves of K that cancel but for a sixteenth: catches partial sums narrower than float32")
def cancelling(inputs, contract, workload, random) -> None:
    cancel(inputs["x"], inputs["gate_up"])


@DISTRIBUTIONS("rows scaled from 2^-10 to 2^30: catches operands or results in half precision, and tanh of infinities")
def wide_range(inputs, contract, workload, random) -> None:
    inputs["x"] *= scales(random, 10, len(inputs["x"]), 1)
    inputs["x"][0] *= 2**20


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    inputs["x"][every_other(len(inputs["x"]), random)] = math.nan


class Oracle(front.Oracle):
    """The activation alone."""

    def __call__(self) -> dict[str, Tensor]:
        """activation: [rows, n]."""
        gate, up = self.halves(self.product(self.x(), self.weight("gate_up")))
        return {"activation": self.stored(self.activation(gate, up))}


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Two products that leave bfloat16, then the activation in float32."""
    constants, x = contract.architecture.situ, inputs["x"].float()
    gate, up = (F.linear(x, half.float()).bfloat16().float() for half in inputs["gate_up"].chunk(2))
    bounded = constants.beta * (gate / constants.beta).tanh() / (1 + (-gate).exp())
    return {"activation": (bounded * constants.linear_beta * (up / constants.linear_beta).tanh()).bfloat16()}


MISTAKES = Mistakes(
    {
        description: type(variant.__name__, (variant, Oracle), {})
        for description, variant in front.MISTAKES.items()
        if "logits" not in vars(variant)
    }
)
