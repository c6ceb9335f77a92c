"""The contract of `latent_up`."""

from ....tensors import DType
from ...base import Cost, TensorRole, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static, tensor


class LatentUp(RankOp):
    """The end of a MoE layer, for the c = d / tp channels of the stream that this rank finishes.

    static  latent_norm [L] bf16; latent_up [c, L] bf16, this rank's rows of a matrix that checkpoints replicate
    input   routed [tp, rows, L] bf16: what every rank's experts sent, in rank order (exchange buffers, given here)
    input   shared [tp, rows, c] bf16: what every rank's shared expert sent for these channels
    input   residual [rows, c] bf16: the stream before, these channels
    output  stream [rows, c] bf16: residual + latent_up RMSNorm(sum of routed) + sum of shared

    The norm is not linear: it comes after the sum over ranks. Sums and statistics in float32 or better. Published
    roundings: both sums over ranks; x / sqrt(..); the normed row; the product; product + shared; stream. A kernel may
    leave out all but the last. How partial sums travel here, and the finished channels away, is not part of the op.
    A row that holds NaN gives NaN and disturbs no other. Equations: step/moe.py, step/norm.py.
    """

    op = "latent_up"
    row_axes = {"routed": 1, "shared": 1, "residual": 0}

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """c and all strides; as declared the residual is a slice of rows of d."""
        width, latent = self.architecture.hidden_size, self.architecture.moe.latent_size
        columns = self.divided("channels of the stream", width, tp)
        routed, shared = latent + layout.gap(), columns + layout.gap()
        return {
            "columns": columns,
            "routed_row_stride": routed,
            "routed_stride": rows * routed,
            "shared_row_stride": shared,
            "shared_stride": rows * shared,
            "residual_stride": layout.choice(width, columns) + layout.gap(),
        }

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, latent = workload.axes, self.architecture.moe.latent_size

        def ranks(name: str, width: int) -> TensorSpec:
            strides = (axes[f"{name}_stride"], axes[f"{name}_row_stride"], 1)
            return tensor(name, DType.BF16, TensorRole.INPUT, (axes["tp"], axes["rows"], width), strides)

        return (
            static("latent_norm", latent),
            static("latent_up", axes["columns"], latent),
            ranks("routed", latent),
            ranks("shared", axes["columns"]),
            rows_of("residual", axes["rows"], axes["columns"], axes["residual_stride"]),
            output("stream", axes["rows"], axes["columns"]),
        )

    def cost(self, workload: Workload) -> Cost:
        """Weights once, exchange buffers included. The norm: two for the square, two to scale."""
        axes, latent = workload.axes, self.architecture.moe.latent_size
        rows, tp, columns = axes["rows"], axes["tp"], axes["columns"]
        return Cost(
            bytes_read=2 * (latent * (1 + columns) + rows * (tp * (latent + columns) + columns)),
            bytes_written=2 * rows * columns,
            flops=rows * (latent * (2 * columns + tp - 1 + 4) + columns * (tp + 1)),
        )
