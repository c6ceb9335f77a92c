"""The residual stream on a GPU, and the AttnRes mix with the norm behind it in one launch.

No public kernel does both on Hopper; serving stacks launch a Triton kernel of this shape. One program a row reads each
source once: online softmax over the sources, the row in registers.
"""

from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....errors import UserError
from ..layer_weights import MixWeights


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def _logit(value, query, eps, d: tl.constexpr):
    """value . query / sqrt(mean(value^2) + eps), in one reduction."""
    product, square = tl.reduce((value * query, value * value), 0, _add_pairs)
    return product * tl.rsqrt(square / d + eps)


@triton.jit
def _mix_norm_kernel(
    prefix,  # [rows, d] bf16: the stream; updated in place
    delta,  # [rows, d] bf16, dense: what the last sublayer adds to it (or, if restart, replaces it with)
    bank,  # [blocks, rows, d] bf16, in either order
    res_norm,  # [d] bf16
    res_proj,  # [d] bf16
    out_norm,  # [d] bf16
    out,  # [rows, d] bf16, dense
    prefix_stride,
    bank_stride,
    bank_row_stride,
    eps,
    d: tl.constexpr,
    padded: tl.constexpr,
    banked: tl.constexpr,  # blocks to read
    write: tl.constexpr,  # the block to bank the updated stream as, or -1
    has_delta: tl.constexpr,
    restart: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    row = index * d
    column = tl.arange(0, padded)
    valid = column < d
    prefix += index * prefix_stride
    bank += index * bank_row_stride
    query = tl.load(res_norm + column, valid, 0).to(tl.float32) * tl.load(res_proj + column, valid, 0).to(tl.float32)

    if restart:
        stream = tl.load(delta + row + column, valid, 0)
    else:
        stream = tl.load(prefix + column, valid, 0)
        if has_delta:
            added = stream.to(tl.float32) + tl.load(delta + row + column, valid, 0).to(tl.float32)
            stream = added.to(tl.bfloat16)
    if has_delta:
        tl.store(prefix + column, stream, valid)
    if write >= 0:
        tl.store(bank + write * bank_stride + column, stream, valid)

    mixed = stream.to(tl.float32)
    if banked > 0:
        # Four sources ahead: a reduction is a barrier, which loads do not pass.
        blocks = bank + column
        first = tl.load(blocks, valid, 0)
        second = tl.load(blocks + bank_stride, valid & (banked > 1), 0)
        third = tl.load(blocks + 2 * bank_stride, valid & (banked > 2), 0)
        fourth = tl.load(blocks + 3 * bank_stride, valid & (banked > 3), 0)
        largest = _logit(mixed, query, eps, d)
        total = 1.0
        for source in tl.static_range(banked):
            value = first.to(tl.float32)
            first, second, third = second, third, fourth
            if source + 4 < banked:
                fourth = tl.load(bank + (source + 4) * bank_stride + column, valid, 0)
            logit = _logit(value, query, eps, d)
            larger = tl.maximum(largest, logit)
            keep, weight = tl.exp(largest - larger), tl.exp(logit - larger)
            mixed = mixed * keep + value * weight
            total = total * keep + weight
            largest = larger
        mixed = (mixed / total).to(tl.bfloat16).to(tl.float32)

    normed = (mixed * tl.rsqrt(tl.sum(mixed * mixed) / d + eps)).to(tl.bfloat16).to(tl.float32)
    normed *= tl.load(out_norm + column, valid, 0).to(tl.float32)
    tl.store(out + row + column, normed.to(tl.bfloat16), valid)


@dataclass
class Stream:
    """The residual stream of one step over `rows` tokens: same bookkeeping as the plain path's `Stream`.

    A sublayer's output is taken up when the next mix is launched.
    """

    prefix: Tensor
    """[rows, d] bf16; a stream owns it and updates it in place"""
    bank: Tensor
    """[blocks, rows, d] bf16"""
    block_size: int
    _pending: Tensor | None = field(default=None, init=False)
    _restart: bool = field(default=False, init=False)

    @classmethod
    def start(cls, embedding: Tensor, layers: int, block_size: int) -> "Stream":
        """Before layer 0: a copy of `embedding` [rows, d] bf16, and an empty bank for `layers` layers."""
        return cls(embedding.clone(), embedding.new_zeros(-(-layers // block_size), *embedding.shape), block_size)

    def attention_input(self, layer: int, weights: MixWeights, eps: float) -> Tensor:
        """The normed mix that `layer`'s attention reads; banks the stream where a block begins."""
        banked = -(-layer // self.block_size)
        write = layer // self.block_size if layer % self.block_size == 0 else -1
        return self._mix(banked, write, weights, eps)

    def mlp_input(self, layer: int, weights: MixWeights, eps: float) -> Tensor:
        """The normed mix that `layer`'s MLP reads."""
        return self._mix(layer // self.block_size + 1, -1, weights, eps)

    def head_input(self, weights: MixWeights, eps: float) -> Tensor:
        """The normed mix behind the last layer."""
        return self._mix(len(self.bank), -1, weights, eps)

    def after_attention(self, layer: int, output: Tensor) -> None:
        """Takes up the attention output of `layer`, summed over ranks: alone where a block begins, else added."""
        self._take(output, restart=layer % self.block_size == 0)

    def after_mlp(self, output: Tensor) -> None:
        """Takes up the output of a layer's MLP, summed over ranks."""
        self._take(output, restart=False)

    def _take(self, output: Tensor, *, restart: bool) -> None:
        if self._pending is not None:
            raise UserError("two sublayer outputs without a mix between them", "walk attention and MLP in turn")
        self._pending, self._restart = output, restart

    def _mix(self, banked: int, write: int, weights: MixWeights, eps: float) -> Tensor:
        out = torch.empty_like(self.prefix)
        _launch(self.prefix, self._pending, self.bank, banked, write, weights, eps, out, restart=self._restart)
        self._pending, self._restart = None, False
        return out


def mix_norm(stream: Tensor, bank: Tensor | None, weights: MixWeights, eps: float, out: Tensor) -> None:
    """The mix of `bank` [blocks, rows, d] and `stream` [rows, d], and its norm, into `out` [rows, d]; all bf16."""
    if bank is None:
        _launch(stream, None, stream[None], 0, -1, weights, eps, out)
    else:
        _launch(stream, None, bank, len(bank), -1, weights, eps, out)


def _launch(
    prefix: Tensor,
    delta: Tensor | None,
    bank: Tensor,
    banked: int,
    write: int,
    weights: MixWeights,
    eps: float,
    out: Tensor,
    *,
    restart: bool = False,
) -> None:
    rows, d = prefix.shape
    _mix_norm_kernel[(rows,)](
        prefix,
        prefix if delta is None else delta,
        bank,
        weights.res_norm,
        weights.res_proj,
        weights.out_norm,
        out,
        prefix.stride(0),
        bank.stride(0),
        bank.stride(1),
        eps,
        d,
        triton.next_power_of_2(d),
        banked,
        write,
        delta is not None,
        restart,
        num_warps=16 if d > 1024 else 4,
    )
