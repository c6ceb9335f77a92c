"""Ops that are one product with one weight: x W^T."""

from abc import abstractmethod

from ..base import Cost, TensorSpec, Workload
from .op import Layout, RankOp, output, rows_of, static


class LinearOp(RankOp):
    """out = x W^T for one rank's rows, or columns, of a weight.

    static  `weight_name` [N, K] bf16
    input   x [rows, K] bf16; rows may lie further apart than K
    output  `out_name` [rows, N] bf16, rounded once

    Products are summed in float32 or better. A row that holds NaN gives NaN and disturbs no other.
    """

    row_axes = {"x": 0}
    weight_name: str
    out_name: str

    @abstractmethod
    def sizes(self, tp: int) -> tuple[int, int]:
        """N and K on one rank."""

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """How far rows of x lie apart."""
        n, k = self.sizes(tp)
        return {"n": n, "k": k, "x_stride": k + layout.gap()}

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes = workload.axes
        return (
            static(self.weight_name, axes["n"], axes["k"]),
            rows_of("x", axes["rows"], axes["k"], axes["x_stride"]),
            output(self.out_name, axes["rows"], axes["n"]),
        )

    def cost(self, workload: Workload) -> Cost:
        """The weight once; a multiplication and an addition for each of its elements and each row."""
        rows, n, k = (workload.axes[name] for name in ("rows", "n", "k"))
        return Cost(bytes_read=2 * k * (n + rows), bytes_written=2 * rows * n, flops=2 * rows * n * k)
