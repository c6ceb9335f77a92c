"""Inputs, oracle, plain path and known mistakes of `mla_value`."""

import math

import torch
from torch import Tensor

from .. import linear_maths
from ..drawing import (
    Distributions,
    Inputs,
    every_other,
    integers,
    matrix,
    normal,
    read_densely,
    scales,
)
from ..linear_maths import common_mistakes


def _weights(contract, workload, random) -> Inputs:
    mla = contract.architecture.mla
    return {"up_value": matrix(random, workload.axes["heads"], mla.v_head_dim, mla.kv_lora_rank)}


def _inputs(contract, workload, random) -> Inputs:
    axes, mla = workload.axes, contract.architecture.mla
    projected = (2 * normal(random, axes["rows"], axes["width"])).bfloat16()
    projected[:, : axes["width"] - axes["heads"] * mla.v_head_dim] = math.nan
    return {
        "context": normal(random, axes["rows"], axes["heads"], mla.kv_lora_rank).bfloat16(),
        "projected": projected,
    }


DISTRIBUTIONS = Distributions(_weights, _inputs, "unit-scale contexts, gates of two units")


@DISTRIBUTIONS("small integers under open gates: sums are exact, catches any rounding but one to nearest even")
def exact(inputs, contract, workload, random) -> None:
    inputs["context"] = integers(random, 8, *inputs["context"].shape)
    inputs["up_value"] = integers(random, 8, *inputs["up_value"].shape)
    _gate(inputs, contract, workload).fill_(200)


@DISTRIBUTIONS("halves of the latent that cancel but for a sixteenth: catches partial sums narrower than float32")
def cancelling(inputs, contract, workload, random) -> None:
    half = inputs["context"].shape[2] // 2
    inputs["context"][..., half : 2 * half] = inputs["context"][..., :half]
    inputs["up_value"][..., half : 2 * half] = -inputs["up_value"][..., :half] * (1 + 2**-4)


@DISTRIBUTIONS("rows scaled from 2^-10 to 2^30: catches operands or results in half precision")
def wide_range(inputs, contract, workload, random) -> None:
    scale = scales(random, 10, workload.axes["rows"], 1, 1)
    scale[0] *= 2**20
    inputs["context"] *= scale


@DISTRIBUTIONS("gates from -60 to 60: catches a sigmoid that overflows or is left out")
def gates(inputs, contract, workload, random) -> None:
    _gate(inputs, contract, workload).mul_(30)


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    rows = every_other(workload.axes["rows"], random)
    inputs["context"][rows] = math.nan
    inputs["projected"][rows] = math.nan


def _gate(inputs: Inputs, contract, workload) -> Tensor:
    return inputs["projected"][:, -workload.axes["heads"] * contract.architecture.mla.v_head_dim :]


class Oracle(linear_maths.Oracle):
    """The stages of the op in float64, each to be overridden by a mistake. A product is that of one head."""

    @property
    def channels(self) -> int:
        """h * 128."""
        return self.axes["heads"] * self.contract.architecture.mla.v_head_dim

    def __call__(self) -> dict[str, Tensor]:
        """out: [rows, h * 128]."""
        heads = zip(self.x().unbind(1), self.inputs["up_value"].double(), strict=True)
        values = torch.cat([self.product(context, weight) for context, weight in heads], 1)
        return {"out": self.stored(values * self.opened(self.gate()))}

    def x(self) -> Tensor:
        """[rows, h, 512]."""
        return self.inputs["context"].double()

    def gate(self) -> Tensor:
        """[rows, h * 128]."""
        return self.projected()[:, -self.channels :]

    def projected(self) -> Tensor:
        """[rows, W]."""
        return self.inputs["projected"].double()

    def opened(self, gate: Tensor) -> Tensor:
        """What the values are multiplied by."""
        return gate.sigmoid()


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """A batched product that leaves bfloat16, then the gate."""
    values = torch.einsum("rhl,hvl->rhv", inputs["context"].float(), inputs["up_value"].float()).bfloat16()
    gate = _gate(inputs, contract, workload).float()
    return {"out": (values.flatten(1).float() / (1 + torch.exp(-gate))).bfloat16()}


MISTAKES = common_mistakes(Oracle, "dense")


@MISTAKES("the gate is left out")
class _(Oracle):
    def opened(self, gate):
        return torch.ones_like(gate)


@MISTAKES("the gate is applied without its sigmoid")
class _(Oracle):
    def opened(self, gate):
        return gate


@MISTAKES("the gate is SiLU instead of sigmoid")
class _(Oracle):
    def opened(self, gate):
        return gate * gate.sigmoid()


@MISTAKES("the sigmoid is computed as e^x / (1 + e^x): large gates become NaN")
class _(Oracle):
    def opened(self, gate):
        grown = gate.float().exp().double()
        return grown / (1 + grown)


@MISTAKES("the gate of the neighbouring head is used")
class _(Oracle):
    def gate(self):
        return super().gate().roll(self.channels // self.axes["heads"], 1)


@MISTAKES("the gate is read from the first columns of the projection")
class _(Oracle):
    def gate(self):
        return self.projected()[:, : self.channels]


@MISTAKES("the weight of the neighbouring head is used")
class _(Oracle):
    def x(self):
        return super().x().roll(1, 1)


@MISTAKES("rows of the projection are addressed by their width, not by the row stride")
class _(Oracle):
    def projected(self):
        return read_densely(self.inputs["projected"], self.axes["projected_stride"]).double()
