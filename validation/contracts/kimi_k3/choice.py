"""Inputs for which every honest rounding chooses the same experts: choices planted in logits, routers and biases.

Which experts a row goes to is an exact integer, and behind a product it depends on sums whose order is free. So the
inputs of such a part are drawn until the sums that decide, sigmoid(logit) + bias, lie further apart than any honest
path errs: the comparison then needs no exception for near ties, and a wrong expert is a fault wherever it shows, in
the ids or in what the experts send. How far apart is enough:

- logits given: as in the exam of `routing`, 2^-18;
- a product of a given x: float32 sums of seven thousand products err by a few 2^-20, the sigmoid's slope is 1/4 at
  most: `GIVEN`, 2^-14, is a hundred times that;
- x computed in the part: the published path rounds x to bfloat16, which moves logits of planted scale by 2^-11 or so:
  `COMPUTED`, 2^-8, is thirty times that in the sums.

tests/validation/contracts/test_routed_parts.py holds the plain path's own error in the sums against these.
"""

import torch
from torch import Tensor

GIVEN = 2.0**-14
COMPUTED = 2.0**-8
CROWDED = 2.0**-16
"""For logits that are crowded around one on purpose: ten times what float32 sums err by there"""

# Planted sums: the chosen at even steps, best first; the others well below. With biases of a fifth either way, scores of
# chosen and others overlap, so that the biases decide as much as the logits do.
_BEST, _LAST, _OTHERS, _BIAS = 0.75, 0.55, (0.25, 0.40), 0.2
# What is left of a router where no row of the batch looks: logits of this size for a row that is redrawn.
_SPREAD = 0.125
_ROUNDS = 64


def plant_logits(logits: Tensor, bias: Tensor, ids: Tensor, random: torch.Generator) -> None:
    """In place: rows of `logits` [rows, E] float32 choose `ids` [rows, k], best first, under `bias` [E], held to a fifth."""
    bias.clamp_(-_BIAS, _BIAS)
    logits.copy_(_wanted(bias, ids, random))


def plant_router(router: Tensor, bias: Tensor, x: Tensor, ids: Tensor, random: torch.Generator) -> None:
    """In place: a `router` [E, d] bf16 with which rows `x` [rows, d] float64 choose `ids` [rows, k], best first.

    `router`, scaled, plus what moves its logits for these rows to where they should be: the least change that does, as
    rows are linearly independent. Rows that are not finite, or zero, choose nothing. `bias` [E] is held to a fifth.
    """
    bias.clamp_(-_BIAS, _BIAS)
    wanted = _wanted(bias, ids, random)
    live = x.isfinite().all(1) & (x != 0).any(1)
    if not live.any():
        return
    x, wanted = x[live], wanted[live]
    length = x.norm(dim=1, keepdim=True)
    found = router.double()
    found *= _SPREAD / (x @ found.T).std(1).median().clamp(min=1e-30)
    change = (wanted - x @ found.T) / length
    router.copy_(found + (torch.linalg.pinv(x / length) @ change).T)


def settle(logits: Tensor, bias: Tensor, k: int, apart: float, random: torch.Generator, *, ties: bool = False) -> None:
    """In place: nudges `bias` [E] float32 until the sums that decide are `apart`, whatever `logits` [rows, E] float64 are.

    With `ties`, equal logits under equal biases may stay equal. Where nudging finds no end (many crowded rows), biases
    two apart decide alone.
    """
    for _ in range(_ROUNDS):
        clash, ids = clashes(logits, bias, k, apart, ties=ties)
        if not clash.any():
            return
        lower = ids[:, 1:][clash].unique()
        bias[lower] -= apart * (1 + torch.rand(len(lower), generator=random))
    bias.copy_(2.0 * torch.randperm(len(bias), generator=random))


def clashes(logits: Tensor, bias: Tensor, k: int, apart: float, *, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Which of the k pairs of neighbours among a row's k + 1 best are closer than `apart` [rows, k]; their ids."""
    sums = (logits.sigmoid() + bias.double()).nan_to_num(nan=-torch.inf)
    order = sums.sort(dim=1, descending=True, stable=True)
    ids, values = order.indices[:, : k + 1], order.values[:, : k + 1]
    found = values.diff(dim=1).abs() < apart
    if ties:
        chosen, biases = logits.gather(1, ids), bias[ids]
        found &= (chosen[:, 1:] != chosen[:, :-1]) | (biases[:, 1:] != biases[:, :-1])
    return found, ids


def _wanted(bias: Tensor, ids: Tensor, random: torch.Generator) -> Tensor:
    """Logits [rows, E] float64 under which rows choose `ids`."""
    low, high = _OTHERS
    sums = low + (high - low) * torch.rand(len(ids), len(bias), generator=random, dtype=torch.float64)
    sums.scatter_(1, ids.long(), torch.linspace(_BEST, _LAST, ids.shape[1], dtype=torch.float64).expand(ids.shape))
    return (sums - bias.double()).clamp(0.02, 0.98).logit()


def ties(x: Tensor, router: Tensor, random: torch.Generator) -> None:
    """In place: integers whose sums are exact in every order, and a router of few different rows: equal logits by the
    dozen, equal bit for bit in every kernel."""
    x.copy_(torch.randint(-8, 9, x.shape, generator=random))
    rows = torch.randint(-1, 2, (8, router.shape[1]), generator=random) * 2.0**-8
    router.copy_(rows[torch.randint(len(rows), (len(router),), generator=random)])


def crowded(x: Tensor, router: Tensor, random: torch.Generator) -> None:
    """In place: logits of one and a little, closer than bfloat16 can tell them apart."""
    router *= 2.0**-8
    x[:, 0], router[:, 0] = 8, 2.0**-3
