"""The contract of `mla_query`."""

from typing import TYPE_CHECKING

from ....tensors import DType
from ...base import Cost, TensorRole, TensorSpec, Workload
from ..op import Layout, output, rows_of, static, tensor
from ..paged import PagedOp

if TYPE_CHECKING:
    from torch import Tensor

    from ..op import Tensors


class MlaQuery(PagedOp):
    """Queries in the latent space, and the newest row of the cache.

    static  q_a_norm [1536], kv_a_norm [512] bf16; q_b [h * 192, 1536] bf16, a head's 128 unshared rows before its 64
            shared ones; up_key [h, 128, 512] bf16: the key rows of kv_b, a view that leaves out its value rows
    input   projected [rows, W] bf16, as `mla_projection` leaves it: q_a 1536 | kv_a 512 | shared key 64 | gate, which
            holds anything here, NaN included
    input   page_table, lengths: see `PagedOp`
    state   cache: the row at position length - 1 becomes RMSNorm(kv_a) | shared key, raw; every other bit stays
    output  query [rows, h, 576] bf16: up_key^T q_nope | q_rope of q = q_b RMSNorm(q_a), never rotated; +0 for length 0

    Sums and statistics in float32 or better. Published roundings: x / sqrt(..) and the normed row of either norm; q;
    query; the cached row. A kernel may leave out all but the last two. Length 0: no page is read or written.
    Equations: step/mla.py, step/norm.py.
    """

    op = "mla_query"
    row_axes = {"projected": 0}
    cache_role = TensorRole.STATE

    def table_width(self, rows: int) -> int:
        """Two pages a row: how far back the cache reaches does not matter here."""
        return 2

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """h, W and the cache's layout."""
        mla, heads = self.architecture.mla, self.heads(tp)
        width = mla.q_lora_rank + self.latent_width + heads * mla.v_head_dim
        return {**super().axes(tp, rows, layout), "width": width, "projected_stride": width + layout.gap()}

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        axes, mla = workload.axes, self.architecture.mla
        rows, heads = axes["rows"], axes["heads"]
        apart = (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank
        shape, strides = (heads, mla.qk_nope_head_dim, mla.kv_lora_rank), (apart, mla.kv_lora_rank, 1)
        return (
            static("q_a_norm", mla.q_lora_rank),
            static("kv_a_norm", mla.kv_lora_rank),
            static("q_b", heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim), mla.q_lora_rank),
            tensor("up_key", DType.BF16, TensorRole.STATIC, shape, strides),
            rows_of("projected", rows, axes["width"], axes["projected_stride"]),
            *self.paged_tensors(workload),
            output("query", rows, heads, self.latent_width),
        )

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws the row's projection and cached rows."""
        from ..paged_maths import redrawn

        return redrawn(self, inputs, workload, row, seed)

    def cost(self, workload: Workload) -> Cost:
        """Weights once, the columns before the gate, one table entry a row. The norms: four an element."""
        axes, mla = workload.axes, self.architecture.mla
        rows, heads = axes["rows"], axes["heads"]
        per_head = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) * mla.q_lora_rank
        per_head += mla.qk_nope_head_dim * mla.kv_lora_rank
        norms = mla.q_lora_rank + mla.kv_lora_rank
        columns = mla.q_lora_rank + self.latent_width
        return Cost(
            bytes_read=2 * (norms + heads * per_head + rows * columns) + 8 * rows,
            bytes_written=2 * rows * self.latent_width * (heads + 1),
            flops=rows * (2 * heads * per_head + 4 * norms),
        )
