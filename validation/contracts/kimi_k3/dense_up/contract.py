"""The contract of `dense_up`."""

from ...base import Cost, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static


class DenseUp(RankOp):
    """activation = SiTU(gate x, up x) of the dense layer, as `front` computes the shared expert's.

    static  gate_up [gate n | up n, d] bf16, n this rank's channels
    input   x [rows, d] bf16
    output  activation [rows, n] bf16

    Sums in float32 or better. Published roundings: gate and up; activation. A kernel may keep gate and up wide.
    A row that holds NaN gives NaN and disturbs no other. Equations: step/dense.py, step/situ.py.
    """

    op = "dense_up"
    row_axes = {"x": 0}

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """n, and how far rows of x lie apart."""
        size = self.divided("dense intermediate channels", self.architecture.dense_intermediate_size, tp)
        return {"channels": size, "x_stride": self.architecture.hidden_size + layout.gap()}

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, width = workload.axes, self.architecture.hidden_size
        return (
            static("gate_up", 2 * axes["channels"], width),
            rows_of("x", axes["rows"], width, axes["x_stride"]),
            output("activation", axes["rows"], axes["channels"]),
        )

    def cost(self, workload: Workload) -> Cost:
        """The weight once; the activation, linear in n alone, is left out of the flops."""
        rows, n, width = workload.axes["rows"], workload.axes["channels"], self.architecture.hidden_size
        return Cost(
            bytes_read=2 * width * (2 * n + rows), bytes_written=2 * rows * n, flops=4 * rows * n * width
        )
