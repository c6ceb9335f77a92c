"""Inputs, oracle, plain path and known mistakes of `o_proj_residual`."""

import math

import torch.nn.functional as F
from torch import Tensor

from ..drawing import (
    Distributions,
    Inputs,
    bf16,
    every_other,
    integers,
    matrix,
    normal,
    read_densely,
    scales,
)
from .. import linear_maths
from ..linear_maths import cancel, common_mistakes


def _weights(contract, workload, random) -> Inputs:
    return {contract.weight_name: matrix(random, contract.architecture.hidden_size, workload.axes["k"])}


def _inputs(contract, workload, random) -> Inputs:
    axes, width = workload.axes, contract.architecture.hidden_size
    inputs = {
        "x": normal(random, axes["rows"], axes["k"]).bfloat16(),
        "peers": normal(random, axes["tp"] - 1, axes["rows"], width).bfloat16(),
    }
    if not axes["restart"]:
        inputs["residual"] = (2 * normal(random, axes["rows"], width) + 0.25).bfloat16()
    return inputs


DISTRIBUTIONS = Distributions(_weights, _inputs, "partial sums of unit scale on every rank, a stream of twice that")


@DISTRIBUTIONS("small integers, whose sums are exact in every order: catches any rounding but one to nearest even")
def exact(inputs, contract, workload, random) -> None:
    name = contract.weight_name
    inputs["x"] = integers(random, 8, *inputs["x"].shape)
    inputs[name] = integers(random, 8, *inputs[name].shape)
    # A partial sum stays below 256, an exact bf16 value, where its own rounding must not hide the last one's.
    inputs["x"][:, 2:] = 0
    for given in ("peers", "residual"):
        if given in inputs:
            inputs[given] = integers(random, 100, *inputs[given].shape)


@DISTRIBUTIONS("halves of K that cancel but for a sixteenth: catches partial sums narrower than float32")
def cancelling(inputs, contract, workload, random) -> None:
    cancel(inputs["x"], inputs[contract.weight_name])


@DISTRIBUTIONS("ranks that cancel each other in pairs, each 64 times the sum: catches a sum over ranks in bf16")
def cancelling_ranks(inputs, contract, workload, random) -> None:
    peers = inputs["peers"]
    pairs = len(peers) // 2
    large = 64 * normal(random, *peers[:pairs].shape)
    peers[: 2 * pairs : 2] += large.bfloat16()
    peers[1 : 2 * pairs : 2] -= large.bfloat16()


@DISTRIBUTIONS("rows scaled from 2^-30 to 2^30: catches operands, messages or results in half precision")
def wide_range(inputs, contract, workload, random) -> None:
    scale = scales(random, 10, workload.axes["rows"], 1) ** 3
    scale[0] *= 2**60
    for name in ("x", "peers", "residual"):
        if name in inputs:
            inputs[name] *= scale


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    rows = every_other(workload.axes["rows"], random)
    inputs["x"][rows] = math.nan
    inputs["peers"][:, rows] = math.nan
    if "residual" in inputs:
        inputs["residual"][rows] = math.nan


class Oracle(linear_maths.Oracle):
    """The stages of the op in float64, each to be overridden by a mistake."""

    def __call__(self) -> dict[str, Tensor]:
        """partial and stream: [rows, d]."""
        own = self.product(self.x(), self.inputs[self.contract.weight_name].double())
        return {"partial": self.stored(own), "stream": self.stored(self.added(self.reduced(own, self.peers())))}

    def peers(self) -> Tensor:
        """[tp - 1, rows, d]."""
        return self.inputs["peers"].double()

    def reduced(self, own: Tensor, peers: Tensor) -> Tensor:
        """The sum over ranks."""
        return own + peers.sum(0)

    def added(self, total: Tensor) -> Tensor:
        """The stream after this sublayer."""
        return total + self.residual() if "residual" in self.inputs else total

    def residual(self) -> Tensor:
        """[rows, d]."""
        return self.inputs["residual"].double()


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Three modules: a product, a reduction in rank order and an addition, each leaving bfloat16."""
    partial = F.linear(inputs["x"].float(), inputs[contract.weight_name].float()).bfloat16()
    total = partial.float()
    for peer in inputs["peers"]:
        total += peer
    stream = total.bfloat16()
    if "residual" in inputs:
        stream = stream + inputs["residual"]
    return {"partial": partial, "stream": stream}


MISTAKES = common_mistakes(Oracle)


@MISTAKES("the residual is left out")
class _(Oracle):
    def added(self, total):
        return total


@MISTAKES("every rank adds the residual before the sum")
class _(Oracle):
    def residual(self):
        return self.axes["tp"] * super().residual()


@MISTAKES("this rank's own share is left out of the sum")
class _(Oracle):
    def reduced(self, own, peers):
        return peers.sum(0)


@MISTAKES("the last rank's share is left out of the sum")
class _(Oracle):
    def reduced(self, own, peers):
        return own + peers[:-1].sum(0)


@MISTAKES("shares are added one by one in bfloat16")
class _(Oracle):
    def reduced(self, own, peers):
        total = bf16(own)
        for peer in peers:
            total = bf16(total + peer)
        return total


@MISTAKES("shares are averaged instead of summed")
class _(Oracle):
    def reduced(self, own, peers):
        return super().reduced(own, peers) / (len(peers) + 1)


@MISTAKES("the rank sends its share with the residual in it")
class _(Oracle):
    def __call__(self):
        result = super().__call__()
        return result | {"partial": self.added(result["partial"])}


@MISTAKES("rows of the residual are addressed by their width, not by the row stride")
class _(Oracle):
    def residual(self):
        return read_densely(self.inputs["residual"], self.axes["residual_stride"]).double()


@MISTAKES("the ranks' buffers are addressed as if rows lay side by side")
class _(Oracle):
    def peers(self):
        peers = self.inputs["peers"]
        return read_densely(peers.flatten(0, 1), self.axes["peer_row_stride"]).view(peers.shape).double()
