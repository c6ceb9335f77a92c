"""The model as training runs it: whole sequences from an empty state, differentiable, fast on a GPU.

Residual stream, mixes, norms, activation, router choice and KDA's equations for one token are those of `step`. What is
written again here is what a step cannot do: convolution and recurrence over sequences, attention without a cache,
experts in batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor

from ..architecture import Architecture
from ..kda_decode.oracle import Step
from ..layer_weights import KdaWeights, MixWeights, MlaWeights, ModelWeights, MoeWeights
from ..step import dense
from ..step.attn_res import Stream, mix_norm
from ..step.kda import Core
from ..step.norm import rms_norm
from ..step.precision import Precision
from ..step.router import choose, router_logits
from ..step.situ import situ
from .recurrence import delta_rule


@dataclass(frozen=True)
class TensorCores(Precision):
    """`PUBLISHED` with products on bfloat16 operands: the same roundings, at the speed of a GPU's tensor cores."""

    arithmetic: torch.dtype = torch.float32
    storage: torch.dtype = torch.bfloat16
    recurrent_state: torch.dtype = torch.float32

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x W^T, accumulated in float32, rounded once."""
        return F.linear(x.bfloat16(), weight.bfloat16()).float()


UNROUNDED = Precision(arithmetic=torch.float32, storage=torch.float32, recurrent_state=torch.float32)
"""For a CPU, where bfloat16 is slow."""


@dataclass
class Forward:
    """One forward pass over sequences of one length."""

    architecture: Architecture
    weights: ModelWeights
    precision: Precision
    recompute: bool = False
    """Keep only the stream of each layer for the backward pass and compute the rest again"""
    loads: dict[int, Tensor] = field(default_factory=dict)
    """Layer -> [experts] how many tokens went to each in the last pass"""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [sequences, length, vocabulary] of [sequences, length] token ids."""
        self.sequences = len(tokens)
        embedding = F.embedding(tokens.flatten(), self.precision.wide(self.weights.embedding))
        stream = Stream(embedding, self.architecture.attn_res_block_size, self.precision)
        for number, layer in self.weights.layers.items():
            attend = self._kda if isinstance(layer.attention, KdaWeights) else self._mla
            attended = self._run(attend, stream.enter(number), layer.attention_mix, layer.attention)
            stream.after_attention(number, attended)
            if isinstance(layer.mlp, MoeWeights):
                output, load = self._run(self._moe, stream.sources, layer.mlp_mix, layer.mlp)
                self.loads[number] = load
            else:
                output = self._run(self._dense, stream.sources, layer.mlp_mix, layer.mlp)
            stream.after_mlp(output)
        normed = self._mix_norm(stream.sources, self.weights.final_mix, final=True)
        return self.precision.linear(normed, self.weights.lm_head).unflatten(0, (self.sequences, -1))

    def _run(self, sublayer: Callable, sources: list[Tensor], mix: MixWeights, weights):
        """A sublayer behind its mix and norm."""

        def run(*sources: Tensor):
            return sublayer(self._mix_norm(list(sources), mix), weights)

        if not self.recompute:
            return run(*sources)
        return torch.utils.checkpoint.checkpoint(run, *sources, use_reentrant=False)

    def _mix_norm(self, sources: list[Tensor], weights: MixWeights, *, final: bool = False) -> Tensor:
        return mix_norm(sources, weights, self.architecture.eps.backbone, self.precision, final=final)

    def _kda(self, x: Tensor, weights: KdaWeights) -> Tensor:
        precision, core = self.precision, Core(self.architecture, 1, self.precision)
        shard = core.shard
        projected = precision.linear(x, weights.in_proj)
        columns = {name: projected[:, part] for name, part in shard.columns.items()}
        names = ("f_b", "conv_weight", "a_log", "dt_bias", "o_norm")
        static = {name: precision.wide(getattr(weights, name)) for name in names}
        step = Step(columns, x.new_empty(0), x.new_empty(0), static)

        mixed = self._convolution(projected[:, : 3 * shard.channels], static["conv_weight"])
        mixed = precision.round(mixed * mixed.sigmoid(), where=precision.round_convolved)
        query, key, value = (part.unflatten(1, (shard.heads, -1)) for part in mixed.chunk(3, 1))
        bias, rate = static["dt_bias"].unflatten(0, (shard.heads, -1)), static["a_log"].exp()[:, None]
        log_decay = core.gate_lower_bound * torch.sigmoid(rate * (core.gate(step) + bias))
        out = delta_rule(
            self._by_head(core.scaled(core.normalised(query))),
            self._by_head(core.normalised(key)),
            self._by_head(value),
            self._by_head(log_decay),
            self._by_head(core.beta(step)[..., None])[..., 0],
        )
        return precision.linear(core.output(step, self._by_row(out)).flatten(1), weights.o_proj)

    def _convolution(self, x: Tensor, taps: Tensor) -> Tensor:
        """sum_t w_t x_(row - width + 1 + t) within each sequence; x [rows, c], taps [c, width], oldest first."""
        width = taps.shape[1]
        rows = F.pad(x.unflatten(0, (self.sequences, -1)), (0, 0, width - 1, 0))
        length = rows.shape[1] - width + 1
        return sum(rows[:, t : t + length] * taps[:, t] for t in range(width)).flatten(0, 1)

    def _mla(self, x: Tensor, weights: MlaWeights) -> Tensor:
        sizes, eps, precision = self.architecture.mla, self.architecture.eps, self.precision
        widths = [sizes.q_lora_rank, sizes.kv_lora_rank, sizes.qk_rope_head_dim, sizes.heads * sizes.v_head_dim]
        q_a, kv_a, shared_key, gate = precision.linear(x, weights.qkv_a_g).split(widths, -1)
        query = precision.linear(rms_norm(q_a, weights.q_a_norm, eps.mla_q_a, precision), weights.q_b)
        latent = rms_norm(kv_a, weights.kv_a_norm, eps.mla_kv_a, precision)
        expanded = precision.linear(latent, weights.kv_b).unflatten(1, (sizes.heads, -1))
        nope, value = expanded.split([sizes.qk_nope_head_dim, sizes.v_head_dim], -1)
        key = torch.cat([nope, shared_key[:, None].expand(-1, sizes.heads, -1)], -1)
        # One width for all three lets fused attention run; what is appended to the values is dropped again.
        value = F.pad(value, (0, key.shape[-1] - sizes.v_head_dim))
        attended = F.scaled_dot_product_attention(
            *(
                self._by_head(part).to(precision.storage)
                for part in (query.unflatten(1, (sizes.heads, -1)), key, value)
            ),
            is_causal=True,
        )
        attended = precision.wide(self._by_row(attended)[..., : sizes.v_head_dim]).flatten(1)
        return precision.linear(precision.round(attended * gate.sigmoid()), weights.o_proj)

    def _dense(self, x: Tensor, weights) -> Tensor:
        return dense.partial(x, weights.gate_up, weights.down, self.architecture.situ, self.precision)

    def _moe(self, y: Tensor, weights: MoeWeights) -> tuple[Tensor, Tensor]:
        """The layer's output, and how many tokens each expert was given."""
        precision, moe = self.precision, self.architecture.moe
        ids, scales = choose(router_logits(y, weights.router, precision), weights.correction_bias, moe, precision)
        latent = precision.linear(y, weights.latent_down)
        load = torch.bincount(ids.flatten(), minlength=moe.experts)
        outputs = self._experts(latent, ids, load, weights)
        routed = precision.round((scales[..., None] * outputs).sum(1))
        normed = rms_norm(routed, weights.latent_norm, self.architecture.eps.backbone, precision)
        shared = dense.partial(y, weights.shared_gate_up, weights.shared_down, self.architecture.situ, precision)
        return precision.round(precision.linear(normed, weights.latent_up) + shared), load

    def _experts(self, latent: Tensor, ids: Tensor, load: Tensor, weights: MoeWeights) -> Tensor:
        """W2_e situ(W13_e z) of every token and chosen expert, [rows, top_k, L].

        Tokens are sorted by expert; each expert multiplies its own, and everything else sees all of them at once.
        """
        precision, storage, loads = self.precision, self.precision.storage, load.tolist()
        order = ids.flatten().argsort(stable=True)

        def product(x: Tensor, weight: Tensor) -> Tensor:
            # MXFP4 values are exact in the storage type. Types change once for all experts, not at each.
            parts = zip(x.to(storage).split(loads), weight.to(storage).unbind(0), strict=True)
            return precision.wide(torch.cat([F.linear(part, expert) for part, expert in parts]))

        sent = latent.index_select(0, order // ids.shape[1])
        gate, up = product(sent, weights.w13.values).chunk(2, -1)
        outputs = product(precision.round(situ(gate, up, self.architecture.situ)), weights.w2.values)
        return torch.zeros_like(outputs).index_copy(0, order, outputs).unflatten(0, ids.shape)

    def _by_head(self, x: Tensor) -> Tensor:
        """[rows, heads, D] as [sequences, heads, length, D]."""
        return x.unflatten(0, (self.sequences, -1)).transpose(1, 2)

    def _by_row(self, x: Tensor) -> Tensor:
        """The opposite."""
        return x.transpose(1, 2).flatten(0, 1)
