"""The contract of `routing`."""

from typing import TYPE_CHECKING

from ....tensors import DType
from ...base import Cost, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static

if TYPE_CHECKING:
    from torch import Tensor

    from ..op import Tensors


class Routing(RankOp):
    """The top 16 of 896 and their weights; the same on every rank.

    static  correction_bias [E] float32: for the selection only
    input   logits [rows, E] float32
    output  ids [rows, k] int32, the best first; equal to the oracle's
    output  weights [rows, k] float32, in the order of ids

    s = sigmoid(logits); the k largest s + bias are chosen. Equal sums go to the lower id; logits of +0 and -0 are
    equal; a NaN counts as minus infinity, so that ids are always k distinct experts. weights = s / (sum of the chosen s
    + 1e-20) times the scaling factor, of s without the bias; a chosen NaN makes the row's weights NaN. All in float32.

    The sums that decide are equal bit for bit or at least 2^-18 apart, so that no honest sigmoid changes an id.
    Equations: step/router.py.
    """

    op = "routing"
    row_axes = {"logits": 0}
    optional_axes = ("experts",)

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """How far rows of logits lie apart."""
        return {"logits_stride": self.architecture.moe.experts + layout.gap()}

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        moe, rows, experts = self.architecture.moe, workload.axes["rows"], self.experts(workload)
        return (
            static("correction_bias", experts, dtype=DType.F32),
            rows_of("logits", rows, experts, workload.axes["logits_stride"], DType.F32),
            output("ids", rows, moe.top_k, dtype=DType.I32),
            output("weights", rows, moe.top_k, dtype=DType.F32),
        )

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """The row redrawn, its sums apart as well."""
        changed = super().perturb_row(inputs, workload, row, seed)
        self.maths.separate(self, {**changed, "logits": changed["logits"][row : row + 1]})
        return changed

    def cost(self, workload: Workload) -> Cost:
        """An element: four for the sigmoid, one for the bias, one comparison. A chosen one: an addition, a division."""
        moe, rows, experts = self.architecture.moe, workload.axes["rows"], self.experts(workload)
        return Cost(
            bytes_read=4 * experts * (1 + rows),
            bytes_written=8 * rows * moe.top_k,
            flops=rows * (6 * experts + 2 * moe.top_k),
        )
