"""Drawing page tables, lengths and latent caches; reading a row's history."""

import math

import torch
from torch import Generator, Tensor

from ..base import Workload
from .drawing import Inputs, normal


def paged_inputs(contract, workload: Workload, random: Generator) -> Inputs:
    """page_table, lengths, cache: lengths over their whole range, the first row's the longest, pages in no order."""
    axes = workload.axes
    rows, width, size = axes["rows"], axes["table_width"], axes["page_size"]
    lengths = torch.randint(1, width * size + 1, (rows,), generator=random)
    lengths[0] = width * size - int(torch.randint(min(2, width * size), (), generator=random))
    inputs = {
        "page_table": (1 + torch.randperm(axes["pages"] - 1, generator=random)[: rows * width]).view(rows, width).int(),
        "lengths": lengths.int(),
        "cache": normal(random, axes["pages"], size, contract.latent_width).bfloat16(),
    }
    return inputs


def forget_entries(inputs: Inputs) -> None:
    """In place: table entries behind a row's length become absurd."""
    table, size = inputs["page_table"], inputs["cache"].shape[1]
    absurd = torch.tensor([-1, 2**31 - 1, -(2**31)], dtype=torch.int32).repeat(table.shape[1])
    for row, length in zip(table, inputs["lengths"].tolist(), strict=True):
        used = -(-length // size)
        row[used:] = absurd[: len(row) - used]


def forget_rows(inputs: Inputs) -> None:
    """In place: what no row may read of the cache becomes NaN."""
    table, lengths, cache = inputs["page_table"], inputs["lengths"], inputs["cache"]
    size = cache.shape[1]
    keep = torch.zeros(cache.shape[:2], dtype=torch.bool)
    for row, length in enumerate(lengths.tolist()):
        used = -(-length // size)
        pages = table[row, :used].long()
        keep[pages] = (torch.arange(used * size) < length).view(used, size)
    cache[~keep] = math.nan


def history(inputs: Inputs, row: int) -> Tensor:
    """[length, width]: what a row sees, in its own type."""
    cache, length = inputs["cache"], int(inputs["lengths"][row])
    pages = inputs["page_table"][row, : -(-length // cache.shape[1])].long()
    return cache[pages].flatten(0, 1)[:length]


def redrawn(contract, inputs: Inputs, workload: Workload, row: int, seed: int) -> Inputs:
    """The same inputs with the row's own tensors redrawn, and its cached rows; lengths and tables stay."""
    fresh = contract.maths.DISTRIBUTIONS.typical_inputs(contract, workload, seed)
    changed = {**inputs, **{name: inputs[name].clone() for name in ("cache", *contract.row_axes)}}
    for name, axis in contract.row_axes.items():
        changed[name].select(axis, row).copy_(fresh[name].select(axis, row))
    size = inputs["cache"].shape[1]
    random = Generator().manual_seed(seed)
    length = int(inputs["lengths"][row])
    for place in range(-(-length // size)):
        page, seen = int(inputs["page_table"][row, place]), min(size, length - place * size)
        changed["cache"][page, :seen] = normal(random, seen, contract.latent_width).bfloat16()
    return changed
