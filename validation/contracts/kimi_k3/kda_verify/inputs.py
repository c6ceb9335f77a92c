"""What the inputs of `kda_verify` look like: those of `kda_decode`, row for row, with tables of pages."""

import math

import torch
from torch import Generator, Tensor

from ...base import Workload
from ..architecture import KdaShard
from ..kda_decode import inputs as single
from ..kda_decode.oracle import Oracle

Inputs = dict[str, Tensor]

_PADDED = ("padded", "padded_nan")
DISTRIBUTIONS: dict[str, str] = {
    name: line.replace("every other row", "every other request").replace("pages nobody owns", "pages that are not read")
    for name, line in single.DISTRIBUTIONS.items()
}


def draw(oracle: Oracle, workload: Workload, distribution: str, seed: int) -> Inputs:
    """Static tensors, inputs and initial state, contiguous on the CPU; equal arguments, equal bits."""
    tokens, random = workload.axes["tokens"], Generator().manual_seed(seed)
    inputs = single.draw(oracle, workload, "typical" if distribution in _PADDED else distribution, seed)
    # The committed page is the one that the request's first row was drawn with; the others are any.
    committed = inputs["slots"][::tokens]
    free = torch.ones(workload.axes["slots"], dtype=torch.bool)
    free[0] = False
    free[committed.long()] = False
    others = free.nonzero().flatten()
    chosen = others[torch.randperm(len(others), generator=random)][: tokens * len(committed)]
    inputs["slots"] = torch.cat([committed[:, None], chosen.view(len(committed), tokens).int()], 1)
    if distribution in _PADDED:
        _pad(inputs, tokens, random, nan=distribution == "padded_nan")
    return inputs


def redraw_request(inputs: Inputs, shard: KdaShard, request: int, seed: int) -> Inputs:
    """A copy in which the projections of `request` are drawn anew; an equal copy where there is no such request."""
    slots, changed = inputs["slots"], dict(inputs)
    tokens = slots.shape[1] - 1
    # Told that all rows are padding, it redraws a row's projection alone.
    nobody = torch.zeros(len(inputs["projected"]), dtype=torch.int32)
    for row in range(request * tokens, (request + 1) * tokens) if request < len(slots) else ():
        changed = single.redraw_row({**changed, "slots": nobody}, shard, row, seed + row)
    return {name: tensor.clone() for name, tensor in {**changed, "slots": slots}.items()}


def _pad(inputs: Inputs, tokens: int, random: Generator, *, nan: bool) -> None:
    """Makes every other request padding: the null page, and negative numbers of three kinds, in turn."""
    slots = inputs["slots"]
    # With NaN from the first or the second request on; a single one always is padding.
    first = int(torch.randint(2, (), generator=random)) if nan and len(slots) > 1 else 0
    padding = torch.arange(first, len(slots), 2)
    other = int(torch.randint(-(2**31) + 1, -1, (), generator=random))
    marks = torch.tensor([0, other, -(2**31), -1], dtype=torch.int32)
    slots[padding, 0] = marks[torch.arange(len(padding)) % len(marks)]
    if not nan:
        return
    inputs["projected"].unflatten(0, (-1, tokens))[padding] = math.nan
    # Pages of candidates are written before anybody reads them.
    unread = torch.ones(len(inputs["conv_state"]), dtype=torch.bool)
    unread[slots[slots[:, 0] > 0, 0].long()] = False
    inputs["conv_state"][unread] = math.nan
    inputs["recurrent_state"][unread] = math.nan
