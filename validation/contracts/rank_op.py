"""What a model's op contracts are made of: an op on one rank, layouts that vary, and how its tensors are written down.

Any model's contracts import it from here. The code lies in `kimi_k3/op.py` as long as measured evidence is about exams
that count that file in.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .kimi_k3 import op as _first
from .kimi_k3.op import Layout, output, rows_of, static, tensor

if TYPE_CHECKING:
    from .stock import StockPath

__all__ = ["RANK_OP_FILES", "Layout", "RankOp", "output", "rows_of", "static", "tensor"]

RANK_OP_FILES = (
    "contracts/rank_op.py",
    "contracts/drawing.py",
    "contracts/kimi_k3/__init__.py",
    "contracts/kimi_k3/architecture.py",
    "contracts/kimi_k3/drawing.py",
    "contracts/kimi_k3/op.py",
)
"""What the exam of an op counts in that is made of these, relative to `validation/`"""


class RankOp(_first.RankOp):
    """One op on one rank of a tensor-parallel group, for one decode step of `rows` tokens, of the model `model`.

    A package of two modules: `contract.py` with the subclass (shapes, bytes, flops; imports no tensor library) and
    `maths.py` beside it (inputs, oracle, plain path, known mistakes).
    """

    def stock(self, device: str) -> "StockPath":
        """See the model's stock.py, which is no part of the exam: what decides is the oracle."""
        return import_module(f".{self.model}.stock", __package__).op(self, device)
