"""What the inputs of `mla_core` look like: one function a distribution, each there to catch something."""

import math

import torch

from ..drawing import Distributions, Inputs, every_other, normal
from ..paged_maths import forget_entries, forget_rows, paged_inputs


def _weights(contract, workload, random) -> Inputs:
    return {}


def _inputs(contract, workload, random) -> Inputs:
    axes = workload.axes
    query = normal(random, axes["rows"], axes["heads"], contract.latent_width).bfloat16()
    inputs = {"query": query, **paged_inputs(contract, workload, random)}
    forget_rows(inputs)
    return inputs


DISTRIBUTIONS = Distributions(
    _weights, _inputs, "scores of one to two units, lengths from one token to full tables, pages in no order"
)


@DISTRIBUTIONS("lengths of one, a page, one less, one more, full tables: catches errors at the edges of pages")
def boundaries(inputs, contract, workload, random) -> None:
    size, most = workload.axes["page_size"], workload.axes["page_size"] * workload.axes["table_width"]
    lengths = torch.tensor([1, size - 1, size, size + 1, most - 1, most, most - size + 1, 2]).clamp(1, most)
    shift = int(torch.randint(len(lengths), (), generator=random))
    for row in range(workload.axes["rows"]):
        old, new = int(inputs["lengths"][row]), int(lengths[(row + shift) % len(lengths)])
        # A longer row needs pages of its own: it may not grow into what it has forgotten.
        inputs["lengths"][row] = min(old, new)
    forget_entries(inputs)
    forget_rows(inputs)


@DISTRIBUTIONS("scores of hundreds: one token takes all, and exp overflows unless the largest score is subtracted")
def sharp(inputs, contract, workload, random) -> None:
    inputs["query"] *= 128


@DISTRIBUTIONS("the newest token takes most of the weight: catches a length that is off by one")
def newest(inputs, contract, workload, random) -> None:
    for row in range(workload.axes["rows"]):
        length, size = int(inputs["lengths"][row]), workload.axes["page_size"]
        page = int(inputs["page_table"][row, (length - 1) // size])
        inputs["cache"][page, (length - 1) % size] = inputs["query"][row].float().mean(0).sign() * 2


@DISTRIBUTIONS("the shared key part decides: catches it left out, rotated, or scaled alone")
def shared_key(inputs, contract, workload, random) -> None:
    latent = contract.architecture.mla.kv_lora_rank
    inputs["query"][..., :latent] *= 2.0**-6
    inputs["query"][..., latent:] *= 4


@DISTRIBUTIONS("even weights over values of one sign: catches accumulators narrower than float32")
def even(inputs, contract, workload, random) -> None:
    inputs["query"] *= 2.0**-8
    inputs["cache"].abs_()


@DISTRIBUTIONS("values and scores from 2^-20 to 2^20 by row of the batch: catches half precision")
def wide_range(inputs, contract, workload, random) -> None:
    size = workload.axes["page_size"]
    for row in range(workload.axes["rows"]):
        scale = 2.0 ** (20 if row == 0 else int(torch.randint(-20, 21, (), generator=random)))
        inputs["query"][row] /= scale
        pages = inputs["page_table"][row, : -(-int(inputs["lengths"][row]) // size)].long()
        inputs["cache"][pages] *= scale


@DISTRIBUTIONS("every other row of length 0, its query NaN: catches padding that is read or not written")
def padded(inputs, contract, workload, random) -> None:
    rows = every_other(workload.axes["rows"], random)
    inputs["lengths"][rows] = 0
    inputs["query"][rows] = math.nan
    forget_entries(inputs)
    forget_rows(inputs)
