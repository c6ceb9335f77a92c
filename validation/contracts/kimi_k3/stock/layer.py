"""Layers, ends and the walk of one rank's decode step: the interface of the plain path, on tensors of a GPU.

Imports triton, fla and cuda-bindings: reach it through `stock.path`, which says what is missing.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..architecture import Architecture
from ..layer_weights import DenseWeights, KdaWeights, LayerWeights, MixWeights, MlaWeights, MoeWeights
from ..step.state import KdaCache, LatentCache
from .attn_res import Stream
from .kda import Kda
from .mla import Mla
from .mlp import Moe, PackedMoe, Reduce, dense
from .step import Tables


@dataclass(frozen=True)
class PreparedLayer:
    """One layer of one rank, on the GPU, experts in fragment order."""

    number: int
    attention_mix: MixWeights
    attention: KdaWeights | MlaWeights
    mlp_mix: MixWeights
    mlp: DenseWeights | PackedMoe


class Stock:
    """One rank of a tensor-parallel group on one GPU. All launches are capture-safe after one warm-up call."""

    def __init__(self, architecture: Architecture, tp: int, device: torch.device, reduce: Reduce) -> None:
        torch.cuda.set_device(device)
        self.device = device
        self.architecture = architecture
        self.reduce = reduce
        self.kda = Kda(architecture, tp)
        self.mla = Mla(architecture, tp)
        self._moes: dict[int, Moe] = {}

    def prepare(self, number: int, weights: LayerWeights) -> PreparedLayer:
        """Layer `number` on the GPU, its experts repacked there; `weights` may be freed afterwards."""
        moved = to_device(weights, self.device)
        mlp = moved.mlp
        if isinstance(mlp, MoeWeights):
            mlp = self.moe(mlp.w13.packed.shape[1] // 2).pack(mlp)
        return PreparedLayer(number, moved.attention_mix, moved.attention, moved.mlp_mix, mlp)

    def moe(self, intermediate: int) -> Moe:
        """The MoE of this local expert size, compiled at first use."""
        if intermediate not in self._moes:
            self._moes[intermediate] = Moe(self.architecture, intermediate)
        return self._moes[intermediate]

    def start(self, embedding: Tensor) -> Stream:
        """The residual stream before layer 0, from embedded rows [rows, d]."""
        rows = embedding.to(self.device, torch.bfloat16)
        return Stream.start(rows, self.architecture.layers, self.architecture.attn_res_block_size)

    @torch.no_grad()
    def layer(self, layer: PreparedLayer, stream: Stream, cache: KdaCache | LatentCache, tables: Tables) -> None:
        """Moves `stream` on by one layer, and `cache` by one step."""
        eps = self.architecture.eps.backbone
        x = stream.attention_input(layer.number, layer.attention_mix, eps)
        stream.after_attention(layer.number, self.reduce(self.attention(x, layer.attention, cache, tables)))
        stream.after_mlp(self.mlp(stream.mlp_input(layer.number, layer.mlp_mix, eps), layer.mlp))

    def attention(
        self, x: Tensor, weights: KdaWeights | MlaWeights, cache: KdaCache | LatentCache, tables: Tables
    ) -> Tensor:
        """A partial sum [rows, d] bf16 from the normed input [rows, d] bf16; `cache` moves on."""
        run = self.kda if isinstance(weights, KdaWeights) else self.mla
        return run(x, weights, cache, tables)

    def mlp(self, y: Tensor, weights: DenseWeights | PackedMoe) -> Tensor:
        """The MLP's output [rows, d] bf16, its partial sums summed over ranks as `reduce` does."""
        if isinstance(weights, DenseWeights):
            return self.reduce(dense(y, weights, self.architecture))
        return self.moe(8 * weights.w13.words.shape[1])(y, weights, self.reduce)

    @torch.no_grad()
    def head(self, stream: Stream, final_mix: MixWeights, lm_head: Tensor) -> Tensor:
        """This rank's logits [rows, local vocabulary] bf16: final mix with norm, and one product."""
        return torch.mm(stream.head_input(final_mix, self.architecture.eps.backbone), lm_head.T)


def to_device(part, device: torch.device | str):
    """A tensor, or a dataclass of them, nested ones too, with every tensor contiguous on `device`."""
    if isinstance(part, Tensor):
        return part.to(device).contiguous()
    return type(part)(**{field.name: to_device(getattr(part, field.name), device) for field in fields(part)})
