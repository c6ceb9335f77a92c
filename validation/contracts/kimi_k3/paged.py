"""Ops over the paged latent cache of an MLA layer: page tables, lengths, and who owns a page."""

from abc import abstractmethod
from typing import TYPE_CHECKING

from ...tensors import DType
from ..base import TensorRole, TensorSpec, Workload
from .op import ALIGNED, Layout, RankOp, tensor

if TYPE_CHECKING:
    from .op import Tensors


class PagedOp(RankOp):
    """An op whose rows each own pages of a latent cache.

    input   page_table [rows, w] int32: the pages of each row in order of position; distinct pages, never page 0. Only
            the first ceil(length / page size) entries of a row mean anything; the others hold any integer
    input   lengths [rows] int32: tokens that a row sees, its own newest one included; 0 marks padding
    cache   [pages, page size, latent 512 | shared key 64] bf16; pages lie further apart than they are large, and what
            lies behind a row's length, in page 0 (the null page) or in pages of nobody may be NaN
    """

    layout_axes = {
        "page_table": ("page_size", "table_width", "table_stride", "pages", "page_stride"),
        "cache": ("page_size", "table_width", "table_stride", "pages", "page_stride"),
    }
    cache_role: TensorRole

    @abstractmethod
    def table_width(self, rows: int) -> int:
        """w at a page size of 64."""

    def heads(self, tp: int) -> int:
        """Heads of one rank."""
        return self.divided("MLA heads", self.architecture.mla.heads, tp)

    @property
    def latent_width(self) -> int:
        """Width of a cached row, and of an absorbed query."""
        return self.architecture.mla.kv_lora_rank + self.architecture.mla.qk_rope_head_dim

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """Pages of 64 tokens as declared; drawn, other sizes, pools and strides."""
        size = layout.choice(64, 16, 32, 128)
        width = max(1, self.table_width(rows) * 64 // size)
        return {
            "heads": self.heads(tp),
            "page_size": size,
            "table_width": width,
            "table_stride": width + layout.choice(0, 1, 4, 13),
            "pages": 1 + rows * width + layout.choice(4, 0, 1, 9),
            "page_stride": size * self.latent_width + layout.gap() + 8 * ALIGNED,
        }

    def paged_tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """page_table, lengths, cache."""
        axes = workload.axes
        rows, width, size = axes["rows"], axes["table_width"], axes["page_size"]
        return (
            tensor("page_table", DType.I32, TensorRole.INPUT, (rows, width), (axes["table_stride"], 1)),
            tensor("lengths", DType.I32, TensorRole.INPUT, (rows,)),
            tensor(
                "cache",
                DType.BF16,
                self.cache_role,
                (axes["pages"], size, self.latent_width),
                (axes["page_stride"], self.latent_width, 1),
            ),
        )

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """A page belongs to the live row whose table names it within its length; an output row to itself if live."""
        super().row_of(tensor, index, inputs)
        if tensor != "cache":
            return index[0] if inputs["lengths"][index[0]] > 0 else None
        size = inputs["cache"].shape[1]
        for row, length in enumerate(inputs["lengths"].tolist()):
            if index[0] in inputs["page_table"][row, : -(-length // size)].tolist():
                return row
        return None
