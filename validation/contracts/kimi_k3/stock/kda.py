"""KDA of one rank in decode: cuBLAS products, paged convolution (Triton), fla-core's recurrence, gated norm (Triton).

Six launches on one stream. Between them everything stays float32 but the gate projection, as the published layer has
it. The convolution writes live rows side by side and gives padded requests no tokens, so that fla-core's kernel passes
over them: no page of theirs is touched, whatever their slots hold.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl
from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd
from torch import Tensor

from ..architecture import Architecture
from ..layer_weights import KdaWeights
from ..step.state import KdaCache
from . import pointwise
from .step import Tables

_BLOCK = 256
_MAX_HEADS = 128


@triton.jit
def _convolve_kernel(
    projected,  # [rows, W] bf16, row stride projected_stride: q | k | v | g | f_a | beta
    window,  # [pages, 3, 3 p] bf16, page stride page_stride
    weight,  # [3 p, 4] fp32, oldest tap first
    slots,  # single: [requests], read and written; else [requests, 1 + w]: one read, then one for each token
    starts,  # [requests + 1] int32; single: not read, each request has one row
    mixed,  # [3, rows, p] fp32
    gate,  # [rows, rank] bf16: f_a, dense
    beta,  # [rows, heads] bf16, dense
    live_starts,  # [requests + 1] int32: as `starts`, live requests side by side and padded ones empty
    place,  # [rows] int32: where a row went, -1 for padding
    requests,
    rows,
    projected_stride,
    page_stride,
    slots_stride,
    gate_column,
    beta_column,
    heads,
    p: tl.constexpr,
    rank: tl.constexpr,
    single: tl.constexpr,
    block: tl.constexpr,
    max_heads: tl.constexpr,
    max_requests: tl.constexpr,
):
    request = tl.program_id(0)
    first_program = tl.program_id(1) == 0
    others = tl.arange(0, max_requests)
    before = others < tl.minimum(request, requests)
    alive = tl.load(slots + others.to(tl.int64) * slots_stride, before, 0) > 0
    own_slots = slots + request.to(tl.int64) * slots_stride
    live = tl.load(own_slots) > 0
    if single:
        begin, end = request, request + 1
        ahead = tl.sum(alive.to(tl.int32))
    else:
        begin, end = tl.load(starts + request), tl.load(starts + request + 1)
        lengths = tl.load(starts + others + 1, before, 0) - tl.load(starts + others, before, 0)
        ahead = tl.sum(tl.where(alive, lengths, 0))
    count = tl.where(live, end - begin, 0)
    if first_program:
        tl.store(live_starts + request + 1, ahead + count)
        if request == 0:
            tl.store(live_starts, 0)
        for row in range(begin, end):
            tl.store(place + row, tl.where(live, ahead + row - begin, -1))

    channel = tl.program_id(1) * block + tl.arange(0, block)
    valid = channel < 3 * p
    page = window + tl.load(own_slots).to(tl.int64) * page_stride + channel
    first = tl.load(page, valid & live, 0)
    second = tl.load(page + 3 * p, valid & live, 0)
    third = tl.load(page + 6 * p, valid & live, 0)
    w0, w1 = tl.load(weight + 4 * channel, valid, 0), tl.load(weight + 4 * channel + 1, valid, 0)
    w2, w3 = tl.load(weight + 4 * channel + 2, valid, 0), tl.load(weight + 4 * channel + 3, valid, 0)
    head, factor = tl.arange(0, max_heads), tl.arange(0, rank)
    source = projected + begin.to(tl.int64) * projected_stride
    for step in range(0, count):
        row = ahead + step
        newest = tl.load(source + channel, valid, 0)
        u = first.to(tl.float32) * w0 + second.to(tl.float32) * w1 + third.to(tl.float32) * w2
        u += newest.to(tl.float32) * w3
        u *= tl.sigmoid(u)
        tl.store(mixed + (channel // p * rows + row) * p + channel % p, u, valid)
        first, second, third = second, third, newest
        if not single:
            page = window + tl.load(own_slots + 1 + step).to(tl.int64) * page_stride + channel
        tl.store(page, first, valid)
        tl.store(page + 3 * p, second, valid)
        tl.store(page + 6 * p, third, valid)
        if first_program:
            tl.store(beta + row * heads + head, tl.load(source + beta_column + head, head < heads, 0), head < heads)
            tl.store(gate + row * rank + factor, tl.load(source + gate_column + factor))
        source += projected_stride


class CoreWeights(Protocol):
    """The static tensors of the `kda_decode` op, which are part of `KdaWeights` too."""

    f_b: Tensor
    conv_weight: Tensor
    a_log: Tensor
    dt_bias: Tensor
    o_norm: Tensor


class Kda:
    """A KDA layer of one rank: normed input [rows, d] bf16 to a partial sum [rows, d] bf16; `cache` is updated.

    The state after the t-th token of a request goes to its slot t, t = 1 to its rows; slot 0 is read and keeps its
    state. Padding gives zeros and touches no page.
    """

    def __init__(self, architecture: Architecture, tp: int) -> None:
        self._shard = architecture.kda_shard(tp)
        self._eps = architecture.eps
        self._lower_bound = architecture.kda.gate_lower_bound

    def __call__(self, x: Tensor, weights: KdaWeights, cache: KdaCache, tables: Tables) -> Tensor:
        projected = torch.mm(x, weights.in_proj.T)
        return torch.mm(self.core(projected, weights, cache, tables), weights.o_proj.T)

    def core(self, projected: Tensor, weights: CoreWeights, cache: KdaCache, tables: Tables) -> Tensor:
        """From the projected row to what o_proj reads, [rows, p]: four launches."""
        out = projected.new_empty(len(projected), self._shard.channels)
        self._core(projected, weights, cache, tables.slots, tables.starts, tables.unaccepted, out)
        return out

    def single(self, projected: Tensor, weights: CoreWeights, cache: KdaCache, slots: Tensor, out: Tensor) -> None:
        """One token a request, its state updated in place; `slots` [rows] int32, any stride; out [rows, p] bf16."""
        self._core(projected, weights, cache, slots, None, None, out)

    def several(
        self, projected: Tensor, weights: CoreWeights, cache: KdaCache, slots: Tensor, starts: Tensor,
        unaccepted: Tensor, out: Tensor,
    ) -> None:  # fmt: skip
        """A verify step; `slots` [requests, 1 + w] int32 with any row stride, the rest as in `Tables`; out [rows, p] bf16."""
        self._core(projected, weights, cache, slots, starts, unaccepted, out)

    def _core(
        self,
        projected: Tensor,
        weights: CoreWeights,
        cache: KdaCache,
        slots: Tensor,
        starts: Tensor | None,
        unaccepted: Tensor | None,
        out: Tensor,
    ) -> None:
        shard, single = self._shard, starts is None
        rows, requests, heads, p, rank = len(projected), len(slots), shard.heads, shard.channels, shard.gate_rank
        mixed = projected.new_empty(3, rows, p, dtype=torch.float32)
        gate, beta = projected.new_empty(rows, rank), projected.new_empty(1, rows, heads)
        live_starts, place = (projected.new_empty(n, dtype=torch.int32) for n in (requests + 1, rows))
        _convolve_kernel[(requests, triton.cdiv(3 * p, _BLOCK))](
            projected,
            cache.conv,
            weights.conv_weight,
            slots,
            slots if single else starts,
            mixed,
            gate,
            beta,
            live_starts,
            place,
            requests,
            rows,
            projected.stride(0),
            cache.conv.stride(0),
            slots.stride(0),
            shard.columns["f_a"].start,
            shard.columns["beta"].start,
            heads,
            p,
            rank,
            single,
            _BLOCK,
            triton.next_power_of_2(max(heads, _MAX_HEADS)),
            triton.next_power_of_2(requests),
            num_warps=4,
        )
        shape = (1, rows, heads, shard.head_dim)
        q, k, v = (channels.view(shape) for channels in mixed.unbind(0))
        core, _ = fused_recurrent_kda_fwd(
            q=q,
            k=k,
            v=v,
            g=torch.mm(gate, weights.f_b.T).view(shape),
            beta=beta,
            A_log=weights.a_log,
            dt_bias=weights.dt_bias,
            initial_state=cache.recurrent,
            state_v_first=True,
            cu_seqlens=live_starts,
            # Several tokens: token t is written to index t of these, and "none accepted" reads the index before the
            # first, which is slot 0.
            ssm_state_indices=slots if single else slots[:, 1:],
            num_accepted_tokens=unaccepted,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            lower_bound=self._lower_bound,
            out=torch.empty_like(v),
        )
        gate_columns = projected[:, shard.columns["g"]]
        pointwise.gated_norm(core[0], place, gate_columns, weights.o_norm, self._eps.kda_output, out)
