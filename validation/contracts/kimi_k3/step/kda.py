"""Kimi Delta Attention on one rank: in-projection, recurrence or its chunked form, output projection.

The equations of a single token are those of the `kda_decode` op and are not repeated here: `Core` takes them over
and replaces what the precision decides.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ....errors import UserError
from ..architecture import Architecture
from ..kda_decode.oracle import Oracle, Step
from ..layer_weights import KdaWeights
from .precision import L2, Precision
from .state import KdaCache, spans


class Core(Oracle):
    """The stages of `kda_decode` at a given precision."""

    def __init__(self, architecture: Architecture, tp: int, precision: Precision) -> None:
        super().__init__(architecture.kda_shard(tp), architecture.eps, architecture.kda.gate_lower_bound)
        self.precision = precision

    def convolved(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v: [R, h, D]."""
        rounded = self.precision.round_convolved
        return tuple(self.precision.round(part, where=rounded) for part in super().convolved(step))

    def normalised(self, x: Tensor) -> Tensor:
        """x over its L2 norm along the head's channels."""
        if self.precision.l2 is L2.MAX:
            return x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=self.eps.kda_l2)
        return super().normalised(x)

    def round_gate(self, gamma: Tensor) -> Tensor:
        """The gate projection f_b f_a as its GEMM leaves it."""
        return self.precision.round(gamma)

    def output(self, step: Step, core: Tensor) -> Tensor:
        """The gated norm, [R, h, D], rounded once."""
        core = self.precision.round(core, where=self.precision.round_core)
        return self.precision.round(super().output(step, core))


class Kda:
    """A KDA layer of one rank; `x` is the normed input [rows, d], the result a partial sum [rows, d].

    `slots` [requests, 1 + w] are rows of the state's table and `counts` the consecutive rows of each request. A
    request whose first slot is null (<= 0) is padding: its rows give zeros, and no page is touched for it.
    """

    def __init__(self, architecture: Architecture, tp: int, precision: Precision) -> None:
        self.core = Core(architecture, tp, precision)
        self.precision = precision

    def decode(
        self, x: Tensor, weights: KdaWeights, cache: KdaCache, slots: Tensor, counts: Sequence[int]
    ) -> Tensor:
        """Token by token: the state after the t-th token of a request goes to its slot t; slot 0 keeps the first."""
        projected = self._project(x, weights)
        static = self._static(weights)
        out = x.new_zeros(len(x), self.core.shard.channels)
        starts = [span.start for span in spans(counts)]
        table = slots.tolist()
        live = [row[0] > 0 for row in table]
        for row, count in zip(table, counts, strict=True):
            # A null among a request's slots would be the null page, or by a negative index another request's.
            if row[0] > 0 and (len(row) <= count or min(row[: count + 1]) <= 0):
                raise UserError(f"a request of {count} tokens has slots {row}", f"give it {count + 1} pages of its own")
        for t in range(max(counts)):
            going = [i for i, count in enumerate(counts) if live[i] and t < count]
            rows = [starts[i] + t for i in going]
            read, write = slots[going, t], slots[going, t + 1]
            step = self._step(projected[rows], cache.conv[read], cache.recurrent[read], static)
            core, state = self.core.recurrence(step)
            out[rows] = self.core.output(step, core).flatten(1)
            cache.conv[write] = self.core.shifted(step).to(cache.conv.dtype)
            cache.recurrent[write] = state.to(cache.recurrent.dtype)
        return self.precision.linear(out, weights.o_proj)

    def prefill(
        self, x: Tensor, weights: KdaWeights, cache: KdaCache, slots: Tensor, counts: Sequence[int], chunk: int = 16
    ) -> Tensor:
        """In chunks of `chunk` tokens: reads and writes slot 0 of each request."""
        projected = self._project(x, weights)
        static = self._static(weights)
        out = x.new_zeros(len(x), self.core.shard.channels)
        taps = self.core.shard.conv_width - 1
        for span, slot in zip(spans(counts), slots[:, 0].tolist(), strict=True):
            if slot <= 0:
                continue
            raw = projected[span, : 3 * self.core.shard.channels]
            history = torch.cat([self.precision.wide(cache.conv[slot]), raw])
            windows = history.unfold(0, taps, 1)[:-1].mT
            state = self.precision.wide(cache.recurrent[slot])
            outputs = []
            for begin in range(0, len(raw), chunk):
                part = slice(begin, begin + chunk)
                step = self._step(projected[span][part], windows[part], state[None], static)
                core, state = chunk_recurrence(self.core, step)
                outputs.append(self.core.output(step, core).flatten(1))
            out[span] = torch.cat(outputs)
            cache.conv[slot] = history[-taps:].to(cache.conv.dtype)
            cache.recurrent[slot] = state.to(cache.recurrent.dtype)
        return self.precision.linear(out, weights.o_proj)

    def _project(self, x: Tensor, weights: KdaWeights) -> Tensor:
        return self.precision.linear(x, weights.in_proj)

    def _static(self, weights: KdaWeights) -> dict[str, Tensor]:
        heads = self.core.shard.heads
        # Checkpoints exist that pad A_log or give it axes of one: broadcasting would take the wrong heads in silence.
        if weights.a_log.shape != (heads,):
            raise UserError(f"A_log has shape {list(weights.a_log.shape)}", f"slice it by head: [{heads}]")
        return {
            name: self.precision.wide(getattr(weights, name))
            for name in ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")
        }

    def _step(self, projected: Tensor, window: Tensor, state: Tensor, static: dict[str, Tensor]) -> Step:
        columns = {name: projected[:, part] for name, part in self.core.shard.columns.items()}
        return Step(columns, self.precision.wide(window), self.precision.wide(state), static)


def chunk_recurrence(core: Core, step: Step) -> tuple[Tensor, Tensor]:
    """o [C, h, D] and the new state [h, D (v), D (k)] of C consecutive tokens of one request, without a loop over them.

    `step` holds the C tokens as rows, each with its window, and one state [1, h, D, D]. With G_i = log a_1 + ... +
    log a_i, decayed scores K_ij = sum_c k_ic e^(G_ic - G_jc) k_jc and Q_ij likewise with q_i:

        (I + strictly lower part of diag(beta) K) delta = diag(beta) (v - S (k e^G))
        o = S (q e^G) + (lower part of Q) delta
        S' = S diag(e^G_C) + sum_j delta_j (k_j e^(G_C - G_j))^T

    Exponents of pairs j <= i are never positive, so nothing overflows whatever the decay. Source: the UT transform of
    delta rules (arXiv 2406.06484) with one decay per channel.
    """
    query, key, value = (part.transpose(0, 1) for part in core.convolved(step))
    query, key = core.scaled(core.normalised(query)), core.normalised(key)
    total = core.decay(step).log().cumsum(0).transpose(0, 1)
    beta = core.beta(step).T[..., None]
    state = step.state[0]

    pairs = (total[:, :, None] - total[:, None]).clamp(max=0).exp()
    key_scores = torch.einsum("hic,hijc,hjc->hij", key, pairs, key)
    query_scores = torch.einsum("hic,hijc,hjc->hij", query, pairs, key)

    error = beta * (value - (key * total.exp()) @ state.mT)
    # Unit triangular: only what lies strictly below the diagonal is read.
    delta = torch.linalg.solve_triangular(beta * key_scores, error, upper=False, unitriangular=True)
    out = (query * total.exp()) @ state.mT + query_scores.tril() @ delta
    remaining = (total[:, -1:] - total).exp()
    return out.transpose(0, 1), state * total[:, -1:].exp() + delta.mT @ (key * remaining)
