"""Which trials are run: an interpreter can afford some, a GPU all of them. Everything random is drawn here."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..contracts.base import OpContract, Workload
from .recorded import Workloads
from .trials import NOT_A_NUMBER, PLAUSIBLE, TrialSpec

# Twins (moved memory, a perturbed row) are interpreted up to this many rows: what they show does not depend on the
# batch, and interpreting a large one takes minutes.
TWIN_ROWS = 8

Group = tuple[TrialSpec, ...]
"""Trials that share inputs and are compared with each other bit for bit."""


# Draws of a layout until its batch is odd: each is, with one chance in three or better.
_ODD_DRAWS = 64


def layout_seed(contract: OpContract, workload: Workload) -> int:
    """Seed of an unpredictable layout of the same bucket, with an odd batch where the bucket has room for one.

    Declared batches are powers of two: only an odd one shows a kernel that forgets what its tiles do not cover.
    """
    for _ in range(_ODD_DRAWS):
        seed = secrets.randbits(62)
        if workload.axes["rows"] < 3 or contract.vary(workload, seed).axes["rows"] % 2:
            break
    return seed


def interpreted(contract: OpContract, workloads: Workloads) -> list[Group]:
    """Few trials, each of them dear: the checked workloads, small twins, one distribution for most unseen layouts."""
    first = next(iter(contract.distributions))
    groups = [_group(contract, workload, first, TWIN_ROWS) for workload in workloads.checked]
    return groups + _unseen(contract, workloads.unseen_of(workloads.checked)) + list(_far(contract, workloads))


def launched(contract: OpContract, workloads: Workloads) -> list[Group]:
    """Twins at every declared batch; all distributions at the small ones and at the smallest unseen layout of each TP,
    a drawn one elsewhere.

    A launch takes microseconds, but each trial is also held against an oracle on the host, which for 64 rows of state
    takes a second: what a value distribution shows does not depend on the batch.
    """
    first, *rest = contract.distributions
    declared = tuple({w.name: w for w in (*workloads.checked, *workloads.declared)}.values())
    large = large_ones(contract, declared)
    groups = []
    declared = tuple(workload for workload in declared if workload not in large)
    for workload in declared:
        groups.append(_group(contract, workload, first, None))
        others = rest if workload.axes["rows"] <= TWIN_ROWS // 2 else (secrets.choice(rest),)
        groups += [_group(contract, workload, name, TWIN_ROWS // 2) for name in others]
    groups += _unseen(contract, workloads.unseen_of(declared)) + list(_far(contract, workloads))
    # Gigabytes a draw: what value distributions show, they show at the stand-ins.
    groups += [_group(contract, workload, first, None) for workload in large]
    return groups + [(_spec(workload, first),) for workload in workloads.unseen_of(large)]


def large_ones(contract: OpContract, workloads: Sequence[Workload]) -> tuple[Workload, ...]:
    """Those for which the contract has stand-ins."""
    small = {workload.name for workload in contract.small()}
    return tuple(workload for workload in workloads if small and workload.name not in small)


def _unseen(contract: OpContract, unseen: Sequence[Workload]) -> list[Group]:
    """All distributions run on the smallest unseen batch of each TP; elsewhere the system's random source picks."""
    smallest: dict[int, Workload] = {}
    for workload in sorted(unseen, key=lambda w: (w.axes["rows"] < 2, contract.cost(w).bytes)):
        smallest.setdefault(workload.axes["tp"], workload)
    rest = tuple(contract.distributions)[1:]
    return [
        (replace(_spec(workload, name), order=f"shuffled:{secrets.randbits(31)}"),)
        for workload in unseen
        for name in (contract.distributions if workload is smallest[workload.axes["tp"]] else (secrets.choice(rest),))
    ]


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
    # Whoever has no neighbour depends on none.
    neighbours = contract.redrawable(workload)
    if neighbours < 2:
        return base, moved
    other = TrialSpec(workload, distribution, base.seed, base.layout_seed, perturbed_row=secrets.randbelow(neighbours))
    return base, moved, other


def _spec(workload: Workload, distribution: str) -> TrialSpec:
    return TrialSpec(workload, distribution, secrets.randbits(62), secrets.randbits(62), poison=NOT_A_NUMBER)
