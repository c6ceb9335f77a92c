"""The contract of `mla_value`."""

from ....tensors import DType
from ...base import Cost, TensorRole, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, tensor


class MlaValue(RankOp):
    """Values of each head from its attended latent, times the output gate.

    static  up_value [h, 128, 512] bf16: the value rows of kv_b, a view that leaves out its key rows
    input   context [rows, h, 512] bf16
    input   projected [rows, W] bf16, as `mla_projection` leaves it: the last h * 128 columns are the gate, the others
            hold anything, NaN included
    output  out [rows, h * 128] bf16: (up_value context) sigmoid(gate)

    Sums in float32 or better. Published roundings: the value; out. A kernel may leave out the first. A row that holds
    NaN gives NaN and disturbs no other. Equations: step/mla.py.
    """

    op = "mla_value"
    row_axes = {"context": 0, "projected": 0}

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """h and W."""
        mla = self.architecture.mla
        heads = self.divided("MLA heads", mla.heads, tp)
        width = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim + heads * mla.v_head_dim
        return {"heads": heads, "width": width, "projected_stride": width + layout.gap()}

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, mla = workload.axes, self.architecture.mla
        rows, heads = axes["rows"], axes["heads"]
        apart = (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank
        shape, strides = (heads, mla.v_head_dim, mla.kv_lora_rank), (apart, mla.kv_lora_rank, 1)
        return (
            tensor("up_value", DType.BF16, TensorRole.STATIC, shape, strides),
            tensor("context", DType.BF16, TensorRole.INPUT, (rows, heads, mla.kv_lora_rank)),
            rows_of("projected", rows, axes["width"], axes["projected_stride"]),
            output("out", rows, heads * mla.v_head_dim),
        )

    def cost(self, workload: Workload) -> Cost:
        """The weight once, the gate's columns alone; the gate, linear in the channels, is left out of the flops."""
        axes, mla = workload.axes, self.architecture.mla
        rows, channels = axes["rows"], axes["heads"] * mla.v_head_dim
        latents = axes["heads"] * mla.kv_lora_rank
        return Cost(
            bytes_read=2 * (channels * mla.kv_lora_rank + rows * (latents + channels)),
            bytes_written=2 * rows * channels,
            flops=2 * rows * channels * mla.kv_lora_rank,
        )
