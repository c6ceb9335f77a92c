"""The performance grid of a small model, and paths whose processes are simulated."""

from types import SimpleNamespace

from fasttrack_validation import contracts
from fasttrack_validation.contracts.grid import CellSpec, Span
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.grid import KDA, MLA, STEP, KimiK3Grid

LAYERS = {KDA: 1, MLA: 3}
STEP_LAYERS = {MLA: 3}
"""Layers of a step that read nothing of the one before on this rank: in a small model, which ends early, one"""


def small_grid(of: Architecture, layers=LAYERS) -> KimiK3Grid:
    """The grid over another size of the model."""
    ops = {name: type(op)(of, op.policy) for name, op in contracts.load("kimi_k3").ops.items()}
    return KimiK3Grid(of, ops, layers)


def spec(kind: str, tp: int, rows: int, width: int = 1) -> CellSpec:
    """A cell of it."""
    context = None if kind == KDA else 40
    span = Span.STEP if kind == STEP else Span.LAYER
    return CellSpec(span=span, kind=kind, tp=tp, rows=rows, width=width, context=context)


def model(of: Architecture) -> SimpleNamespace:
    """What a runner asks of a model's contract."""
    return SimpleNamespace(model="kimi_k3", grid=small_grid(of))
