"""The contract of `attn_res_norm`."""

from ....tensors import DType
from ...base import Cost, TensorRole, TensorSpec, Workload
from ..op import Layout, RankOp, output, rows_of, static, tensor


class AttnResNorm(RankOp):
    """A softmax mix of up to nine residual streams and the RMSNorm behind it, at 187 places of a step.

    static  res_norm [d], res_proj [d], out_norm [d] bf16: key norm, query, and the weight of the norm that follows
    input   stream [rows, d] bf16: the residual stream, the last source
    input   blocks [n, rows, d] bf16: the banked streams, oldest first, up to 8. Block-major (rows of a block side by
            side) or token-major (blocks of a row side by side): strides say which. Absent where n, the axis
            `blocks`, is 0: the mix is the stream then, as in front of layer 0
    output  x [rows, d] bf16

    With sources v_1 .. v_n+1: l_s = (v_s . (res_norm * res_proj)) / sqrt(mean(v_s^2) + eps); h = sum_s softmax(l)_s v_s
    of the raw sources; x = h / sqrt(mean(h^2) + eps) * out_norm. Statistics, softmax and sum in float32 or better.
    Published roundings: h; h / sqrt(..); x. A kernel may leave out all but the last. Replicated: the same on every
    rank. A row that holds NaN gives NaN and disturbs no other.

    Equations: step/attn_res.py. Source: arXiv 2603.15031 as the published model places the mixes.
    """

    op = "attn_res_norm"
    row_axes = {"stream": 0, "blocks": 1}
    layout_axes = {"blocks": ("blocks", "block_stride", "block_row_stride")}

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """As declared all banks are full, as in the last layers; drawn, any number and either order."""
        width = self.architecture.hidden_size
        banks = (self.architecture.layers - 1) // self.architecture.attn_res_block_size + 1
        blocks = layout.choice(banks, *range(banks))
        row = width + layout.gap()
        token_major = layout.choice(0, 1)
        return {
            "blocks": blocks,
            "stream_stride": width + layout.gap(),
            "block_stride": row if token_major else rows * row,
            "block_row_stride": max(blocks, 1) * row if token_major else row,
        }

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, width = workload.axes, self.architecture.hidden_size
        shape = (axes["blocks"], axes["rows"], width)
        strides = (axes["block_stride"], axes["block_row_stride"], 1)
        blocks = tensor("blocks", DType.BF16, TensorRole.INPUT, shape, strides)
        return (
            static("res_norm", width),
            static("res_proj", width),
            static("out_norm", width),
            rows_of("stream", axes["rows"], width, axes["stream_stride"]),
            *((blocks,) if axes["blocks"] else ()),
            output("x", axes["rows"], width),
        )

    def cost(self, workload: Workload) -> Cost:
        """Every source once. An element of a source: two for the dot, the square and the sum each; then four."""
        axes, width = workload.axes, self.architecture.hidden_size
        sources = axes["blocks"] + 1
        return Cost(
            bytes_read=2 * width * (3 + axes["rows"] * sources),
            bytes_written=2 * width * axes["rows"],
            flops=axes["rows"] * width * (6 * sources + 4),
        )
