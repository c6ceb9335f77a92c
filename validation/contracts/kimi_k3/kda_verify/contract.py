"""The contract of `kda_verify`: `kda_decode` for several tokens a request, of which any number may be accepted."""

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from ....errors import UserError
from ...base import Cost, TensorSpec, Workload
from ..kda_decode.contract import KdaDecode
from . import layout

if TYPE_CHECKING:
    from torch import Tensor

    from ...stock import StockPath

    Tensors = Mapping[str, Tensor]
    Path = Callable[[Tensors, Workload], dict[str, Tensor]]


class KdaVerify(KdaDecode):
    """As `KdaDecode`, for `tokens` (1 to 8) consecutive rows of each request: rows = requests * tokens.

    Row r tokens + t is token t of request r. It sees the request's committed state moved on by the tokens before it.

    input   slots [requests, 1 + tokens] int32, rows possibly further apart: the pages of each request. Page 0 of the row
            holds the committed state, which is read and keeps every bit. The state behind the first t tokens goes to
            page t, t = 1 to tokens, whatever that held (NaN included). Live requests have 1 + tokens pages of their own.
            A first entry <= 0 marks padding: the request's rows of out are +0, its projections may hold NaN, and the
            other entries of its row hold anything; no page is read or written.
    state   conv_state, recurrent_state: page t as `kda_decode` would leave it after t steps of one token

    So the engine accepts a tokens by exchanging entries 0 and a: nothing is copied, and a = 0 needs no exception.

    Roundings as there: between tokens the state stays float32 or better. Rows of one request depend on each other, so
    `row_of` and `perturb_row` number requests; numbers past the last request own nothing.
    """

    op = "kda_verify"

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """One workload for each TP and batch bucket, of widths 8 and 2; held out: other widths, gaps in everything."""
        shards = [self.architecture.kda_shard(tp) for tp in self.policy.tp]
        if held_out:
            return tuple(layout.held_out(shard, rows) for shard in shards for rows in self.policy.held_out_rows)
        return tuple(
            layout.workload(shard, f"tp{shard.tp}-b{rows}", *layout.declared(rows))
            for shard in shards for rows in self.policy.batch_buckets
        )  # fmt: skip

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Same TP and bucket; requests, width, pool size and all strides redrawn."""
        return layout.varied(self._shard(workload), workload, self.policy.batch_buckets, seed)

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """See the class."""
        return layout.tensors(self._shard(workload), workload)

    @property
    def distributions(self) -> Mapping[str, str]:
        """See inputs.py."""
        from .inputs import DISTRIBUTIONS

        return DISTRIBUTIONS

    def make_inputs(self, workload: Workload, distribution: str, seed: int) -> "dict[str, Tensor]":
        """Contiguous CPU tensors: static, inputs and initial state. Equal arguments give equal bits."""
        from .inputs import draw

        return draw(self.stages(workload), workload, distribution, seed)

    def oracle(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """Single steps of the float64 oracle; the state is not rounded between them."""
        from .steps import steps

        return steps(super().oracle, inputs, workload)

    def plain(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """Single steps of the plain path."""
        from .steps import steps

        return steps(super().plain, inputs, workload)

    def stock(self, device: str) -> "StockPath":
        """The launches of `kda_decode`'s, whose convolution and recurrence go through a request's tokens."""
        return import_module(f"{__package__.rpartition('.')[0]}.stock").op(self, device)

    @cached_property
    def hypotheses(self) -> "Mapping[str, Path]":
        """Mistakes about the pages of several tokens, then those that each token's own step can have."""
        from ..kda_decode.hypotheses import VARIANTS
        from .hypotheses import MISTAKES
        from .steps import steps

        def repeated(variant: Callable) -> "Path":
            def one(inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
                return variant(self.stages(workload), inputs, workload)

            return lambda inputs, workload: steps(one, inputs, workload)

        def bound(mistake: Callable) -> "Path":
            return lambda inputs, workload: mistake(super(KdaVerify, self).oracle, inputs, workload)

        own = {description: bound(mistake) for description, mistake in MISTAKES.items()}
        # A mistake about rows is about all of a step's, not one token's.
        each = {description: repeated(variant) for description, variant in VARIANTS.items() if description not in own}
        return own | each

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """The live request that writes a page, or whose row it is."""
        slots = inputs["slots"]
        if tensor == "out":
            request = index[0] // (slots.shape[1] - 1)
            return request if slots[request, 0] > 0 else None
        if tensor not in self.produced:
            raise UserError(f"kda_verify does not produce {tensor!r}", f"it produces {', '.join(self.produced)}")
        # The committed page is nobody's: it is read, and keeps every bit.
        found = ((slots[:, 1:] == index[0]) & (slots[:, :1] > 0)).nonzero()
        return int(found[0, 0]) if len(found) else None

    def redrawable(self, workload: Workload) -> int:
        """Requests."""
        return workload.axes["rows"] // workload.axes["tokens"]

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws the projections of request `row`. Its committed page stays: it is nobody's to write, so that whatever
        changes there is a fault."""
        from .inputs import redraw_request

        return redraw_request(inputs, self._shard(workload), row, seed)

    def cost(self, workload: Workload) -> Cost:
        """Of single steps, but each request's state is read once: it need not leave the chip between tokens."""
        each, tokens = super().cost(workload), workload.axes["tokens"]
        shard, rows = self._shard(workload), workload.axes["rows"]
        page = 4 * shard.heads * shard.head_dim**2 + 2 * (shard.conv_width - 1) * 3 * shard.channels
        requests = rows // tokens
        return each.model_copy(
            update={"bytes_read": each.bytes_read - (rows - requests) * page + 4 * requests}
        )
