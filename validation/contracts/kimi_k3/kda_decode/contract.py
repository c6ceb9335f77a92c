"""The contract of `kda_decode`: what the judge asks for and holds a candidate against."""

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from ....errors import UserError
from ...base import Comparison, Cost, Far, OpContract, TensorSpec, Workload
from ...policy import OpPolicy
from ..architecture import Architecture, KdaShard
from . import layout

if TYPE_CHECKING:
    from torch import Tensor

    from ...stock import StockPath
    from .oracle import Oracle

    Tensors = Mapping[str, Tensor]
    Path = Callable[[Tensors, Workload], dict[str, Tensor]]


class KdaDecode(OpContract):
    """One token a request through Kimi Delta Attention, after the in-projection and before the output projection.

    With h heads a rank, p = 128 h, W = 4 p + 128 + h padded to 16, and pools of `slots` pages:

    static  f_b [p, 128] bf16; conv_weight [3 p, 4] fp32 (q | k | v, oldest tap first); a_log [h] fp32;
            dt_bias [p] fp32; o_norm [128] bf16
    input   projected [rows, W] bf16: q | k | v | g | f_a 128 | beta h | pad. Pad columns hold anything, NaN included.
            Rows may lie further apart than W.
    input   slots [rows] int32, possibly strided: the page of each row. Live rows have distinct pages. A slot <= 0
            marks padding: the row's output is +0, its projection may hold NaN, no page is read or written.
            Page 0 is the null page and never changes.
    state   conv_state [slots, 3, 3 p] bf16, (time, channel), oldest first: after the step the oldest is dropped and the
            raw projection appended, bit for bit.
    state   recurrent_state [slots, h, 128 (v), 128 (k)] fp32
    output  out [rows, p] bf16, rounded once

    Pages lie further apart than they are large. Element offsets of a page can pass 2^31, so slot times page stride
    needs 64-bit arithmetic (`layout.far` is such a workload). Strides of pages and rows are multiples of 16 bytes.

    Roundings: gamma = bf16(f_b f_a), to nearest even; out. All else is float32 or better: q, k and v after the
    convolution, the decay, beta, the recurrence, the norm. Pages that belong to no live row keep every bit. A row's
    results do not depend on the other rows.

    Equations: oracle.py. Sources: the KDA layer of the published Kimi K3 modelling code as served by vLLM, and
    fla-core's naive recurrence.
    """

    model = "kimi_k3"
    op = "kda_decode"

    def __init__(self, architecture: Architecture, policy: OpPolicy) -> None:
        self.architecture = architecture
        self.policy = policy

    def workloads(self, *, held_out: bool = False) -> tuple[Workload, ...]:
        """One workload for each TP and batch bucket; held out: other row counts, with gaps in every row and page."""
        shards = [self.architecture.kda_shard(tp) for tp in self.policy.tp]
        if not held_out:
            return tuple(
                layout.workload(shard, f"tp{shard.tp}-b{rows}", rows)
                for shard in shards
                for rows in self.policy.batch_buckets
            )
        return tuple(
            layout.workload(
                shard,
                f"tp{shard.tp}-r{rows}",
                rows,
                slots=rows + 2,
                projected_gap=8 * (rows % 5),
                conv_gap=8 * (1 + rows),
                state_gap=4 * (3 + rows),
                slots_stride=1 + rows % 3,
                held_out=True,
            )
            for shard in shards
            for rows in self.policy.held_out_rows
        )

    def vary(self, workload: Workload, seed: int) -> Workload:
        """Same TP and bucket; row count (odd where the bucket has one), pool size and all strides redrawn."""
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
        """`conv_state` in bf16, `recurrent_state` and `out` in float64."""
        return self.stages(workload)(inputs)

    def plain(self, inputs: "Tensors", workload: Workload) -> "dict[str, Tensor]":
        """Unfused float32, two passes over the state; see plain.py."""
        from . import plain

        return plain.step(inputs, self._shard(workload), self.architecture.eps, self.architecture.kda.gate_lower_bound)

    def stock(self, device: str) -> "StockPath":
        """Convolution update, gate GEMM, fla-core's recurrent KDA kernel and a gated norm, one launch each.

        See stock/kda.py, which is no part of the exam: what decides is the oracle.
        """
        return import_module(f"{__package__.rpartition('.')[0]}.stock").op(self, device)

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """As `contract.toml` sets them."""
        return self.policy.comparisons

    @cached_property
    def hypotheses(self) -> "Mapping[str, Path]":
        """See hypotheses.py."""
        from .hypotheses import VARIANTS

        def bound(variant: Callable) -> "Path":
            return lambda inputs, workload: variant(self.stages(workload), inputs, workload)

        return {description: bound(variant) for description, variant in VARIANTS.items()}

    def far(self, workload: Workload) -> Far:
        """Pages of the recurrent state past element 2^31, as a pool of eleven thousand requests has them at TP8."""
        shift = 2**31 // workload.axes["state_page_stride"] + 1
        axes = workload.axes | {"slots": workload.axes["slots"] + shift}
        return Far(
            workload=Workload(name=f"{workload.name}-far", axes=axes, held_out=True), shift=shift, pages="slots",
            pools=("conv_state", "recurrent_state"),
        )  # fmt: skip

    def localise(self, wrong: frozenset[str]) -> str | None:
        """What each tensor depends on: `out` on all; the recurrent state on all but q, g and o_norm."""
        if wrong == {"out"}:
            return "both states are right, so the fault is in q, the output gate or the gated norm"
        if wrong == {"conv_state"}:
            return "only the shift of the convolution state is wrong"
        if "conv_state" not in wrong and "recurrent_state" in wrong:
            return "the convolution state is right, so the fault is in the convolution, the norm of k, the decay, beta or " \
                   "the update"
        return None

    def row_of(self, tensor: str, index: tuple[int, ...], inputs: "Tensors") -> int | None:
        """A page belongs to the live row that names it; an output row to itself if it is live."""
        slots = inputs["slots"]
        if tensor == "out":
            return index[0] if slots[index[0]] > 0 else None
        if tensor not in self.produced:
            raise UserError(f"kda_decode does not produce {tensor!r}", f"it produces {', '.join(self.produced)}")
        rows = (slots == index[0]).nonzero()
        return int(rows[0]) if index[0] > 0 and len(rows) else None

    def perturb_row(self, inputs: "Tensors", workload: Workload, row: int, seed: int) -> "dict[str, Tensor]":
        """Redraws the row's projection and, if it is live, its page in both pools."""
        from .inputs import redraw_row

        return redraw_row(inputs, self._shard(workload), row, seed)

    def cost(self, workload: Workload) -> Cost:
        """With every row live. Each byte is counted once, as if weights were read once for all rows.

        flops, multiply and add apart, for a row and head with D = 128: decay D^2, two reads of the state 4 D^2, update
        2 D^2, gate 2 D^2; what grows with D alone is left out.
        """
        shard, rows = self._shard(workload), workload.axes["rows"]
        dim, channels = shard.head_dim, shard.channels
        recurrent = 4 * shard.heads * dim**2
        window = 2 * (shard.conv_width - 1) * 3 * channels
        columns = shard.columns["pad"].start
        weights = 2 * channels * shard.gate_rank + 4 * 3 * channels * shard.conv_width + 4 * shard.heads
        weights += 4 * channels + 2 * dim
        return Cost(
            bytes_read=weights + rows * (recurrent + window + 2 * columns + 4),
            bytes_written=rows * (recurrent + window + 2 * channels),
            flops=rows * shard.heads * 9 * dim**2,
        )

    def _shard(self, workload: Workload) -> KdaShard:
        return layout.shard_of(self.architecture, workload)

    def stages(self, workload: Workload) -> "Oracle":
        """The oracle at `workload`, with its stages to be called apart."""
        from .oracle import Oracle

        return Oracle(self._shard(workload), self.architecture.eps, self.architecture.kda.gate_lower_bound)
