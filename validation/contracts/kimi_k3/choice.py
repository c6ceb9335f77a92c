"""Inputs for which every honest rounding chooses the same experts: choices planted in logits, routers and biases.

Which experts a row goes to is an exact integer, and behind a product it depends on sums whose order is free. So the
inputs of such a part are drawn until the sums that decide, sigmoid(logit) + bias, lie further apart than honest paths
err. The comparison then needs no exception for near ties, and a wrong expert is a fault wherever it shows: in the ids,
or in what the experts send. How far apart is enough:

- logits given: 2^-18, as in the exam of `routing`;
- logits computed: eight times what the plain path itself errs by on these inputs (`apart`), and 2^-14 at least. Float32
  sums of seven thousand products err by a few 2^-20; where x is computed too, its rounding to bfloat16 moves planted
  sums by 2^-11 or so, a thirtieth of the steps between the chosen.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST = 2.0**-14
_MARGIN = 8


@dataclass(frozen=True)
class Sums:
    """Where the sums of a planted choice lie."""

    best: float
    last: float
    """The chosen at even steps, best first"""
    others: tuple[float, float]
    """All others, anywhere in between"""
    spread: float
    """What is left of a router where no row of the batch looks: its logits there, for a row that is redrawn"""


# With biases of a fifth either way, scores of chosen and others overlap: biases decide as much as logits do.
PLAIN = Sums(best=0.75, last=0.55, others=(0.25, 0.40), spread=0.125)
# Logits around one, all within two steps of bfloat16. They move together where x is rounded, so that none passes another:
# routers of experts differ by a hundredth of what they share.
CROWD = Sums(best=0.7330, last=0.7315, others=(0.7290, 0.7313), spread=2.0**-12)
_BIAS = 0.2
_ROUNDS = 64


def plant_logits(logits: Tensor, bias: Tensor, ids: Tensor, random: torch.Generator) -> None:
    """In place: rows of `logits` [rows, E] float32 choose `ids` [rows, k], best first, under `bias` [E], held to a fifth."""
    bias.clamp_(-_BIAS, _BIAS)
    logits.copy_(_wanted(bias, ids, random, PLAIN))


def plant_router(
    router: Tensor, bias: Tensor, x: Tensor, ids: Tensor, random: torch.Generator, sums: Sums = PLAIN
) -> None:
    """In place: a `router` [E, d] bf16 with which rows `x` [rows, d] float64 choose `ids` [rows, k], best first.

    `router`, scaled, plus what moves its logits for these rows to where they should be: the least change that does, as
    rows are linearly independent. Rows that are not finite, or zero, choose nothing. `bias` [E] is held to a fifth.
    """
    bias.clamp_(-_BIAS, _BIAS)
    wanted = _wanted(bias, ids, random, sums)
    live = x.isfinite().all(1) & (x != 0).any(1)
    if not live.any():
        return
    x, wanted = x[live], wanted[live]
    length = x.norm(dim=1, keepdim=True)
    found = router.double()
    found *= sums.spread / (x @ found.T).std(1).median().clamp(min=1e-30)
    change = (wanted - x @ found.T) / length
    router.copy_(found + (torch.linalg.pinv(x / length) @ change).T)


def settle(logits: Tensor, bias: Tensor, k: int, apart: float, random: torch.Generator, *, ties: bool = False) -> None:
    """In place: nudges `bias` [E] float32 until the sums that decide are `apart`, whatever `logits` [rows, E] float64 are.

    With `ties`, equal logits under equal biases may stay equal. Where nudging finds no end (many crowded rows, or paths
    that err by more than scores differ), biases four apart decide alone: scores lie between zero and one.
    """
    for _ in range(_ROUNDS):
        clash, ids = clashes(logits, bias, k, apart, ties=ties)
        if not clash.any():
            return
        lower = ids[:, 1:][clash].unique()
        bias[lower] -= apart * (1 + torch.rand(len(lower), generator=random))
    bias.copy_(4.0 * torch.randperm(len(bias), generator=random))


def apart(exact: Tensor, plain: Tensor, bias: Tensor, k: int, least: float = LEAST) -> float:
    """How far apart sums must be, from logits [rows, E] of the oracle and of the plain path.

    Of the 2 k best of a row, and of differences alone: what moves all sums of a row changes no order.
    """
    rows = exact.isfinite().all(1) & plain.isfinite().all(1)
    sums, theirs = (logits[rows].double().sigmoid() + bias.double() for logits in (exact, plain))
    best = sums.topk(min(2 * k, sums.shape[1]), 1).indices
    errors = (theirs - sums).gather(1, best)
    spread = errors.amax(1) - errors.amin(1)
    return max([least, *(_MARGIN * spread).tolist()])


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


def _wanted(bias: Tensor, ids: Tensor, random: torch.Generator, sums: Sums) -> Tensor:
    """Logits [rows, E] float64 under which rows choose `ids`."""
    low, high = sums.others
    found = low + (high - low) * torch.rand(len(ids), len(bias), generator=random, dtype=torch.float64)
    steps = torch.linspace(sums.best, sums.last, ids.shape[1], dtype=torch.float64)
    found.scatter_(1, ids.long(), steps.expand(ids.shape))
    return (found - bias.double()).clamp(0.02, 0.98).logit()


def ties(x: Tensor, router: Tensor, random: torch.Generator) -> None:
    """In place: integers whose sums are exact in every order, and a router of few different rows: equal logits by the
    dozen, equal bit for bit in every kernel."""
    x.copy_(torch.randint(-8, 9, x.shape, generator=random))
    rows = torch.randint(-1, 2, (8, router.shape[1]), generator=random) * 2.0**-8
    router.copy_(rows[torch.randint(len(rows), (len(router),), generator=random)])
