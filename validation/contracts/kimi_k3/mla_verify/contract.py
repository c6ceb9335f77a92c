"""The contract of `mla_verify`: `mla_core` for several tokens a request, which share the request's cached rows."""

from typing import TYPE_CHECKING

from ...base import Cost, Far, Workload
from ..mla_core.contract import MlaCore
from ..op import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from ..op import Tensors

WIDTH = 8
"""Tokens of a request at most"""


class MlaVerify(MlaCore):
    """As `MlaCore`, for `tokens` (1 to 8) consecutive rows of each request: rows = requests * tokens.

    Row r tokens + t is token t of request r. The cached rows of all its tokens are there already, and each token sees
    those up to its own.

    input   page_table [rows, w] int32: every row of a request names the same pages, as many as its last token sees; those
            of different requests are distinct
    input   lengths [rows] int32: tokens that a row sees, its own included: of a request's live rows one more each. A
            request may bring fewer tokens, none even: its last rows are padding of length 0, and hold anything as query;
            where no row is live, the table holds anything
    cache   what lies behind the request's last live token may be NaN

    A row's result depends neither on other requests nor on the tokens behind it, whose cached rows are finite. What a row
    alone reads is its query, and of the last token its cached row.
    """

    op = "mla_verify"

    def axes(self, tp: int, rows: int, layout: Layout) -> dict[str, int]:
        """Widths of 8 where there is room as declared, else of 2, else one request; drawn, any that divides the rows."""
        widths = _widths(rows)
        declared = next((tokens for tokens in (WIDTH, 2) if tokens in widths), widths[0])
        tokens = layout.choice(declared, *(tokens for tokens in widths if tokens > 1))
        return self.paged_axes(tp, rows, tokens, layout)

    def paged_axes(self, tp: int, rows: int, tokens: int, layout: Layout) -> dict[str, int]:
        """The axes of `rows` rows in requests of `tokens`: the pool has pages for the requests, not for every row.

        Declared tables lie apart as well: small batches are one request, whose table's stride says nothing.
        """
        axes = super().axes(tp, rows // tokens, layout)
        return {**axes, "table_stride": axes["table_width"] + layout.choice(4, 0, 1, 13), "tokens": tokens}

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Same TP and bucket; requests, width and layout redrawn."""
        layout = self._drawn(f"{workload.name} {seed}")
        buckets = self.policy.batch_buckets
        bucket = next(bucket for bucket in buckets if workload.axes["rows"] <= bucket)
        below = max((other for other in buckets if other < bucket), default=0)
        # Any row count but the declared one, in any width but that of a single step; where there is none, the declared one.
        pairs = [(rows, tokens) for rows in range(below + 1, bucket) for tokens in _widths(rows) if tokens > 1]
        whole = [(bucket, tokens) for tokens in _widths(bucket) if tokens > 1 or bucket == 1]
        rows, tokens = layout.rng.choice(pairs or whole)
        axes = {"tp": workload.axes["tp"], "rows": rows, **self.paged_axes(workload.axes["tp"], rows, tokens, layout)}
        return Workload(name=f"{workload.name}-v{seed}", axes=axes, held_out=workload.held_out)

    def far(self, workload: Workload) -> Far:
        """Pages past element 2^31, as a pool of four million tokens has them."""
        shift = 2**31 // workload.axes["page_stride"] + 1
        axes = workload.axes | {"pages": workload.axes["pages"] + shift}
        at = Workload(name=f"{workload.name}-far", axes=axes, held_out=True)
        return Far(workload=at, shift=shift, pages="page_table", pools=("cache",))

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws what the row alone reads: its query, and the newest cached row where it is its request's last one."""
        from .inputs import redrawn

        return redrawn(self, inputs, workload, row, seed)

    def cost(self, workload: Workload) -> Cost:
        """At full tables: every cached row of a request once, for all heads of all its tokens."""
        axes, mla = workload.axes, self.architecture.mla
        rows, heads, width = axes["rows"], axes["heads"], self.latent_width
        seen = axes["table_width"] * axes["page_size"]
        requests = rows // axes["tokens"]
        return Cost(
            bytes_read=2 * width * (requests * seen + rows * heads) + 4 * (requests * axes["table_width"] + rows),
            bytes_written=2 * rows * heads * mla.kv_lora_rank,
            flops=2 * rows * seen * heads * (width + mla.kv_lora_rank),
        )


def _widths(rows: int) -> list[int]:
    """Tokens that requests of `rows` rows in all can have, descending."""
    return [tokens for tokens in range(WIDTH, 0, -1) if rows % tokens == 0]
