"""The contract of `mla_core`."""

from typing import TYPE_CHECKING

from ....tensors import DType
from ...base import Cost, TensorRole, TensorSpec, Workload
from ..op import output, tensor
from ..paged import PagedOp

if TYPE_CHECKING:
    from torch import Tensor

    from ..op import Tensors

_TOKENS = 16384
_LONGEST = 4096


class MlaCore(PagedOp):
    """Each row's heads over its own latent rows, which serve as keys and values of all heads.

    input   query [rows, h, 576] bf16: absorbed 512 | unrotated 64
    input   page_table, lengths, cache: see `PagedOp`; the cache holds the newest row already and is not written
    output  context [rows, h, 512] bf16: sum_m softmax_m(192^-0.5 <query, row_m>) row_m[:512]; +0 for length 0

    Scores, softmax and sums in float32 or better. Published rounding: context. Probabilities may meet the values in
    bf16, as tensor cores take them: the comparison leaves room for that, and for nothing narrower. A row's result does
    not depend on the other rows. Equations: step/mla.py (absorbed form).
    """

    op = "mla_core"
    row_axes = {"query": 0}
    cache_role = TensorRole.INPUT

    def table_width(self, rows: int) -> int:
        """16384 tokens in all as declared, 4096 a row at most: a layer's cache of 19 MB, drawn on a CPU in a moment."""
        return min(_LONGEST, _TOKENS // rows) // 64

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        rows, heads = workload.axes["rows"], workload.axes["heads"]
        return (
            tensor("query", DType.BF16, TensorRole.INPUT, (rows, heads, self.latent_width)),
            *self.paged_tensors(workload),
            output("context", rows, heads, self.architecture.mla.kv_lora_rank),
        )

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws the row's query and cached rows."""
        from ..paged_maths import redrawn

        return redrawn(self, inputs, workload, row, seed)

    def cost(self, workload: Workload) -> Cost:
        """At full tables: every cached row once, for all heads. A head and row of the cache: 576 and 512 products."""
        axes, mla = workload.axes, self.architecture.mla
        rows, heads, width = axes["rows"], axes["heads"], self.latent_width
        tokens = rows * axes["table_width"] * axes["page_size"]
        return Cost(
            bytes_read=2 * width * (tokens + rows * heads) + 4 * rows * (axes["table_width"] + 1),
            bytes_written=2 * rows * heads * mla.kv_lora_rank,
            flops=2 * tokens * heads * (width + mla.kv_lora_rank),
        )
