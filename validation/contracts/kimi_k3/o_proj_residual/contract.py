"""The contract of `o_proj_residual`."""

from ....tensors import DType
from ...base import Cost, TensorRole, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static, tensor


class OProjResidual(RankOp):
    """The output projection of either attention: what a rank sends, and the stream after everyone's share.

    static  o_proj [d, p] bf16, p this rank's channels
    input   x [rows, p] bf16: the gated attention output
    input   peers [tp - 1, rows, d] bf16: what the other ranks sent, in rank order (exchange buffers, given here)
    input   residual [rows, d] bf16: the stream before; absent where the axis `restart` is 1
    output  partial [rows, d] bf16: x o_proj^T, what this rank sends
    output  stream [rows, d] bf16: residual + sum over ranks; at the first layer of an AttnRes block the sum alone

    Sums in float32 or better. Published roundings: partial; the sum over ranks; stream. A kernel may leave out the one
    in the middle, and add its own share unrounded. How partials travel is not part of the op: reading them is. A row
    that holds NaN gives NaN and disturbs no other.
    """

    op = "o_proj_residual"
    row_axes = {"x": 0, "peers": 1, "residual": 0}
    weight_name = "o_proj"

    def inner(self, tp: int) -> int:
        """p."""
        return self.architecture.kda_shard(tp).channels

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """As declared the stream goes on, as in 85 of 93 layers; drawn, it restarts now and then."""
        k, width = self.inner(tp), self.architecture.hidden_size
        row = width + layout.gap()
        return {
            "k": k,
            "restart": layout.choice(0, 0, 1),
            "x_stride": k + layout.gap(),
            "residual_stride": width + layout.gap(),
            "peer_row_stride": row,
            "peer_stride": rows * row,
        }

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, width = workload.axes, self.architecture.hidden_size
        rows = axes["rows"]
        peers = tensor(
            "peers",
            DType.BF16,
            TensorRole.INPUT,
            (axes["tp"] - 1, rows, width),
            (axes["peer_stride"], axes["peer_row_stride"], 1),
        )
        return (
            static(self.weight_name, width, axes["k"]),
            rows_of("x", rows, axes["k"], axes["x_stride"]),
            peers,
            *(() if axes["restart"] else (rows_of("residual", rows, width, axes["residual_stride"]),)),
            output("partial", rows, width),
            output("stream", rows, width),
        )

    def cost(self, workload: Workload) -> Cost:
        """The weight once, exchange buffers included; an addition for each rank but the first and for the residual."""
        axes, width = workload.axes, self.architecture.hidden_size
        rows, k, tp, going = axes["rows"], axes["k"], axes["tp"], 1 - axes["restart"]
        return Cost(
            bytes_read=2 * (k * (width + rows) + rows * width * (tp - 1 + going)),
            bytes_written=4 * rows * width,
            flops=rows * width * (2 * k + tp - 1 + going),
        )
