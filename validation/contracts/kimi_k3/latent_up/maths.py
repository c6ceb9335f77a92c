"""Inputs, oracle, plain path and known mistakes of `latent_up`."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import linear_maths
from ..drawing import (
    Distributions,
    Inputs,
    around_one,
    bf16,
    every_other,
    fp8,
    matrix,
    normal,
    read_densely,
    scales,
)
from ..linear_maths import common_mistakes
from ..step.norm import rms_norm
from ..step.precision import EXACT


def _weights(contract, workload, random) -> Inputs:
    latent = contract.architecture.moe.latent_size
    return {
        "latent_norm": around_one(random, latent),
        "latent_up": matrix(random, workload.axes["columns"], latent),
    }


def _inputs(contract, workload, random) -> Inputs:
    axes, latent = workload.axes, contract.architecture.moe.latent_size
    tp, rows, columns = axes["tp"], axes["rows"], axes["columns"]
    return {
        "routed": normal(random, tp, rows, latent).bfloat16(),
        "shared": (0.5 * normal(random, tp, rows, columns)).bfloat16(),
        "residual": (normal(random, rows, columns) + 0.25).bfloat16(),
    }


DISTRIBUTIONS = Distributions(_weights, _inputs, "unit-scale partial sums on every rank")


@DISTRIBUTIONS("routed sums near the root of the epsilon or zero: catches an epsilon left out or moved")
def near_zero(inputs, contract, workload, random) -> None:
    factor = torch.tensor([2.0**-9, 0, 2.0**-11])
    inputs["routed"] *= factor[torch.arange(workload.axes["rows"]) % 3][:, None].bfloat16()


@DISTRIBUTIONS("ranks that cancel each other in pairs, each 64 times the sum: catches a sum over ranks in bf16")
def cancelling_ranks(inputs, contract, workload, random) -> None:
    for name in ("routed", "shared"):
        ranks = inputs[name]
        pairs = len(ranks) // 2
        large = (64 * normal(random, *ranks[:pairs].shape)).bfloat16()
        ranks[: 2 * pairs : 2] += large
        ranks[1 : 2 * pairs : 2] -= large


@DISTRIBUTIONS("routed rows scaled from 2^-10 to 2^30, which the norm takes away: catches sums in half precision")
def wide_range(inputs, contract, workload, random) -> None:
    scale = scales(random, 10, workload.axes["rows"], 1)
    scale[0] *= 2**20
    inputs["routed"] *= scale


@DISTRIBUTIONS("the product alone counts, and its halves cancel but for a sixteenth: catches partial sums in bf16")
def cancelling(inputs, contract, workload, random) -> None:
    weight, latent = inputs["latent_up"], inputs["routed"].shape[2]
    half = latent // 2
    inputs["routed"][..., half : 2 * half] = inputs["routed"][..., :half]
    inputs["latent_norm"][half : 2 * half] = inputs["latent_norm"][:half]
    weight[:, half : 2 * half] = -weight[:, :half] * (1 + 2**-4)
    inputs["shared"].zero_()
    inputs["residual"].zero_()


@DISTRIBUTIONS("a large stream under a small update: catches an update lost in a rounding before the last")
def large_stream(inputs, contract, workload, random) -> None:
    inputs["residual"] *= 64


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    rows = every_other(workload.axes["rows"], random)
    inputs["routed"][:, rows] = math.nan
    inputs["shared"][:, rows] = math.nan
    inputs["residual"][rows] = math.nan


class Oracle(linear_maths.Oracle):
    """The stages of the op in float64, each to be overridden by a mistake."""

    def __call__(self) -> dict[str, Tensor]:
        """stream: [rows, c]."""
        normed = self.normed(self.ranks("routed"))
        total = self.added(self.product(normed, self.inputs["latent_up"].double()), self.summed(self.ranks("shared")))
        return {"stream": self.stored(total)}

    def ranks(self, name: str) -> Tensor:
        """[tp, rows, width]."""
        return self.inputs[name].double()

    def summed(self, ranks: Tensor) -> Tensor:
        """The sum over ranks."""
        return ranks.sum(0)

    def normed(self, ranks: Tensor) -> Tensor:
        """RMSNorm of the sum, [rows, L]."""
        return self.norm(self.summed(ranks))

    def norm(self, x: Tensor) -> Tensor:
        """RMSNorm."""
        return rms_norm(x, self.inputs["latent_norm"].double(), self.contract.architecture.eps.backbone, EXACT)

    def added(self, product: Tensor, shared: Tensor) -> Tensor:
        """The stream after this layer."""
        return product + shared + self.residual()

    def residual(self) -> Tensor:
        """[rows, c]."""
        return self.inputs["residual"].double()


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Module by module, each leaving bfloat16: two reductions, norm, product, two additions."""

    def reduced(name: str) -> Tensor:
        total = torch.zeros(inputs[name].shape[1:])
        for rank in inputs[name]:
            total += rank
        return total.bfloat16()

    routed = reduced("routed").float()
    mean = routed.pow(2).mean(1, keepdim=True)
    normalised = (routed * torch.rsqrt(mean + contract.architecture.eps.backbone)).bfloat16()
    normed = normalised * inputs["latent_norm"]
    product = F.linear(normed.float(), inputs["latent_up"].float()).bfloat16()
    return {"stream": inputs["residual"] + (product + reduced("shared"))}


