"""Which trials are run: an interpreter can afford some, a GPU all of them. Everything random is drawn here."""

import secrets
from collections.abc import Iterator
from dataclasses import replace

from ..contracts.base import OpContract, Workload
from .recorded import Workloads
from .trials import NOT_A_NUMBER, PLAUSIBLE, TrialSpec

# Twins (moved memory, a perturbed row) are interpreted up to this many rows: what they show does not depend on the
# batch, and interpreting a large one takes minutes.
TWIN_ROWS = 8

Group = tuple[TrialSpec, ...]
"""Trials that share inputs and are compared with each other bit for bit."""


def interpreted(contract: OpContract, workloads: Workloads) -> list[Group]:
    """Few trials, each of them dear: the checked workloads, small twins, one distribution for most unseen layouts."""
    first, *rest = contract.distributions
    unseen = workloads.unseen_of(workloads.checked)
    groups = [_group(contract, workload, first, TWIN_ROWS) for workload in workloads.checked]
    # All distributions run on the smallest unseen batch of each TP; elsewhere the system's random source picks.
    smallest: dict[int, Workload] = {}
    for workload in sorted(unseen, key=lambda w: (w.axes["rows"] < 2, contract.cost(w).bytes)):
        smallest.setdefault(workload.axes["tp"], workload)
    for workload in unseen:
        every = workload is smallest[workload.axes["tp"]]
        for name in contract.distributions if every else (secrets.choice(rest),):
            groups.append((replace(_spec(workload, name), order=f"shuffled:{secrets.randbits(31)}"),))
    return groups + list(_far(contract, workloads))


def launched(contract: OpContract, workloads: Workloads) -> list[Group]:
    """Every declared workload with every distribution, each with its twins; every unseen layout likewise."""
    declared = {w.name: w for w in (*workloads.checked, *workloads.declared)}.values()
    groups = [_group(contract, w, name, None) for w in declared for name in contract.distributions]
    for workload in workloads.unseen_of(tuple(declared)):
        for name in contract.distributions:
            groups.append((replace(_spec(workload, name), order=f"shuffled:{secrets.randbits(31)}"),))
    return groups + list(_far(contract, workloads))


def _far(contract: OpContract, workloads: Workloads) -> Iterator[Group]:
    if workloads.far:
        yield (replace(_spec(workloads.far_base, next(iter(contract.distributions))), far=workloads.far),)


def _group(contract: OpContract, workload: Workload, distribution: str, twin_rows: int | None) -> Group:
    base = _spec(workload, distribution)
    rows = workload.axes["rows"]
    if twin_rows is not None and rows > twin_rows:
        return (base,)
    # Same inputs; other addresses, poison, scratch and program order.
    moved = TrialSpec(
        workload, distribution, base.seed, secrets.randbits(62), poison=PLAUSIBLE,
        order=f"shuffled:{secrets.randbits(31)}" if rows > 1 else "descending",
    )  # fmt: skip
    if rows < 2:
        return base, moved
    other = TrialSpec(workload, distribution, base.seed, base.layout_seed, perturbed_row=secrets.randbelow(rows))
    return base, moved, other


def _spec(workload: Workload, distribution: str) -> TrialSpec:
    return TrialSpec(workload, distribution, secrets.randbits(62), secrets.randbits(62), poison=NOT_A_NUMBER)
