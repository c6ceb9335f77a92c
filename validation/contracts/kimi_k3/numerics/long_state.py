"""What only shows after a long time: the recurrent state after many steps, attention over many tokens.

Both at the true shape of a head, on one rank of a group so wide that it has few heads: what a head does, it does in
any group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from ...base import Workload
from ..architecture import Architecture
from ..kda_decode.oracle import Step
from ..step.kda import Core
from ..step.precision import EXACT, PUBLISHED, Precision
from . import op_exams

STREAMS = 4
"""Requests that run side by side: rows of the op"""
PAGE = 64
"""Cached rows of a page of the long context"""


def decades(steps: int) -> tuple[int, ...]:
    """1, 10, 100, ... and the last step."""
    found, step = [], 1
    while step < steps:
        found.append(step)
        step *= 10
    return (*found, steps)


@dataclass(frozen=True)
class Drift:
    """A KDA head's state over many steps, given the same projections as everybody."""

    architecture: Architecture
    tp: int
    seed: int = 0
    device: str = "cpu"

    @cached_property
    def static(self) -> dict[str, Tensor]:
        """Weights whose decays reach from one token to many thousands."""
        shard, random = self.architecture.kda_shard(self.tp), Generator().manual_seed(self.seed)
        p = shard.channels
        drawn = {
            "f_b": (torch.randn(p, shard.gate_rank, generator=random) * shard.gate_rank**-0.5 * 0.5).bfloat16(),
            "conv_weight": 0.5 * torch.randn(3 * p, shard.conv_width, generator=random),
            "a_log": (1 + 3 * torch.rand(shard.heads, generator=random)).log(),
            "dt_bias": -8 * torch.rand(p, generator=random),
            "o_norm": (0.5 + torch.rand(shard.head_dim, generator=random)).bfloat16(),
        }
        return {name: tensor.to(self.device) for name, tensor in drawn.items()}

    def block(self, number: int, steps: int) -> Tensor:
        """[steps, streams, projected width] bfloat16: the same numbers whoever draws them on this device."""
        width = self.architecture.kda_shard(self.tp).projection_rows
        random = Generator(self.device).manual_seed(2**32 * (self.seed + 1) + number)
        return torch.randn(steps, STREAMS, width, generator=random, device=self.device).bfloat16()

    def path(self, precision: Precision, core: type[Core] = Core) -> "Recurrence":
        """The oracle's, the plain path's, or a fault's recurrence."""
        return Recurrence(core(self.architecture, self.tp, precision), precision, self.static)

    def oracle(self) -> "Recurrence":
        """float64."""
        return self.path(EXACT)

    def plain(self) -> "Recurrence":
        """float32."""
        return self.path(PUBLISHED)

    def again(self, seed: int) -> "Recurrence":
        """float32 with the state's channels in another order, and so every sum over them."""
        return Shuffled(Core(self.architecture, self.tp, PUBLISHED), PUBLISHED, self.static, seed)


class Recurrence:
    """One path's state, moved on step by step."""

    def __init__(self, core: Core, precision: Precision, static: Mapping[str, Tensor]) -> None:
        self.core, self.precision = core, precision
        shard = core.shard
        device = static["f_b"].device
        self.window = torch.zeros(
            STREAMS, shard.conv_width - 1, 3 * shard.channels, dtype=precision.storage, device=device
        )
        self.state = torch.zeros(
            STREAMS, shard.heads, shard.head_dim, shard.head_dim, dtype=precision.recurrent_state, device=device
        )
        self._static = {name: precision.wide(tensor) for name, tensor in static.items()}

    def step(self, projected: Tensor) -> Tensor:
        """One token a stream: the output [streams, channels]."""
        core, wide = self.core, self.precision.wide
        columns = {name: wide(projected[:, part]) for name, part in core.shard.columns.items()}
        step = Step(columns, wide(self.window), wide(self.state), self._static)
        out, state = self.recurrence(step)
        self.window = core.shifted(step).to(self.precision.storage)
        self.state = state.to(self.precision.recurrent_state)
        return core.output(step, out).flatten(1)

    def recurrence(self, step: Step) -> tuple[Tensor, Tensor]:
        """See Core."""
        return self.core.recurrence(step)


