"""Multi-head latent attention on one rank: no rotation, output gate, paged latent cache; plain and absorbed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..architecture import Architecture
from ..layer_weights import MlaWeights
from .norm import rms_norm
from .precision import Precision
from .state import LatentCache, spans


@dataclass(frozen=True)
class Query:
    """The queries of n consecutive tokens, split as the keys are."""

    nope: Tensor
    """[n, h, qk_nope_head_dim]: meets the key that kv_b expands from the latent"""
    rope: Tensor
    """[n, h, qk_rope_head_dim]: meets the key part that all heads share. Named for rotation, never rotated"""


Attend = Callable[[Query, Tensor, Tensor, Tensor], Tensor]


class Mla:
    """An MLA layer of one rank; `x` is the normed input [rows, d], the result a partial sum [rows, d].

    `pages` [requests, k] are rows of the state's page table, `lengths` the tokens already cached and `counts` the
    consecutive rows of each request. Every token's latent row is cached before attention, so a token sees itself. A
    request whose first page is null (<= 0) is padding: zeros, whatever its gate holds, and no page is touched for it.
    """

    def __init__(self, architecture: Architecture, tp: int, precision: Precision) -> None:
        self.sizes = architecture.mla
        self.heads = architecture.mla.heads // tp
        self.eps = architecture.eps
        self.precision = precision

    def decode(
        self,
        x: Tensor,
        weights: MlaWeights,
        cache: LatentCache,
        pages: Tensor,
        lengths: Sequence[int],
        counts: Sequence[int],
    ) -> Tensor:
        """In the absorbed form: attention over the latent rows themselves."""
        return self._layer(x, weights, cache, pages, lengths, counts, self.absorbed)

    def prefill(
        self,
        x: Tensor,
        weights: MlaWeights,
        cache: LatentCache,
        pages: Tensor,
        lengths: Sequence[int],
        counts: Sequence[int],
    ) -> Tensor:
        """In the plain form: attention over expanded keys and values."""
        return self._layer(x, weights, cache, pages, lengths, counts, self.plain)

    def _layer(
        self,
        x: Tensor,
        weights: MlaWeights,
        cache: LatentCache,
        pages: Tensor,
        lengths: Sequence[int],
        counts: Sequence[int],
        attend: Attend,
    ) -> Tensor:
        sizes, precision = self.sizes, self.precision
        widths = [sizes.q_lora_rank, sizes.kv_lora_rank, sizes.qk_rope_head_dim, self.heads * sizes.v_head_dim]
        q_a, kv_a, shared_key, gate = precision.linear(x, weights.qkv_a_g).split(widths, -1)
        queries = precision.linear(rms_norm(q_a, weights.q_a_norm, self.eps.mla_q_a, precision), weights.q_b)
        nope, rope = queries.unflatten(-1, (self.heads, -1)).split([sizes.qk_nope_head_dim, sizes.qk_rope_head_dim], -1)
        rows = torch.cat([rms_norm(kv_a, weights.kv_a_norm, self.eps.mla_kv_a, precision), shared_key], -1)
        kv_b = precision.wide(weights.kv_b).unflatten(0, (self.heads, -1))

        out = x.new_zeros(len(x), self.heads * sizes.v_head_dim)
        live = (pages[:, 0] > 0).tolist()
        for i, span in enumerate(spans(counts)):
            if not live[i]:
                continue
            cache.write(pages[i], lengths[i], rows[span])
            history = precision.wide(cache.read(pages[i], lengths[i] + counts[i]))
            position = torch.arange(len(history), device=x.device)
            visible = position <= position[lengths[i] :, None]
            attended = attend(Query(nope[span], rope[span]), history, kv_b, visible)
            out[span] = precision.round(attended.flatten(1) * gate[span].sigmoid())
        return precision.linear(out, weights.o_proj)

    def plain(self, query: Query, history: Tensor, kv_b: Tensor, visible: Tensor) -> Tensor:
        """Expands every latent c to k = W_UK c | shared key and v = W_UV c, then attends head by head.

        history [m, latent | shared key]; kv_b [h, W_UK | W_UV, latent]; visible [n, m] bool. Gives [n, h, v]. Rounded:
        keys, values, result. Scores, softmax and the weighted sum stay in the arithmetic type.
        """
        latent, shared_key = history.split([self.sizes.kv_lora_rank, self.sizes.qk_rope_head_dim], -1)
        expanded = self.precision.round(torch.einsum("ml,hel->mhe", latent, kv_b))
        key, value = expanded.split([self.sizes.qk_nope_head_dim, self.sizes.v_head_dim], -1)
        scores = torch.einsum("nhe,mhe->hnm", query.nope, key) + torch.einsum("nhr,mr->hnm", query.rope, shared_key)
        return self.precision.round(torch.einsum("hnm,mhv->nhv", self._softmax(scores, visible), value))

    def absorbed(self, query: Query, history: Tensor, kv_b: Tensor, visible: Tensor) -> Tensor:
        """q . (W_UK c) = (W_UK^T q) . c, and sum_m p_m W_UV c_m = W_UV sum_m p_m c_m: `plain` without expansion.

        One latent row serves as key and value of all heads. Rounded: absorbed query, attended latent, result.
        """
        up_key, up_value = kv_b.split([self.sizes.qk_nope_head_dim, self.sizes.v_head_dim], 1)
        absorbed = self.precision.round(torch.einsum("nhe,hel->nhl", query.nope, up_key))
        scores = torch.einsum("nhl,ml->hnm", torch.cat([absorbed, query.rope], -1), history)
        weights = self._softmax(scores, visible)
        context = self.precision.round(torch.einsum("hnm,ml->nhl", weights, history[:, : self.sizes.kv_lora_rank]))
        return self.precision.round(torch.einsum("nhl,hvl->nhv", context, up_value))

    def _softmax(self, scores: Tensor, visible: Tensor) -> Tensor:
        scale = (self.sizes.qk_nope_head_dim + self.sizes.qk_rope_head_dim) ** -0.5
        return (scores * scale).masked_fill(~visible, -torch.inf).softmax(-1)
