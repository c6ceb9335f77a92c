"""Known mistakes of decode paths, planted into the plain path one at a time: each has to be found, at its place.

Sources: defects that were reported against public implementations of this model and its relatives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..kda_decode.oracle import Step
from ..step.attn_res import Stream
from ..step.kda import Core, Kda
from ..step.mla import Mla
from ..step.norm import rms_norm
from ..step.precision import PUBLISHED, MixRounding, Precision
from ..step.state import PADDING, Batch, LatentCache
from .observed import Observed
from .paths import TorchPath

FUSED = Precision(
    arithmetic=PUBLISHED.arithmetic, storage=PUBLISHED.storage, recurrent_state=PUBLISHED.recurrent_state,
    mix=MixRounding.FINAL, round_normalised=False,
)  # fmt: skip
"""Where fused kernels round: the honest twin of all faults"""


@dataclass(frozen=True)
class Fault:
    """One mistake."""

    title: str
    layer: int | None
    """Where it is planted; None where it is not in a layer"""
    model: type[Observed]
    path: type[TorchPath] = TorchPath
    tp: int = 1
    op: str | None = None
    """The op of the step that it is a mistake in"""
    mistake: str | None = None
    """The same as one of the mistakes of that op's contract; None where no op alone can make it"""
    core: type[Core] | None = None
    """The same in a head's recurrence; None where it is not in there"""


FAULTS: dict[str, Fault] = {}
KDA_LAYER, MLA_LAYER, MOE_LAYER = 4, 3, 5
"""Of the nano model: one of each kind, none of them at an end"""


def _plant(name: str, title: str, layer: int | None, **more):
    def take(model: type[Observed]) -> type[Observed]:
        FAULTS[name] = Fault(title, layer, model, core=getattr(model, "core", None), **more)
        return model

    return take


def _bf16(x):
    return x.bfloat16().to(x.dtype)


class _KdaFault(Observed):
    """Replaces the stages of one KDA layer."""

    core: type[Core]

    def __init__(self, architecture, ranks, precision) -> None:
        super().__init__(architecture, ranks, precision)
        self._right, self._wrong = self.kda, Kda(architecture, len(self.ranks), precision)
        self._wrong.core = self.core(architecture, len(self.ranks), precision)

    def layer(self, number, stream, ranks, attention) -> None:
        self.kda = self._wrong if number == KDA_LAYER else self._right
        super().layer(number, stream, ranks, attention)


@_plant("decay_bf16", "decay rounded to bfloat16", KDA_LAYER, op="kda_decode",
    mistake="the decay is rounded to bfloat16: values above 0.998 become 1 and the state never forgets",
)  # fmt: skip
class _(_KdaFault):
    class core(Core):
        def decay(self, step: Step):
            return _bf16(super().decay(step))


@_plant("beta_bf16", "beta rounded to bfloat16", KDA_LAYER, op="kda_decode",
    mistake="beta is rounded to bfloat16 after the sigmoid",
)  # fmt: skip
class _(_KdaFault):
    class core(Core):
        def beta(self, step: Step):
            return _bf16(super().beta(step))


@_plant("gate_swapped", "the output gates of two heads exchanged", KDA_LAYER, op="kda_decode",
    mistake="the output gate of the neighbouring head is used (the one after)",
)  # fmt: skip
class _(_KdaFault):
    class core(Core):
        def output_gate(self, step: Step):
            gate = super().output_gate(step).clone()
            gate[:, [0, 1]] = gate[:, [1, 0]]
            return gate


class _MoeFault(Observed):
    @property
    def here(self) -> bool:
        return self.number == MOE_LAYER


@_plant("router_bf16", "router logits rounded to bfloat16", MOE_LAYER, op="routing",
    mistake="logits are rounded to bfloat16",
)  # fmt: skip
class _(_MoeFault):
    def router_logits(self, y, weight):
        logits = super().router_logits(y, weight)
        return _bf16(logits) if self.here else logits


@_plant("tie", "equal scores go to the higher expert", MOE_LAYER, op="routing",
    mistake="equal scores go to the higher expert",
)  # fmt: skip
class _(_MoeFault):
    def choose(self, logits, bias):
        if not self.here:
            return super().choose(logits, bias)
        ids, weights = super().choose(logits.flip(-1), bias.flip(-1))
        return logits.shape[-1] - 1 - ids, weights


@_plant("bias_dropped", "the router's correction bias left out", MOE_LAYER, op="routing",
    mistake="the bias is left out of the selection",
)  # fmt: skip
class _(_MoeFault):
    def choose(self, logits, bias):
        return super().choose(logits, torch.zeros_like(bias) if self.here else bias)


@_plant("norm_before_reduce", "the latent norm before the sum over ranks", MOE_LAYER, tp=8, op="latent_up",
    mistake="the norm is taken of each rank's share before the sum",
)  # fmt: skip
class _(_MoeFault):
    def latent_norm(self, routed, weight):
        if not self.here:
            return super().latent_norm(routed, weight)
        eps = self.architecture.eps.backbone
        return self.precision.all_reduce([rms_norm(part, weight, eps, self.precision) for part in routed])


