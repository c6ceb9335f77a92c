"""The whole model, top to bottom: embedding, layers, final mix, norm, logits; on one rank or on simulated ones."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ....errors import UserError
from ..architecture import Architecture
from ..layer_weights import KdaWeights, LayerWeights, MixWeights, ModelWeights, MoeWeights
from . import dense, head
from .attn_res import Stream, mix_norm
from .kda import Kda
from .mla import Mla
from .moe import moe
from .precision import Precision
from .state import Batch, State

Attention = Callable[[Tensor, int, int, LayerWeights], Tensor]
"""(x [rows, d], layer, rank, weights of that layer and rank) -> the rank's partial sum [rows, d]; updates caches."""


class Model:
    """Kimi K3 over the weights of each rank of a tensor-parallel group: one entry is the unsharded model.

    Ranks are simulated in turn. What is sharded is computed with each rank's weights and summed where the model
    all-reduces; what is replicated is computed once, with the first rank's copy.
    """

    def __init__(self, architecture: Architecture, ranks: Sequence[ModelWeights], precision: Precision) -> None:
        if precision.arithmetic is torch.float32 and torch.get_float32_matmul_precision() != "highest":
            raise UserError(
                "float32 products may run as TF32 or bfloat16 in this process",
                'call torch.set_float32_matmul_precision("highest") first',
            )
        self.architecture = architecture
        self.ranks = list(ranks)
        self.precision = precision
        self.kda = Kda(architecture, len(self.ranks), precision)
        self.mla = Mla(architecture, len(self.ranks), precision)

    def new_state(self, requests: int, max_tokens: int, *, verify_width: int = 8, page_size: int = 16) -> State:
        """Empty caches, where the weights are; see `State.allocate`."""
        return State.allocate(
            self.architecture,
            len(self.ranks),
            self.precision,
            requests,
            max_tokens,
            verify_width=verify_width,
            page_size=page_size,
            device=self.ranks[0].embedding.device,
        )

    @torch.no_grad()
    def decode(self, batch: Batch, state: State) -> Tensor:
        """Logits [rows, vocabulary] of 1 to `verify_width` tokens a request. The caller then commits what it accepts.

        Until `state.commit` the step has left candidates only: a second decode starts from the same state.
        """
        width = state.slots.shape[1] - 1
        if max(batch.counts) > width:
            raise UserError(f"{max(batch.counts)} tokens of one request", f"decode 1 to {width}, or prefill")
        logits = self._forward(batch, self.decoding(batch, state))
        state.offer(batch)
        return logits

    @torch.no_grad()
    def prefill(self, batch: Batch, state: State, *, chunk: int = 16) -> Tensor:
        """Logits [rows, vocabulary] of any number of tokens a request, all of which are committed."""
        logits = self._forward(batch, self.prefilling(batch, state, chunk))
        state.extend(batch)
        return logits

    def decoding(self, batch: Batch, state: State) -> Attention:
        """The attention of a decode step: recurrent KDA that leaves candidates, absorbed MLA."""
        slots, pages, lengths = state.slots_of(batch), state.pages_of(batch), state.lengths_of(batch)

        def attention(x: Tensor, layer: int, rank: int, weights: LayerWeights) -> Tensor:
            cache = state.ranks[rank][layer]
            if isinstance(weights.attention, KdaWeights):
                return self.kda.decode(x, weights.attention, cache, slots, batch.counts)
            return self.mla.decode(x, weights.attention, cache, pages, lengths, batch.counts)

        return attention

    def prefilling(self, batch: Batch, state: State, chunk: int) -> Attention:
        """The attention of a prefill: chunked KDA that moves the committed state on, plain MLA."""
        slots, pages, lengths = state.slots_of(batch), state.pages_of(batch), state.lengths_of(batch)

        def attention(x: Tensor, layer: int, rank: int, weights: LayerWeights) -> Tensor:
            cache = state.ranks[rank][layer]
            if isinstance(weights.attention, KdaWeights):
                return self.kda.prefill(x, weights.attention, cache, slots, batch.counts, chunk)
            return self.mla.prefill(x, weights.attention, cache, pages, lengths, batch.counts)

        return attention

    def embed(self, tokens: Tensor) -> Stream:
        """The stream before layer 0."""
        embedding = self.precision.wide(self.ranks[0].embedding[tokens])
        return Stream(embedding, self.architecture.attn_res_block_size, self.precision)

    def layer(self, number: int, stream: Stream, ranks: Sequence[LayerWeights], attention: Attention) -> None:
        """One layer, given each rank's weights of it: moves `stream` on."""
        x = self._mix_norm(stream.enter(number), ranks[0].attention_mix)
        partials = [attention(x, number, rank, weights) for rank, weights in enumerate(ranks)]
        stream.after_attention(number, self.precision.all_reduce(partials))
        y = self._mix_norm(stream.sources, ranks[0].mlp_mix)
        stream.after_mlp(self._mlp(y, ranks))

    def head(self, stream: Stream) -> Tensor:
        """Final mix, norm and logits [rows, vocabulary]."""
        normed = self._mix_norm(stream.sources, self.ranks[0].final_mix, final=True)
        return head.logits(normed, [rank.lm_head for rank in self.ranks], self.precision)

    def _forward(self, batch: Batch, attention: Attention) -> Tensor:
        stream = self.embed(batch.tokens)
        for number in range(self.architecture.layers):
            self.layer(number, stream, [rank.layers[number] for rank in self.ranks], attention)
        return self.head(stream)

    def _mix_norm(self, sources: list[Tensor], weights: MixWeights, *, final: bool = False) -> Tensor:
        return mix_norm(sources, weights, self.architecture.eps.backbone, self.precision, final=final)

    def _mlp(self, y: Tensor, ranks: Sequence[LayerWeights]) -> Tensor:
        mlps = [rank.mlp for rank in ranks]
        if isinstance(mlps[0], MoeWeights):
            return moe(y, mlps, self.architecture, self.precision)
        return self.precision.all_reduce(
            [dense.partial(y, mlp.gate_up, mlp.down, self.architecture.situ, self.precision) for mlp in mlps]
        )
