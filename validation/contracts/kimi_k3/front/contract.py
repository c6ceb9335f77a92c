"""The contract of `front`."""

from typing import Self

from ....tensors import DType
from ...base import Cost, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static


class Front(RankOp):
    """Three products of one input, all that a MoE layer reads of it: they fit one launch.

    With E experts and latent size L, both divided over `shards` ranks, and S this rank's channels of the shared expert:

    static  router [E / shards, d], latent_down [L / shards, d], shared_gate_up [gate S | up S, d] bf16
    input   x [rows, d] bf16
    output  logits [rows, E / shards] float32, never narrower: bf16 logits change the experts of one token in twenty
    output  latent [rows, L / shards] bf16
    output  shared [rows, S] bf16: SiTU(gate, up) = b tanh(g / b) sigmoid(g) * l tanh(u / l), b = 4, l = 25

    `shards` is tp: this rank's rows of two weights that checkpoints replicate, and what comes out is gathered before it
    is read. It is 1 where a rank computes all rows, as a part must that chooses experts by logits of its own (`whole`).

    Sums in float32 or better. Published roundings: latent; gate and up; shared. A kernel may keep gate and up wide.
    A row that holds NaN gives NaN and disturbs no other. Equations: step/router.py, step/situ.py.
    """

    op = "front"
    row_axes = {"x": 0}
    optional_axes = ("experts",)
    shards: int | None = None
    """Over how many ranks rows are divided; None: over all"""

    def whole(self) -> Self:
        """The same op with all rows of router and latent down-projection on every rank."""
        found = type(self)(self.architecture, self.policy)
        found.shards = 1
        return found

    def own(self, workload: Workload) -> tuple[int, int]:
        """Rows of the router and of the latent down-projection on one rank: the published sizes divide evenly, of others
        the first rank has the most."""
        shards = workload.axes["shards"]
        return -(-self.experts(workload) // shards), -(-self.architecture.moe.latent_size // shards)

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """S, the ranks that share rows, and how far rows of x lie apart."""
        moe = self.architecture.moe
        size = self.divided("shared-expert channels", moe.shared_experts * moe.expert_intermediate_size, tp)
        return {"shared": size, "shards": self.shards or tp, "x_stride": self.architecture.hidden_size + layout.gap()}

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, width = workload.axes, self.architecture.hidden_size
        rows, (experts, latent) = axes["rows"], self.own(workload)
        return (
            static("router", experts, width),
            static("latent_down", latent, width),
            static("shared_gate_up", 2 * axes["shared"], width),
            rows_of("x", rows, width, axes["x_stride"]),
            output("logits", rows, experts, dtype=DType.F32),
            output("latent", rows, latent),
            output("shared", rows, axes["shared"]),
        )

    def cost(self, workload: Workload) -> Cost:
        """The three weights once; the activation, which is linear in S alone, is left out of the flops."""
        axes, width = workload.axes, self.architecture.hidden_size
        rows, (experts, latent) = axes["rows"], self.own(workload)
        columns = experts + latent + 2 * axes["shared"]
        return Cost(
            bytes_read=2 * width * (columns + rows),
            bytes_written=rows * (4 * experts + 2 * latent + 2 * axes["shared"]),
            flops=2 * rows * columns * width,
        )
