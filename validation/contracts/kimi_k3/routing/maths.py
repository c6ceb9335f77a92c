"""Inputs, oracle, plain path and known mistakes of `routing`."""

import math

import torch
from torch import Tensor

from ..drawing import Distributions, Inputs, Mistakes, bf16, every_other, normal, read_densely, uniform
from ..step.precision import EXACT
from ..step.router import RENORMALISATION_EPS, choose

_APART = 2.0**-18


def _weights(contract, workload, random) -> Inputs:
    return {"correction_bias": 0.1 * normal(random, contract.experts(workload))}


def _inputs(contract, workload, random) -> Inputs:
    return {"logits": 1.5 * normal(random, workload.axes["rows"], contract.experts(workload))}


def separate(contract, inputs: Inputs) -> None:
    """Nudges logits, in place, until sums that decide are equal on purpose or well apart.

    Equal on purpose: the same logit (zeros of either sign alike) under the same bias.
    """
    logits, bias = inputs["logits"], inputs["correction_bias"].double()
    top = contract.architecture.moe.top_k + 1
    while True:
        sums = (logits.double().sigmoid() + bias).nan_to_num(nan=-math.inf)
        order = sums.sort(descending=True, stable=True)
        ids = order.indices[:, :top]
        values = order.values[:, :top]
        same = _equals_next(logits.gather(1, ids)) & _equals_next(bias[ids])
        clash = (values.diff().abs() < _APART) & ~same
        if not clash.any():
            return
        row, place = clash.nonzero(as_tuple=True)
        # Down, away from the cut: what decides above stays as it is.
        logits[row, ids[row, place + 1]] -= 2.0**-9


def _equals_next(x: Tensor) -> Tensor:
    return x[:, 1:] == x[:, :-1]


class _Settled(Distributions):
    """Every draw has sums apart, the typical one and a redrawn row included."""

    def draw(self, contract, workload, distribution, seed):
        drawn = super().draw(contract, workload, distribution, seed)
        separate(contract, drawn)
        return drawn


DISTRIBUTIONS = _Settled(_weights, _inputs, "logits of one to two units; biases that change some of the chosen")


@DISTRIBUTIONS("logits and biases from a handful of values: equal sums by the dozen, across the cut too; lower ids win")
def ties(inputs, contract, workload, random) -> None:
    logits = inputs["logits"]
    inputs["correction_bias"] = torch.randint(0, 2, inputs["correction_bias"].shape, generator=random) * 0.5
    logits.copy_(torch.randint(-2, 3, logits.shape, generator=random) * 0.75)


@DISTRIBUTIONS("the best logits are zeros of either sign under one bias: catches a sort over bit patterns")
def signed_zeros(inputs, contract, workload, random) -> None:
    logits = inputs["logits"]
    inputs["correction_bias"].zero_()
    logits.abs_().neg_().sub_(0.5)
    zeros = torch.rand(logits.shape, generator=random) < 3 * contract.architecture.moe.top_k / logits.shape[1]
    signs = torch.where(torch.rand(logits.shape, generator=random) < 0.5, -0.0, 0.0)
    logits.copy_(torch.where(zeros, signs, logits))


@DISTRIBUTIONS("biases as large as scores and of either sign: catches biases in the weights, or none in the selection")
def biased(inputs, contract, workload, random) -> None:
    inputs["correction_bias"] = uniform(random, -1, 1, *inputs["correction_bias"].shape)


@DISTRIBUTIONS("a third NaN, infinities, rows of fewer numbers than places: catches NaN that wins or repeats an id")
def not_finite(inputs, contract, workload, random) -> None:
    logits = inputs["logits"]
    kind = torch.rand(logits.shape, generator=random)
    logits[kind < 0.3] = math.nan
    logits[kind > 0.97] = -math.inf
    # One bias, as ties at infinity need, and below every score: a NaN that counts as zero would win.
    inputs["correction_bias"].fill_(-2)
    infinite = torch.randint(logits.shape[1], (len(logits), 3), generator=random)
    logits.scatter_(1, infinite, math.inf)
    logits[::3, 5:] = math.nan


@DISTRIBUTIONS("logits near -45 or minus infinity: scores near 1e-20 or zero, catches an epsilon left out or enlarged")
def vanishing(inputs, contract, workload, random) -> None:
    # Scores count for nothing, so the biases alone keep sums apart.
    experts = len(inputs["correction_bias"])
    inputs["correction_bias"] = torch.randperm(experts, generator=random) / experts
    inputs["logits"] -= 45
    inputs["logits"][1::2] = -math.inf


@DISTRIBUTIONS("logits closer than bf16 can tell at the cut: catches logits, scores or sums narrower than float32")
def crowded(inputs, contract, workload, random) -> None:
    inputs["correction_bias"] = 1e-3 * normal(random, *inputs["correction_bias"].shape)
    inputs["logits"] *= 2.0**-7
    inputs["logits"] += 1


@DISTRIBUTIONS("every other row is NaN, as padded rows may be: ids must still be distinct experts")
def padded(inputs, contract, workload, random) -> None:
    inputs["logits"][every_other(len(inputs["logits"]), random)] = math.nan


