"""The performance grid of one op: every cell that the envelope promises, and what it says today."""

from ..claims.cells import Cell, NotMeasured
from ..records import Frozen


class GridCell(Frozen):
    """One cell: an op on one card at one TP and batch bucket."""

    hardware: str
    workload: str
    axes: dict[str, int]
    cell: Cell


def unmeasured_reason(hardware: str, present: str | None) -> str:
    """Why a cell for `hardware` was not measured on a machine whose GPU is `present` (None: no GPU)."""
    if present is None:
        return f"no GPU on this machine ({hardware} needed)"
    return f"the GPU of this machine is {present}, not {hardware}"


def not_measured_grid(hardware: tuple[str, ...], workloads: dict[str, dict[str, int]], reason: str) -> tuple[GridCell, ...]:
    """A grid in which nothing was measured, every cell with the same reason."""
    return tuple(
        GridCell(hardware=card, workload=name, axes=axes, cell=NotMeasured(reason=reason))
        for card in hardware
        for name, axes in workloads.items()
    )
