"""Inputs, oracle, plain path and known mistakes of a product x W^T, for all ops that contain one."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .drawing import (
    Distributions,
    Inputs,
    Mistakes,
    every_other,
    fp8,
    integers,
    matrix,
    normal,
    read_densely,
    scales,
    split_sum,
    truncated,
)


def _weights(contract, workload, random) -> Inputs:
    return {contract.weight_name: matrix(random, workload.axes["n"], workload.axes["k"])}


def _inputs(contract, workload, random) -> Inputs:
    return {"x": normal(random, workload.axes["rows"], workload.axes["k"]).bfloat16()}


DISTRIBUTIONS = Distributions(_weights, _inputs, "unit-scale activations and weights that keep the scale")


@DISTRIBUTIONS("small integers, whose sums are exact in every order: catches any rounding but one to nearest even")
def exact(inputs, contract, workload, random) -> None:
    name = contract.weight_name
    inputs["x"] = integers(random, 8, *inputs["x"].shape)
    inputs[name] = integers(random, 8, *inputs[name].shape)


@DISTRIBUTIONS("halves of K that cancel but for a sixteenth: catches partial sums narrower than float32")
def cancelling(inputs, contract, workload, random) -> None:
    cancel(inputs["x"], inputs[contract.weight_name])


@DISTRIBUTIONS("rows scaled from 2^-30 to 2^30: catches operands or results in half precision")
def wide_range(inputs, contract, workload, random) -> None:
    inputs["x"] *= scales(random, 10, len(inputs["x"]), 1) ** 3
    inputs["x"][0] *= 2**60


@DISTRIBUTIONS("a mean of one and a few channels 64 times larger: catches activations in eight bits")
def outliers(inputs, contract, workload, random) -> None:
    inputs["x"] += 1
    inputs["x"][:, torch.randint(inputs["x"].shape[1], (4,), generator=random)] *= 64


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    inputs["x"][every_other(len(inputs["x"]), random)] = math.nan


def cancel(x: Tensor, weight: Tensor) -> None:
    """In place: the second half of K is the first one again, under weights that take nearly all of it away."""
    half = x.shape[1] // 2
    x[:, half : 2 * half] = x[:, :half]
    weight[:, half : 2 * half] = -weight[:, :half] * (1 + 2**-4)


class Oracle:
    """The product in float64, with the stages that mistakes override."""

    def __init__(self, contract, inputs, workload) -> None:
        self.contract = contract
        self.inputs = inputs
        self.axes = workload.axes

    def __call__(self) -> dict[str, Tensor]:
        """[rows, N]."""
        weight = self.inputs[self.contract.weight_name].double()
        return {self.contract.out_name: self.stored(self.product(self.x(), weight))}

    def x(self) -> Tensor:
        """[rows, K]."""
        return self.inputs["x"].double()

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """x W^T."""
        return x @ weight.T

    def stored(self, out: Tensor) -> Tensor:
        """What is written."""
        return out


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """One float32 product, rounded once."""
    return {contract.out_name: F.linear(inputs["x"].float(), inputs[contract.weight_name].float()).bfloat16()}


class _Split:
    def product(self, x, weight):
        return split_sum(x, weight)


class _Half:
    def x(self):
        return super().x().half().double()


class _Fp8:
    def x(self):
        return fp8(super().x())


class _Truncated:
    def stored(self, out):
        return truncated(out)


class _Short:
    def product(self, x, weight):
        return super().product(x[:, :-32], weight[:, :-32])


class _Dense:
    def x(self):
        return read_densely(self.inputs["x"], self.axes["x_stride"]).double()


_COMMON = {
    "split": ("partial sums over slices of K are rounded to bfloat16 before they are added", _Split),
    "half": ("the input passes through half precision", _Half),
    "fp8": ("the input is quantised to FP8 with one scale a row", _Fp8),
    "truncated": ("results are truncated to bfloat16 instead of rounded to nearest even", _Truncated),
    "short": ("the last 32 columns of the weight are left out", _Short),
    "dense": ("rows of x are addressed by their width, not by the row stride", _Dense),
}


def common_mistakes(oracle: type, *without: str) -> Mistakes:
    """What can go wrong in any product, for an oracle with the stages `x()`, `product(x, weight)` and `stored(out)`."""
    return Mistakes(
        {what: type("_", (mixin, oracle), {}) for name, (what, mixin) in _COMMON.items() if name not in without}
    )


MISTAKES = common_mistakes(Oracle)


@MISTAKES("the first 16 columns of the weight are counted twice")
class _(Oracle):
    def product(self, x, weight):
        return x @ weight.T + x[:, :16] @ weight[:, :16].T


@MISTAKES("neighbouring rows of the weight are exchanged")
class _(Oracle):
    def product(self, x, weight):
        return super().product(x, weight).unflatten(1, (-1, 2)).flip(2).flatten(1)


@MISTAKES("every row of the batch gets the product of the first one")
class _(Oracle):
    def x(self):
        return super().x()[:1].expand(len(self.inputs["x"]), -1)
