"""KDA of one rank in decode: cuBLAS products, paged convolution (Triton), fla-core's recurrence, gated norm (Triton).

Six launches on one stream. q, k, v and the core output are rounded to bfloat16 between them, as in serving stacks.
"""

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
    projected,  # [rows, W] bf16, row stride projected_stride: q | k | v | ... | beta at column beta_column
    window,  # [pages, 3, 3 p] bf16, page stride page_stride
    weight,  # [3 p, 4] fp32, oldest tap first
    slots,  # [requests, 1 + w] int64
    starts,  # [requests + 1] int32
    mixed,  # [3, rows, p] bf16
    beta,  # [rows, heads] bf16: a dense copy, which the recurrence wants
    rows,
    projected_stride,
    page_stride,
    slots_stride,
    beta_column,
    heads,
    p: tl.constexpr,
    block: tl.constexpr,
    max_heads: tl.constexpr,
):
    request = tl.program_id(0)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    valid = channel < 3 * p
    begin, end = tl.load(starts + request), tl.load(starts + request + 1)
    row_slots = slots + request * slots_stride
    page = window + tl.load(row_slots) * page_stride + channel
    first = tl.load(page, valid, 0)
    second = tl.load(page + 3 * p, valid, 0)
    third = tl.load(page + 6 * p, valid, 0)
    w0, w1 = tl.load(weight + 4 * channel, valid, 0), tl.load(weight + 4 * channel + 1, valid, 0)
    w2, w3 = tl.load(weight + 4 * channel + 2, valid, 0), tl.load(weight + 4 * channel + 3, valid, 0)
    head = tl.arange(0, max_heads)
    copies = (head < heads) & (tl.program_id(1) == 0)
    source = projected + begin.to(tl.int64) * projected_stride
    for row in range(begin, end):
        newest = tl.load(source + channel, valid, 0)
        u = first.to(tl.float32) * w0 + second.to(tl.float32) * w1 + third.to(tl.float32) * w2
        u += newest.to(tl.float32) * w3
        u *= tl.sigmoid(u)
        tl.store(mixed + (channel // p * rows + row) * p + channel % p, u.to(tl.bfloat16), valid)
        first, second, third = second, third, newest
        page = window + tl.load(row_slots + 1 + row - begin) * page_stride + channel
        tl.store(page, first, valid)
        tl.store(page + 3 * p, second, valid)
        tl.store(page + 6 * p, third, valid)
        tl.store(beta + row * heads + head, tl.load(source + beta_column + head, copies, 0), copies)
        source += projected_stride


class Kda:
    """A KDA layer of one rank: normed input [rows, d] bf16 to a partial sum [rows, d] bf16; `cache` is updated.

    The state after the t-th token of a request goes to its slot t, t = 1 to its rows; slot 0 is read and keeps its
    state. Padding runs on the null page, which may hold anything, and gives zeros.
    """

    def __init__(self, architecture: Architecture, tp: int) -> None:
        self._shard = architecture.kda_shard(tp)
        self._eps = architecture.eps
        self._lower_bound = architecture.kda.gate_lower_bound

    def __call__(self, x: Tensor, weights: KdaWeights, cache: KdaCache, tables: Tables) -> Tensor:
        projected = torch.mm(x, weights.in_proj.T)
        return torch.mm(self.core(projected, weights, cache, tables), weights.o_proj.T)

    def core(self, projected: Tensor, weights: KdaWeights, cache: KdaCache, tables: Tables) -> Tensor:
        """From the projected row to what o_proj reads, [rows, p]: four launches."""
        shard = self._shard
        rows, heads, p = len(projected), shard.heads, shard.channels
        part = {name: projected[:, columns] for name, columns in shard.columns.items()}
        decay = torch.mm(part["f_a"], weights.f_b.T)
        mixed = projected.new_empty(3, rows, p)
        beta = projected.new_empty(1, rows, heads)
        _convolve_kernel[(len(tables.slots), triton.cdiv(3 * p, _BLOCK))](
            projected,
            cache.conv,
            weights.conv_weight,
            tables.slots,
            tables.starts,
            mixed,
            beta,
            rows,
            projected.stride(0),
            cache.conv.stride(0),
            tables.slots.stride(0),
            shard.columns["beta"].start,
            heads,
            p,
            _BLOCK,
            triton.next_power_of_2(max(heads, _MAX_HEADS)),
            num_warps=4,
        )
        q, k, v = (channels.view(1, rows, heads, shard.head_dim) for channels in mixed.unbind(0))
        core, _ = fused_recurrent_kda_fwd(
            q=q,
            k=k,
            v=v,
            g=decay.view(1, rows, heads, shard.head_dim),
            beta=beta,
            A_log=weights.a_log,
            dt_bias=weights.dt_bias,
            initial_state=cache.recurrent,
            state_v_first=True,
            cu_seqlens=tables.starts,
            # Token t is written to index t of these, and "none accepted" reads the index before the first: slot 0.
            ssm_state_indices=tables.slots[:, 1:],
            num_accepted_tokens=tables.unaccepted,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            lower_bound=self._lower_bound,
            out=torch.empty_like(v),
        )
        return pointwise.gated_norm(core[0], part["g"], weights.o_norm, tables.live, self._eps.kda_output)
