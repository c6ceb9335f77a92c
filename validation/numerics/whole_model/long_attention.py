"""Attention over a long context by oracle and plain path, whose rows look for one token each; rows are shared out over processes.

The plain path goes page by page and row by row, which for a million tokens is a hundred thousand small steps a row.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor

from .orphans import end_with
from .tokens import ORACLE, STOCK

ALONE = 2**18
"""Tokens up to which one process has done before others have begun"""
PROCESSES = 8
"""Each has the context and, for a moment, twice as much: 4 GB of a million tokens"""


def contexts(tp: int, context: int, seed: int, replicas: int) -> dict[str, Tensor]:
    """Path, oracle among them -> context [rows, heads, latent] of the rows of `long_state.needles`."""
    from ...contracts.kimi_k3.architecture import Architecture
    from ...contracts.kimi_k3.numerics.long_state import places

    rows = range(len(places(context)))
    processes = 1 if context <= ALONE else min(PROCESSES, os.cpu_count() or 1, len(rows))
    chosen = [tuple(rows[first::processes]) for first in range(processes)]
    asked = [(Architecture.from_config(), tp, context, seed, replicas, each) for each in chosen]
    if processes == 1:
        return of_rows(*asked[0])
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
    ) as pool:
        found = [pool.submit(of_rows, *one) for one in asked]
        parts = [one.result() for one in found]
    order = torch.tensor([row for each in chosen for row in each]).argsort()
    return {path: torch.cat([part[path] for part in parts])[order] for path in parts[0]}


def _begin(parent: int) -> None:
    """A process of its own has one thread: the sums of equal rows do not depend on how many there are."""
    end_with(parent)
    torch.set_num_threads(1)


def of_rows(
    architecture, tp: int, context: int, seed: int, replicas: int, rows: Sequence[int]
) -> Mapping[str, Tensor]:  # fmt: skip
    """The same of some rows. Draws the context anew, so that nothing large crosses a pipe."""
    from ...contracts.kimi_k3.numerics import long_state
    from ...contracts.kimi_k3.numerics.op_exams import contracts

    op = contracts(architecture)["mla_core"]
    at, inputs, _ = long_state.needles(architecture, tp, context, seed)
    at = at.model_copy(update={"axes": {**at.axes, "rows": len(rows)}})
    inputs = inputs | {name: inputs[name][list(rows)] for name in ("query", "page_table", "lengths")}
    found = {ORACLE: op.oracle(inputs, at)["context"], STOCK: op.plain(inputs, at)["context"]}
    for number in range(1, replicas + 1):
        # The same tokens in another order: attention without positions has the same result, summed otherwise.
        other, values = long_state.reordered(at, inputs, number)
        found[f"again-{number}"] = op.plain(values, other)["context"]
    return found