class Shuffled(Recurrence):
    """The same sums over key channels in another order."""

    def __init__(self, core: Core, precision: Precision, static: Mapping[str, Tensor], seed: int) -> None:
        super().__init__(core, precision, static)
        order = torch.randperm(core.shard.head_dim, generator=Generator().manual_seed(seed))
        self._order = order.to(static["f_b"].device)
        self._back = self._order.argsort()

    def recurrence(self, step: Step) -> tuple[Tensor, Tensor]:
        """Core's one-pass form, key channels permuted."""
        core, order = self.core, self._order
        query, key, value = core.convolved(step)
        query, key = core.scaled(core.normalised(query))[..., order], core.normalised(key)[..., order]
        decayed = step.state[..., order] * core.decay(step)[..., order][:, :, None, :]
        read = (decayed * key[..., None, :]).sum(-1)
        delta = core.beta(step)[..., None] * (value - read)
        out = (decayed * query[..., None, :]).sum(-1) + delta * (query * key).sum(-1, keepdim=True)
        return out, (decayed + delta[..., :, None] * key[..., None, :])[..., self._back]


def places(context: int) -> list[int]:
    """The positions of the tokens that `needles` looks for."""
    context -= context % PAGE
    return sorted({0, 1, PAGE - 1, PAGE, context // 2, context - PAGE, context - 2, context - 1}
                  | {2**n + 1 for n in range(1, (context - 1).bit_length()) if 2**n + 1 < context})  # fmt: skip


def needles(of: Architecture, tp: int, context: int, seed: int) -> tuple[Workload, dict[str, Tensor], list[int]]:
    """Inputs of `mla_core` whose every row looks for one token of one long context, and where each of them lies.

    The positions: both ends, the edges of pages, and one in each octave between; a row that misses its token by one
    reads another value.
    """
    op = op_exams.contracts(of)["mla_core"]
    size, random = PAGE, Generator().manual_seed(seed)
    context -= context % size  # whole pages: they are put in another order
    positions = places(context)
    rows, width = len(positions), -(-context // size)
    base = op_exams.workload(op, tp, rows, seed)
    axes = {
        **base.axes, "page_size": size, "table_width": width, "table_stride": width, "pages": 1 + width,
        "page_stride": size * op.latent_width + 64,
    }  # fmt: skip
    at = base.model_copy(update={"axes": axes, "name": f"context{context}"})
    cache = torch.randn(1 + width, size, op.latent_width, generator=random).bfloat16()
    table = 1 + torch.randperm(width, generator=random).int()
    query = 0.05 * torch.randn(rows, axes["heads"], op.latent_width, generator=random)
    for row, position in enumerate(positions):
        key = cache[table[position // size], position % size].float()
        # The token's score stands so far above the others' that about half of the weight is on it.
        mla = of.mla
        scale = (mla.qk_nope_head_dim + mla.qk_rope_head_dim) ** 0.5
        query[row] += key * scale * torch.log(torch.tensor(float(context))) / key.square().sum()
    inputs = {
        "query": query.bfloat16(), "cache": cache, "page_table": table.expand(rows, -1).contiguous(),
        "lengths": torch.full((rows,), context, dtype=torch.int32),
    }  # fmt: skip
    return at, inputs, positions


def reordered(at: Workload, inputs: Mapping[str, Tensor], seed: int) -> tuple[Workload, dict[str, Tensor]]:
    """The same context with its tokens in another order of pages: the same result, summed in another order."""
    width = at.axes["table_width"]
    order = torch.randperm(width, generator=Generator().manual_seed(seed))
    table = inputs["page_table"][:, order].contiguous()
    return at, {**inputs, "page_table": table}
