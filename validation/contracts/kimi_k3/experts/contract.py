"""The contract of `experts`."""

from typing import Self

from ....tensors import DType
from ...base import Cost, TensorRole, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static, tensor

_GROUP = 32

# All 896 experts of a layer are 1.9 GB on a rank of TP8. A trial on a CPU holds several copies of its buffers and
# draws each, so what is judged everywhere has 64: still 4 for each place of a row, so that some stay empty up to
# 8 rows and all are shared at 64. The whole number is held out, one workload for each TP and bucket, for a GPU; parts
# that route declare it.
REDUCED = 64


class Experts(RankOp):
    """Sixteen MXFP4 experts a row, on this rank's intermediate channels.

    With E experts, k places, latent size L, I intermediate channels:

    static  w13_packed [E, gate I | up I, L / 2] u8, w13_scale [E, 2 I, L / 32] u8
    static  w2_packed [E, L, I / 2] u8, w2_scale [E, L, I / 32] u8
    input   x [rows, L] bf16: the latent row
    input   ids [rows, k] int32: distinct within a row, 0 to E - 1
    input   weights [rows, k] float32
    output  routed [rows, L] bf16: sum_k w_k W2_k SiTU(W13_k x), what this rank sends

    A byte holds two E2M1 elements, the even one in its low nibble; a scale byte s means 2^(s - 127) for 32 elements
    along the last axis. Sums in float32 or better. Published roundings: gate and up; the activation; each expert's
    output; the sum. A kernel may leave out all but the last; it may not narrow x or the activation. Scales of experts
    that no row chose may be NaN. A row that holds NaN gives NaN and disturbs no other.

    Equations: step/moe.py, weights/mxfp4.py.
    """

    op = "experts"
    row_axes = {"x": 0, "ids": 0, "weights": 0}

    whole = False

    def with_all(self) -> Self:
        """The same op with all experts declared, as a part needs whose router chooses among them; see `small`."""
        found = type(self)(self.architecture, self.policy)
        found.whole = True
        return found

    def small(self) -> tuple[Workload, ...]:
        """Where all experts are declared and are many: the same workloads with as many as are judged alone."""
        if not self.whole or self.architecture.moe.experts <= REDUCED:
            return ()
        return tuple(_named(workload, "few", REDUCED) for workload in super().workloads())

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """E, I, and how far rows of x lie apart."""
        moe = self.architecture.moe
        groups = self.divided("MXFP4 groups of expert channels", moe.expert_intermediate_size // _GROUP, tp)
        return {
            "experts": moe.experts if self.whole else min(REDUCED, moe.experts),
            "channels": _GROUP * groups,
            "x_stride": moe.latent_size + layout.gap(),
        }

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """As of every op with a reduced number of experts; held out as well: all experts, in every bucket."""
        if not held_out or self.whole:
            return super().workloads(held_out=held_out)
        whole = (_named(workload, "all", self.architecture.moe.experts) for workload in super().workloads())
        return super().workloads(held_out=True) + tuple(w.model_copy(update={"held_out": True}) for w in whole)

    def vary(self, workload: Workload, seed: int) -> Workload:
        """As of every op, with the same number of experts."""
        varied = super().vary(workload, seed)
        return varied.model_copy(update={"axes": {**varied.axes, "experts": workload.axes["experts"]}})

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, moe = workload.axes, self.architecture.moe
        rows, experts, channels, latent = axes["rows"], axes["experts"], axes["channels"], moe.latent_size
        return (
            static("w13_packed", experts, 2 * channels, latent // 2, dtype=DType.U8),
            static("w13_scale", experts, 2 * channels, latent // _GROUP, dtype=DType.U8),
            static("w2_packed", experts, latent, channels // 2, dtype=DType.U8),
            static("w2_scale", experts, latent, channels // _GROUP, dtype=DType.U8),
            rows_of("x", rows, latent, axes["x_stride"]),
            tensor("ids", DType.I32, TensorRole.INPUT, (rows, moe.top_k)),
            tensor("weights", DType.F32, TensorRole.INPUT, (rows, moe.top_k)),
            output("routed", rows, latent),
        )

    def expected_experts(self, workload: Workload) -> int:
        """Different experts that `rows` independent, even choices meet on average: E (1 - (1 - k / E)^rows)."""
        experts, rows = workload.axes["experts"], workload.axes["rows"]
        return round(experts * (1 - (1 - self.architecture.moe.top_k / experts) ** rows))

    def cost(self, workload: Workload) -> Cost:
        """Each expected expert's weights once: 4 bits an element and 8 a group. Activations linear in I left out."""
        axes, moe = workload.axes, self.architecture.moe
        rows, elements = axes["rows"], 3 * axes["channels"] * moe.latent_size
        weights = self.expected_experts(workload) * (elements // 2 + elements // _GROUP)
        return Cost(
            bytes_read=weights + rows * (2 * moe.latent_size + 8 * moe.top_k),
            bytes_written=2 * rows * moe.latent_size,
            flops=rows * moe.top_k * (2 * elements + 2 * moe.latent_size),
        )


def _named(workload: Workload, suffix: str, experts: int) -> Workload:
    axes = {**workload.axes, "experts": experts}
    return workload.model_copy(update={"name": f"{workload.name}-{suffix}", "axes": axes})
