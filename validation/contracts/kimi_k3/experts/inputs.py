"""What the inputs of `experts` look like: one function a distribution, each there to catch something."""

import math

import torch

from ..drawing import Distributions, Inputs, every_other, normal
from ..weights.mxfp4 import GROUP, NAN_SCALE


def _weights(contract, workload, random) -> Inputs:
    shapes = {spec.name: spec.shape for spec in contract.tensors(workload)}

    def matrices(name: str) -> Inputs:
        packed, scale = shapes[f"{name}_packed"], shapes[f"{name}_scale"]
        # An element has a root mean square near 3; scales spread over three octaves.
        exponent = 127 - round(math.log2(3 * (GROUP * scale[-1]) ** 0.5))
        return {
            f"{name}_packed": _bytes(random, packed),
            f"{name}_scale": (_bytes(random, scale) % 3).add_(exponent - 1),
        }

    return matrices("w13") | matrices("w2")


def _bytes(random, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bytes [shape], eight at a time: all experts of a rank are two gigabytes."""
    count = math.prod(shape)
    words = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None, generator=random)
    return words.view(torch.uint8)[:count].view(shape)


def _inputs(contract, workload, random) -> Inputs:
    rows, experts, moe = workload.axes["rows"], workload.axes["experts"], contract.architecture.moe
    scores = torch.rand(rows, moe.top_k, generator=random) + 0.1
    return {
        "x": (2 * normal(random, rows, moe.latent_size)).bfloat16(),
        "ids": torch.rand(rows, experts, generator=random).topk(moe.top_k, 1).indices.int(),
        "weights": scores / scores.sum(1, keepdim=True),
    }


DISTRIBUTIONS = Distributions(_weights, _inputs, "every expert as likely as another, scales over three octaves")


@DISTRIBUTIONS("all rows on the same experts, in orders of their own: catches an expert that serves one row only")
def repeated(inputs, contract, workload, random) -> None:
    ids = inputs["ids"]
    chosen = ids[0].clone()
    for row in ids:
        row.copy_(chosen[torch.randperm(len(chosen), generator=random)])


@DISTRIBUTIONS("a few crowded experts, one for each row alone, most empty, first and last chosen: uneven routing")
def uneven(inputs, contract, workload, random) -> None:
    ids, experts = inputs["ids"], workload.axes["experts"]
    places = ids.shape[1]
    ids.copy_(torch.arange(places, dtype=torch.int32).expand_as(ids))
    ids[:, -1] = experts - 1 - (torch.arange(len(ids)) % (experts - places)).int()


@DISTRIBUTIONS("one weight near one, the others from 2^-20 down to zero: catches weights moved, left out or narrowed")
def lopsided(inputs, contract, workload, random) -> None:
    weights = inputs["weights"]
    weights.copy_(torch.rand(weights.shape, generator=random) * 2.0**-20)
    weights[:, 1] = 0
    place = torch.randint(2, weights.shape[1], (len(weights), 1), generator=random)
    weights.scatter_(1, place, 1 - 2.0**-14)


@DISTRIBUTIONS("scales of w2 from 2^-24 to 2^24 of the typical one: catches scales narrowed or of another group")
def wide_scales(inputs, contract, workload, random) -> None:
    scale = inputs["w2_scale"]
    scale += torch.randint(-24, 25, scale.shape, generator=random).to(torch.uint8)


@DISTRIBUTIONS("elements of 0 and 0.5 of either sign alone: catches E2M1's subnormal flushed to zero")
def subnormal(inputs, contract, workload, random) -> None:
    for name in ("w13", "w2"):
        inputs[f"{name}_packed"] &= 0x99
        inputs[f"{name}_scale"] += 2


@DISTRIBUTIONS("gates and up-projections of tens: catches SiTU's bounds left out or exchanged")
def saturated(inputs, contract, workload, random) -> None:
    inputs["w13_scale"] += 4


@DISTRIBUTIONS("activations at their bound of 100, one expert a row: only the last rounding rounds, catches truncation")
def exact(inputs, contract, workload, random) -> None:
    # Sums of thousands: both tanh are one.
    inputs["w13_packed"].fill_(0x77)
    inputs["w13_scale"].fill_(127)
    inputs["x"].fill_(1)
    weights = inputs["weights"].zero_()
    place = torch.randint(weights.shape[1], (len(weights), 1), generator=random)
    weights.scatter_(1, place, 1)


@DISTRIBUTIONS("twin experts of opposite sign that cancel but for a sixteenth: catches a sum over experts in bf16")
def twins(inputs, contract, workload, random) -> None:
    for name in ("w13_packed", "w13_scale", "w2_packed", "w2_scale"):
        inputs[name][1::2] = inputs[name][0::2] ^ (0x88 if name == "w2_packed" else 0)
    rows, places = inputs["ids"].shape
    pairs = 2 * torch.rand(rows, workload.axes["experts"] // 2, generator=random).topk(places // 2, 1).indices.int()
    inputs["ids"].copy_(torch.cat([pairs, pairs + 1], 1))
    half = inputs["weights"][:, : places // 2]
    inputs["weights"].copy_(torch.cat([half, half * (1 - 2**-4)], 1))


@DISTRIBUTIONS("NaN scales in every expert that no row chose: catches experts computed and multiplied by zero")
def unused_nan(inputs, contract, workload, random) -> None:
    chosen = inputs["ids"].unique().long()
    for name in ("w13_scale", "w2_scale"):
        kept = inputs[name][chosen].clone()
        inputs[name].fill_(NAN_SCALE)
        inputs[name][chosen] = kept


@DISTRIBUTIONS("a mean of one and a few channels 64 times larger: catches activations in eight bits")
def outliers(inputs, contract, workload, random) -> None:
    inputs["x"] += 1
    inputs["x"][:, torch.randint(inputs["x"].shape[1], (4,), generator=random)] *= 64


@DISTRIBUTIONS("every other row and its weights NaN, as padded rows may be: catches rows that reach into each other")
def padded(inputs, contract, workload, random) -> None:
    rows = every_other(workload.axes["rows"], random)
    inputs["x"][rows] = math.nan
    inputs["weights"][rows] = math.nan
