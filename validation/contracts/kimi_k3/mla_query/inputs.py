"""What the inputs of `mla_query` look like: one function a distribution, each there to catch something."""

import math

import torch

from ..drawing import Distributions, Inputs, around_one, every_other, matrix, normal, scales
from ..paged_maths import forget_entries, paged_inputs


def _weights(contract, workload, random) -> Inputs:
    mla, heads = contract.architecture.mla, workload.axes["heads"]
    return {
        "q_a_norm": around_one(random, mla.q_lora_rank),
        "kv_a_norm": around_one(random, mla.kv_lora_rank),
        "q_b": matrix(random, heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank),
        "up_key": (normal(random, heads, mla.qk_nope_head_dim, mla.kv_lora_rank) * 0.1).bfloat16(),
    }


def _inputs(contract, workload, random) -> Inputs:
    axes, mla = workload.axes, contract.architecture.mla
    projected = (2 * normal(random, axes["rows"], axes["width"])).bfloat16()
    projected[:, mla.q_lora_rank + contract.latent_width :] = math.nan
    return {"projected": projected, **paged_inputs(contract, workload, random)}


DISTRIBUTIONS = Distributions(_weights, _inputs, "projections of two units; the newest token anywhere in its page")


@DISTRIBUTIONS("lengths of one, a page, one more, two pages: catches the newest row written into the wrong page")
def boundaries(inputs, contract, workload, random) -> None:
    size, most = workload.axes["page_size"], workload.axes["page_size"] * workload.axes["table_width"]
    lengths = torch.tensor([1, size, size + 1, most]).clamp(1, most)
    shift = int(torch.randint(len(lengths), (), generator=random))
    wanted = lengths[(torch.arange(workload.axes["rows"]) + shift) % len(lengths)]
    # A longer row needs table entries that it has forgotten.
    inputs["lengths"].copy_(torch.minimum(inputs["lengths"], wanted))
    forget_entries(inputs)


@DISTRIBUTIONS("latents of zeros and latents near the root of their epsilon: catches another epsilon, or none")
def near_zero(inputs, contract, workload, random) -> None:
    factor = torch.tensor([2.0**-11, 0, 2.0**-12])[torch.arange(workload.axes["rows"]) % 3][:, None].bfloat16()
    inputs["projected"][:, : _latent_end(contract)] *= factor


@DISTRIBUTIONS("halves of the query latent that cancel but for a sixteenth: catches partial sums narrower than float32")
def cancelling(inputs, contract, workload, random) -> None:
    half = contract.architecture.mla.q_lora_rank // 2
    inputs["projected"][:, half : 2 * half] = inputs["projected"][:, :half]
    inputs["q_a_norm"][half : 2 * half] = inputs["q_a_norm"][:half]
    inputs["q_b"][:, half : 2 * half] = -inputs["q_b"][:, :half] * (1 + 2**-4)


@DISTRIBUTIONS("rows scaled from 2^-10 to 2^30, shared keys included: catches half-precision squares and values")
def wide_range(inputs, contract, workload, random) -> None:
    scale = scales(random, 10, workload.axes["rows"], 1)
    scale[0] *= 2**20
    inputs["projected"] *= scale


@DISTRIBUTIONS("every other row of length 0, its projection NaN: catches padding that is read, cached, or let through")
def padded(inputs, contract, workload, random) -> None:
    rows = every_other(workload.axes["rows"], random)
    inputs["lengths"][rows] = 0
    inputs["projected"][rows] = math.nan
    forget_entries(inputs)


def _latent_end(contract) -> int:
    return contract.architecture.mla.q_lora_rank + contract.architecture.mla.kv_lora_rank
