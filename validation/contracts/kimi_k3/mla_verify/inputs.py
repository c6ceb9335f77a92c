"""What the inputs of `mla_verify` look like: one function a distribution, each there to catch something."""

import math

import torch
from torch import Generator, Tensor

from ...base import Workload
from ..drawing import Distributions, Inputs, every_other, normal
from ..paged_maths import forget_rows, paged_inputs


def _weights(contract, workload, random) -> Inputs:
    return {}


def _inputs(contract, workload, random) -> Inputs:
    axes = workload.axes
    requests = axes["rows"] // axes["tokens"]
    query = normal(random, axes["rows"], axes["heads"], contract.latent_width).bfloat16()
    paged = paged_inputs(contract, workload.model_copy(update={"axes": axes | {"rows": requests}}), random)
    last = paged["lengths"].clamp(min=axes["tokens"])
    inputs = {
        "query": query,
        "page_table": paged["page_table"].repeat_interleave(axes["tokens"], 0),
        "lengths": _each(last, axes["tokens"]),
        "cache": paged["cache"],
    }
    forget_rows({**inputs, "lengths": _longest(inputs, axes["tokens"])})
    return inputs


DISTRIBUTIONS = Distributions(
    _weights, _inputs, "scores of one to two units, lengths up to full tables, one more a token, pages in no order"
)


@DISTRIBUTIONS("tokens of a request on both sides of a page's edge: catches errors at edges of pages and slices")
def boundaries(inputs, contract, workload, random) -> None:
    axes = workload.axes
    tokens, size = axes["tokens"], axes["page_size"]
    most = axes["table_width"] * size
    draw, *shifts = torch.randint(840, (3,), generator=random).tolist()
    # A page's edge at which kernels begin a slice as well, in multiples of their tiles: a request's first tokens see nothing
    # of its last slice.
    cut = max(64, size) * (1 + draw % 2) + 1 + shifts[0] % max(1, tokens - 1)
    others = [size + 1, size + tokens // 2, size, most, most - size + 1, 2 * size, tokens]
    for request in range(axes["rows"] // tokens):
        rows = slice(request * tokens, (request + 1) * tokens)
        wanted = others[(request + shifts[1]) % len(others)] if request else cut
        # A longer request needs pages of its own: it may not grow into what it has forgotten.
        last = min(int(inputs["lengths"][rows][-1]), wanted)
        inputs["lengths"][rows] = _each(torch.tensor([max(last, tokens)]), tokens)
    _forget(inputs, tokens)


@DISTRIBUTIONS("scores of hundreds: one token takes all, and exp overflows unless the largest score is subtracted")
def sharp(inputs, contract, workload, random) -> None:
    inputs["query"] *= 128


@DISTRIBUTIONS("each token's own cached row takes most of its weight, the next one more: catches a mask off by one")
def newest(inputs, contract, workload, random) -> None:
    for row in range(workload.axes["rows"]):
        page, place = _newest(inputs, row)
        inputs["cache"][page, place] = inputs["query"][row].float().mean(0).sign() * 2
        if row % workload.axes["tokens"]:
            # What the token before this one would see if it looked one row too far.
            inputs["cache"][page, place] += inputs["query"][row - 1].float().mean(0).sign() * 3


@DISTRIBUTIONS("the shared key part decides: catches it left out, rotated, or scaled alone")
def shared_key(inputs, contract, workload, random) -> None:
    latent = contract.architecture.mla.kv_lora_rank
    inputs["query"][..., :latent] *= 2.0**-6
    inputs["query"][..., latent:] *= 4


@DISTRIBUTIONS("even weights over values of one sign: catches accumulators narrower than float32")
def even(inputs, contract, workload, random) -> None:
    inputs["query"] *= 2.0**-8
    inputs["cache"].abs_()


@DISTRIBUTIONS("values and scores from 2^-20 to 2^20 by request: catches half precision")
def wide_range(inputs, contract, workload, random) -> None:
    tokens, size = workload.axes["tokens"], workload.axes["page_size"]
    for request in range(workload.axes["rows"] // tokens):
        scale = 2.0 ** (20 if request == 0 else int(torch.randint(-20, 21, (), generator=random)))
        rows = slice(request * tokens, (request + 1) * tokens)
        inputs["query"][rows] /= scale
        used = -(-int(inputs["lengths"][rows].max()) // size)
        inputs["cache"][inputs["page_table"][request * tokens, :used].long()] *= scale


@DISTRIBUTIONS("every other request, or a single one, of length 0: catches padding that is read or not written")
def padded(inputs, contract, workload, random) -> None:
    tokens = workload.axes["tokens"]
    count = workload.axes["rows"] // tokens
    # A single one is padding as well: small batches are one request. Its queries tell seeds apart.
    requests = every_other(count, random) if count > 1 else torch.arange(1)
    rows = (requests[:, None] * tokens + torch.arange(tokens)).flatten()
    inputs["lengths"][rows] = 0
    if count > 1:
        inputs["query"][rows] = math.nan
    _forget(inputs, tokens)


@DISTRIBUTIONS("requests with fewer tokens than the step, at least one: catches a length taken for the whole request's")
def ragged(inputs, contract, workload, random) -> None:
    tokens = workload.axes["tokens"]
    for request in range(workload.axes["rows"] // tokens):
        live = 1 + int(torch.randint(max(1, tokens - 1), (), generator=random))
        rows = slice(request * tokens + min(live, tokens), (request + 1) * tokens)
        inputs["lengths"][rows] = 0
        inputs["query"][rows] = math.nan
    _forget(inputs, tokens)


def redrawn(contract, inputs: Inputs, workload: Workload, row: int, seed: int) -> Inputs:
    """The same inputs with the query of `row` redrawn, and its cached row where no other row sees that."""
    changed = {**inputs, "query": inputs["query"].clone(), "cache": inputs["cache"].clone()}
    random = Generator().manual_seed(seed)
    changed["query"][row] = normal(random, *inputs["query"].shape[1:]).bfloat16()
    lengths, tokens = inputs["lengths"], workload.axes["tokens"]
    last = (row + 1) % tokens == 0 or int(lengths[row + 1]) == 0
    if last and int(lengths[row]) > 0:
        changed["cache"][_newest(inputs, row)] = normal(random, contract.latent_width).bfloat16()
    return changed


def _each(last: Tensor, tokens: int) -> Tensor:
    """Lengths of all rows, int32, of requests whose last tokens see `last` cached rows."""
    return (last[:, None] - torch.arange(tokens - 1, -1, -1)).flatten().int()


def _newest(inputs: Inputs, row: int) -> tuple[int, int]:
    """Page and place of the cached row that a live row's own token left."""
    last, size = int(inputs["lengths"][row]) - 1, inputs["cache"].shape[1]
    return int(inputs["page_table"][row, last // size]), last % size


def _forget(inputs: Inputs, tokens: int) -> None:
    """In place: table entries behind what a request's tokens see become absurd, and what no row may read NaN."""
    table, longest = inputs["page_table"], _longest(inputs, tokens)
    absurd = torch.tensor([-1, 2**31 - 1, -(2**31)], dtype=torch.int32).repeat(table.shape[1])
    for row, length in zip(table, longest.tolist(), strict=True):
        used = -(-length // inputs["cache"].shape[1])
        row[used:] = absurd[: len(row) - used]
    forget_rows({**inputs, "lengths": longest})


def _longest(inputs: Inputs, tokens: int) -> Tensor:
    """[rows]: cached rows that the last live token of each row's request sees."""
    return inputs["lengths"].view(-1, tokens).amax(1).repeat_interleave(tokens)
