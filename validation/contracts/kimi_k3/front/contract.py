"""The contract of `front`."""

from ....tensors import DType
from ...base import Cost, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static


class Front(RankOp):
    """Three products of one input, all that a MoE layer reads of it: they fit one launch.

    With E experts, latent size L, and S this rank's channels of the shared expert:

    static  router [E, d], latent_down [L, d] (both replicated), shared_gate_up [gate S | up S, d] bf16
    input   x [rows, d] bf16
    output  logits [rows, E] float32, never narrower: bf16 logits change the experts of one token in twenty
    output  latent [rows, L] bf16
    output  shared [rows, S] bf16: SiTU(gate, up) = b tanh(g / b) sigmoid(g) * l tanh(u / l), b = 4, l = 25

    Sums in float32 or better. Published roundings: latent; gate and up; shared. A kernel may keep gate and up wide.
    A row that holds NaN gives NaN and disturbs no other. Equations: step/router.py, step/situ.py.
    """

    op = "front"
    row_axes = {"x": 0}
    optional_axes = ("experts",)

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """S, and how far rows of x lie apart."""
        moe = self.architecture.moe
        size = self.divided("shared-expert channels", moe.shared_experts * moe.expert_intermediate_size, tp)
        return {"shared": size, "x_stride": self.architecture.hidden_size + layout.gap()}

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, moe, width = workload.axes, self.architecture.moe, self.architecture.hidden_size
        rows = axes["rows"]
        return (
            static("router", self.experts(workload), width),
            static("latent_down", moe.latent_size, width),
            static("shared_gate_up", 2 * axes["shared"], width),
            rows_of("x", rows, width, axes["x_stride"]),
            output("logits", rows, self.experts(workload), dtype=DType.F32),
            output("latent", rows, moe.latent_size),
            output("shared", rows, axes["shared"]),
        )

    def cost(self, workload: Workload) -> Cost:
        """The three weights once; the activation, which is linear in S alone, is left out of the flops."""
        axes, moe, width = workload.axes, self.architecture.moe, self.architecture.hidden_size
        rows, experts = axes["rows"], self.experts(workload)
        columns = experts + moe.latent_size + 2 * axes["shared"]
        return Cost(
            bytes_read=2 * width * (columns + rows),
            bytes_written=rows * (4 * experts + 2 * moe.latent_size + 2 * axes["shared"]),
            flops=2 * rows * columns * width,
        )