@_plant("epsilon", "the latent norm's epsilon a thousand times too large", MOE_LAYER, op="latent_up",
    mistake="the norm's epsilon is a thousand times too large",
)  # fmt: skip
class _(_MoeFault):
    def latent_norm(self, routed, weight):
        if not self.here:
            return super().latent_norm(routed, weight)
        return rms_norm(self.precision.all_reduce(routed), weight, 1e3 * self.architecture.eps.backbone, self.precision)


@_plant("swiglu", "SwiGLU in place of SiTU in the shared expert", MOE_LAYER, op="front",
    mistake="the activation is SwiGLU: SiTU's constants were not found",
)  # fmt: skip
class _(_MoeFault):
    def shared(self, y, weights):
        if not self.here:
            return super().shared(y, weights)
        gate, up = self.precision.linear(y, weights.shared_gate_up).chunk(2, -1)
        return self.precision.linear(self.precision.round(F.silu(gate) * up), weights.shared_down)


@_plant(
    "page_boundary", "the row behind a full page of the latent cache goes into that page", MLA_LAYER, op="mla_query",
    mistake="the newest row is written one position too far, over nobody's row or into the next page",
)  # fmt: skip
class _(Observed):
    def __init__(self, architecture, ranks, precision) -> None:
        super().__init__(architecture, ranks, precision)
        self._right, self._wrong = self.mla, _Unpaged(architecture, len(self.ranks), precision)

    def layer(self, number, stream, ranks, attention) -> None:
        self.mla = self._wrong if number == MLA_LAYER else self._right
        super().layer(number, stream, ranks, attention)


class _Unpaged(Mla):
    def decode(self, x, weights, cache, pages, lengths, counts):
        """A count of pages that is one short where the newest token is the first of its page."""
        return super().decode(x, weights, _OnePageBack(cache.rows), pages, lengths, counts)


class _OnePageBack(LatentCache):
    def write(self, pages, start, rows) -> None:
        size = self.rows.shape[1]
        back = size if start and start % size == 0 else 0
        super().write(pages, start - back, rows)


@_plant("bank_aliased", "the last bank of the attention residuals is the first one's memory", None, op="attn_res_norm")
class _(Observed):
    def embed(self, tokens):
        stream = super().embed(tokens)
        return _Aliased(stream, self.architecture)


class _Aliased(Stream):
    def __init__(self, of: Stream, architecture) -> None:
        super().__init__(of.prefix, architecture.attn_res_block_size, of._precision)
        self._last = -(-architecture.layers // architecture.attn_res_block_size)

    def enter(self, layer):
        sources = super().enter(layer)
        if len(self.blocks) == self._last:
            self.blocks[0] = self.blocks[-1]
        return sources


class _StalePadding(TorchPath):
    """A padded row's slot is taken for the pool's last one, where a live request's state may lie."""

    def decode(self, batch: Batch):
        seen = super().decode(batch)
        if PADDING in batch.requests:
            live = max(request for request in batch.requests if request != PADDING)
            # Stale rows carry what the row before them left: its state goes where the table's end points.
            other = next((r for r in batch.requests if r not in (PADDING, live)), None)
            if other is not None:
                for rank in self.state.ranks:
                    cache = rank[KDA_LAYER]
                    source = self.state.slots[other, 1]
                    cache.recurrent[self.state.slots[live, 1]] = cache.recurrent[source]
        return seen


FAULTS["stale_row"] = Fault(
    "a stale padded row writes a live request's state", KDA_LAYER, Observed, _StalePadding, op="kda_decode",
    mistake="padded rows are treated as live: the null page and, through negative slots, the last page are updated",
)


class _NegativeSlot(TorchPath):
    def commit(self, batch: Batch, accepted: Sequence[int]) -> None:
        """Accepted minus one as an index: of zero accepted tokens the last slot's state."""
        state = self.state
        wrapped = [
            r for r, kept in zip(batch.requests, accepted, strict=True) if r != PADDING and kept == 0
        ]
        super().commit(batch, accepted)
        for request in wrapped:
            state.slots[request, [0, -1]] = state.slots[request, [-1, 0]]


FAULTS["accepted_zero"] = Fault("zero accepted tokens read as slot -1", None, Observed, _NegativeSlot)


class _NotRolledBack(TorchPath):
    def commit(self, batch: Batch, accepted: Sequence[int]) -> None:
        """The state behind the last token that was tried, the length of those that were accepted."""
        state = self.state
        for request, count, kept in zip(batch.requests, batch.counts, accepted, strict=True):
            if request != PADDING and kept < count:
                state.slots[request, [kept, count]] = state.slots[request, [count, kept]]
        super().commit(batch, accepted)


FAULTS["not_rolled_back"] = Fault("state of rejected tokens is kept", None, Observed, _NotRolledBack)