MISTAKES = common_mistakes(Oracle, "half", "fp8", "dense")


@MISTAKES("the norm is taken of each rank's share before the sum")
class _(Oracle):
    def normed(self, ranks):
        return self.norm(ranks).sum(0)


@MISTAKES("the latent norm is left out")
class _(Oracle):
    def norm(self, x):
        return x


@MISTAKES("the norm's weight is left out")
class _(Oracle):
    def norm(self, x):
        return super().norm(x) / self.inputs["latent_norm"].double()


@MISTAKES("the norm's epsilon is left out")
class _(Oracle):
    def norm(self, x):
        return x / x.square().mean(-1, keepdim=True).sqrt() * self.inputs["latent_norm"].double()


@MISTAKES("the norm's epsilon is a thousand times too large")
class _(Oracle):
    def norm(self, x):
        return rms_norm(x, self.inputs["latent_norm"].double(), 1e3 * self.contract.architecture.eps.backbone, EXACT)


@MISTAKES("the shared expert's output is normalised together with the routed one's")
class _(Oracle):
    def added(self, product, shared):
        scale = shared.square().mean(-1, keepdim=True).sqrt()
        return super().added(product, shared / scale)


@MISTAKES("the shared expert is left out")
class _(Oracle):
    def added(self, product, shared):
        return product + self.residual()


@MISTAKES("the residual is left out")
class _(Oracle):
    def added(self, product, shared):
        return product + shared


@MISTAKES("the last rank's share is left out")
class _(Oracle):
    def summed(self, ranks):
        return ranks[:-1].sum(0)


@MISTAKES("the first rank's share is counted twice")
class _(Oracle):
    def summed(self, ranks):
        return ranks.sum(0) + ranks[0]


@MISTAKES("shares are added one by one in bfloat16")
class _(Oracle):
    def summed(self, ranks):
        total = torch.zeros_like(ranks[0])
        for rank in ranks:
            total = bf16(total + rank)
        return total


@MISTAKES("the sum over ranks passes through half precision")
class _(Oracle):
    def summed(self, ranks):
        return super().summed(ranks).half().double()


@MISTAKES("the normed row is quantised to FP8")
class _(Oracle):
    def norm(self, x):
        return fp8(super().norm(x))


@MISTAKES("rows of the residual are addressed by their width, not by the row stride")
class _(Oracle):
    def residual(self):
        return read_densely(self.inputs["residual"], self.axes["residual_stride"]).double()


@MISTAKES("the ranks' buffers are addressed as if rows lay side by side")
class _(Oracle):
    def ranks(self, name):
        ranks = self.inputs[name]
        return read_densely(ranks.flatten(0, 1), self.axes[f"{name}_row_stride"]).view(ranks.shape).double()