class Oracle:
    """The stages of the op in float64, each to be overridden by a mistake."""

    def __init__(self, contract, inputs, workload) -> None:
        self.moe = contract.architecture.moe
        self.inputs = inputs
        self.axes = workload.axes

    def __call__(self) -> dict[str, Tensor]:
        """ids int32, weights float64: [rows, k]."""
        ids, weights = choose(self.logits(), self.bias(), self.moe, EXACT)
        return {"ids": ids.int(), "weights": weights}

    def logits(self) -> Tensor:
        """[rows, E]."""
        return self.inputs["logits"].double()

    def bias(self) -> Tensor:
        """[E]."""
        return self.inputs["correction_bias"].double()


def plain(contract, inputs, workload) -> dict[str, Tensor]:
    """Row by row: the next best expert, sixteen times."""
    moe = contract.architecture.moe
    ids = torch.empty(workload.axes["rows"], moe.top_k, dtype=torch.int32)
    weights = torch.empty(ids.shape)
    for row, logits in enumerate(inputs["logits"]):
        scores = 1 / (1 + torch.exp(-logits))
        left = dict(enumerate((scores + inputs["correction_bias"]).tolist()))
        for place in range(moe.top_k):
            best = max(left, key=lambda expert: (-math.inf if math.isnan(left[expert]) else left[expert], -expert))
            ids[row, place] = best
            del left[best]
        chosen = scores[ids[row].long()]
        weights[row] = chosen / (chosen.sum() + RENORMALISATION_EPS) * moe.routed_scaling_factor
    return {"ids": ids, "weights": weights}


MISTAKES = Mistakes()


class _ByHand(Oracle):
    """The selection in the open."""

    def __call__(self):
        scores = self.scores(self.logits())
        sums = self.sums(scores)
        ids = self.order(torch.where(sums.isnan(), self.nan(), sums))[:, : self.moe.top_k]
        chosen = self.weighed(scores, sums).gather(1, ids)
        return {"ids": ids.int(), "weights": self.weights(chosen)}

    def scores(self, logits):
        return logits.sigmoid()

    def sums(self, scores):
        return scores + self.bias()

    def nan(self):
        return torch.tensor(-math.inf, dtype=torch.float64)

    def order(self, sums):
        return sums.sort(dim=1, descending=True, stable=True).indices

    def weighed(self, scores, sums):
        return scores

    def weights(self, chosen):
        return chosen / (chosen.sum(1, keepdim=True) + RENORMALISATION_EPS) * self.moe.routed_scaling_factor


@MISTAKES("equal scores go to the higher expert")
class _(_ByHand):
    def order(self, sums):
        return sums.shape[1] - 1 - sums.flip(1).sort(dim=1, descending=True, stable=True).indices


@MISTAKES("bit patterns of the logits are compared, so that -0 ranks below +0")
class _(_ByHand):
    def order(self, sums):
        negative = self.logits().signbit() & (self.logits() == 0)
        return torch.where(negative, sums - 1e-12, sums).sort(dim=1, descending=True, stable=True).indices


@MISTAKES("a NaN ranks first")
class _(_ByHand):
    def nan(self):
        return torch.tensor(math.inf, dtype=torch.float64)


@MISTAKES("a NaN counts as zero in the selection")
class _(_ByHand):
    def nan(self):
        return torch.tensor(0.0, dtype=torch.float64)


@MISTAKES("NaN never compares as larger: where only NaN are left, the first expert is chosen again and again")
class _(Oracle):
    def __call__(self):
        result = super().__call__()
        lost = self.logits().gather(1, result["ids"].long()).isnan()
        return result | {"ids": result["ids"].masked_fill(lost, 0)}


@MISTAKES("the bias is left out of the selection")
class _(_ByHand):
    def sums(self, scores):
        return scores


@MISTAKES("the weights contain the bias")
class _(_ByHand):
    def weighed(self, scores, sums):
        return sums


@MISTAKES("scores are a softmax, not sigmoids")
class _(_ByHand):
    def scores(self, logits):
        return logits.softmax(1)


@MISTAKES("logits are rounded to bfloat16")
class _(Oracle):
    def logits(self):
        return bf16(super().logits())


@MISTAKES("scores are rounded to bfloat16 before the selection")
class _(_ByHand):
    def scores(self, logits):
        return bf16(logits.sigmoid())


@MISTAKES("weights are rounded to bfloat16")
class _(_ByHand):
    def weights(self, chosen):
        return bf16(super().weights(chosen))


@MISTAKES("weights are not renormalised")
class _(_ByHand):
    def weights(self, chosen):
        return chosen


@MISTAKES("weights are renormalised without an epsilon: scores of zero become NaN")
class _(_ByHand):
    def weights(self, chosen):
        return chosen / chosen.sum(1, keepdim=True)


@MISTAKES("weights are renormalised over all experts")
class _(_ByHand):
    def weights(self, chosen):
        return chosen / self.scores(self.logits()).nansum(1, keepdim=True)


@MISTAKES("experts come worst first")
class _(Oracle):
    def __call__(self):
        return {name: tensor.flip(1) for name, tensor in super().__call__().items()}


@MISTAKES("experts come in the order of their ids")
class _(Oracle):
    def __call__(self):
        result = super().__call__()
        order = result["ids"].argsort(1)
        return {name: tensor.gather(1, order) for name, tensor in result.items()}


@MISTAKES("the last quarter of the experts is never looked at")
class _(_ByHand):
    def order(self, sums):
        return super().order(sums[:, : 3 * sums.shape[1] // 4])


@MISTAKES("rows of logits are addressed by their width, not by the row stride")
class _(Oracle):
    def logits(self):
        return read_densely(self.inputs["logits"], self.axes["logits_stride"]).double()
