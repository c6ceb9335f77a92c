"""A few layers of the published model at their true widths: weights drawn where they are used, and the paths over them.

Weights are scaled as in weights/synthetic.py. Ranks share what is replicated; nothing is ever held unpacked, as a layer
of experts is 16 GB packed: of those that were chosen a few at a time are unpacked. The vocabulary is cut short, so that
records hold whole rows of logits.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Generator, Tensor

from ....errors import UserError
from ..architecture import Architecture
from ..layer_weights import (
    DenseWeights, KdaWeights, LayerWeights, MixWeights, MlaWeights, ModelWeights, MoeWeights, Mxfp4,
)  # fmt: skip
from ..step.precision import EXACT, PUBLISHED, Precision
from ..step.situ import situ
from ..weights.mxfp4 import dequantise
from .observed import Observed
from .paths import CHUNKS, TorchPath
from .reordered import Reordered

VOCABULARY = 512
TP = 8
"""Ranks that weights are drawn for; the oracle sums over them in float64"""
_AT_ONCE = 32
"""Experts that are unpacked at a time"""
_RMS = math.sqrt(68.5 / 8)
"""Of a nibble that may be anything"""


def checked(text: str) -> tuple[int, ...]:
    """Numbers of layers, increasing, the dense one first. Raises UserError."""
    of = Architecture.from_config()
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--layers {text} is no list of numbers", "write --layers 0,1,3") from error
    if layers[0] != 0 or list(layers) != sorted(set(layers)) or layers[-1] >= of.layers:
        raise UserError(
            f"layers {text}", f"name layer 0 and others up to {of.layers - 1}, in increasing order: 0,1,3 has one of each kind"
        )
    return layers


def architecture(layers: Sequence[int]) -> Architecture:
    """The published one of `layers` alone, which follow each other; the first of them is the dense one."""
    of = Architecture.from_config()
    places = {layer: place for place, layer in enumerate(layers)}
    return of.model_copy(
        update={
            "layers": len(layers), "vocab_size": VOCABULARY,
            "kda_layers": tuple(places[n] for n in layers if n in of.kda_layers),
            "mla_layers": tuple(places[n] for n in layers if n in of.mla_layers),
        }
    )  # fmt: skip


class Gathered(Observed):
    """Observed, with several experts unpacked and multiplied together, each for all rows that chose it."""

    def experts(self, latent: Tensor, ids: Tensor, weights: Tensor, rank: MoeWeights) -> Tensor:
        """As step/moe.py: gate, up and down rounded, the weighted sum rounded once."""
        precision = self.precision
        # The last row is nobody's.
        outputs = latent.new_empty(ids.numel() + 1, latent.shape[-1])
        rows = (torch.arange(len(outputs), device=ids.device) // ids.shape[1]).clamp(max=len(latent) - 1)
        for experts, places in _grouped(ids.flatten()):
            w13, w2 = (
                dequantise(stack.packed[experts], stack.scale[experts], precision.arithmetic) for stack in (rank.w13, rank.w2)
            )
            gate, up = _products(latent[rows[places]], w13, precision).chunk(2, -1)
            activation = precision.round(situ(gate, up, self.architecture.situ))
            outputs[places] = _products(activation, w2, precision)
        return precision.round((weights[..., None] * outputs[:-1].unflatten(0, ids.shape)).sum(1))


def _grouped(ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A few experts at a time, [n], and where in `ids` each of them stands, [n, m]; lines are filled up with the place behind all."""
    order = ids.argsort(stable=True)
    experts, counts = ids[order].unique_consecutive(return_counts=True)
    ends = counts.cumsum(0)
    for some in torch.arange(len(experts), device=ids.device).split(_AT_ONCE):
        most = int(counts[some].max())
        line = torch.arange(most, device=ids.device).expand(len(some), most)
        found = order[((ends - counts)[some][:, None] + line).clamp(max=len(ids) - 1)]
        yield experts[some], found.where(line < counts[some][:, None], len(ids))


def _products(x: Tensor, matrices: Tensor, precision: Precision) -> Tensor:
    """x [n, m, K] by matrices [n, N, K]: `Precision.linear` with matrices of their own."""
    if isinstance(precision, Reordered):
        return precision.products(x, matrices)
    return precision.round(x @ matrices.mT)


class Published:
    """As weights.Weighed."""

    def __init__(self, layers: Sequence[int], seed: int, device: str) -> None:
        self.architecture, self._seed, self._device = architecture(layers), seed, device
        self.shards = lru_cache(None)(self._shards)

    def oracle(self) -> TorchPath:
        """float64, nothing rounded; ranks are summed exactly."""
        return TorchPath(Gathered(self.architecture, self.shards(TP), EXACT))

    def stock(self, tp: int) -> TorchPath:
        """The plain path."""
        return TorchPath(self.variant(tp, Gathered))

    def again(self, tp: int, seed: int) -> TorchPath:
        """The plain path in another order of sums and another cut of the prefill."""
        return TorchPath(self.variant(tp, Gathered, Reordered(seed=seed)), chunk=CHUNKS[seed % len(CHUNKS)])

    def variant(self, tp: int, model: type[Observed], precision: Precision = PUBLISHED) -> Observed:
        """Another model over the plain path's weights."""
        return model(self.architecture, self.shards(tp), precision)

    def _shards(self, tp: int) -> tuple[ModelWeights, ...]:
        draw = _Draw(self.architecture, tp, self._seed, self._device)
        return tuple(draw.model(rank) for rank in range(tp))


class _Draw:
    """Tensors by name; one that ranks share is made once."""

    def __init__(self, of: Architecture, tp: int, seed: int, device: str) -> None:
        self._of, self._tp, self._seed, self._device = of, tp, seed, device
        self.normal_once = lru_cache(None)(self.normal)

    def _random(self, name: str) -> Generator:
        digest = hashlib.blake2b(f"{self._seed}:{self._tp}:{name}".encode(), digest_size=7).digest()
        return Generator(self._device).manual_seed(int.from_bytes(digest, "little"))

    def normal(
        self, name: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0, dtype: torch.dtype = torch.bfloat16
    ) -> Tensor:  # fmt: skip
        """Normal values."""
        drawn = torch.empty(shape, dtype=torch.float32, device=self._device)
        return drawn.normal_(mean, deviation, generator=self._random(name)).to(dtype)

    def uniform(self, name: str, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        """Uniform float32 values."""
        return torch.empty(shape, device=self._device).uniform_(low, high, generator=self._random(name))

    def packed(self, name: str, experts: int, rows: int, columns: int, fan_in: int) -> Mxfp4:
        """Any nibbles, and scales of two neighbouring powers of two about what a fan-in asks for."""
        random = self._random(name)
        exponent = 127 + round(math.log2(fan_in**-0.5 / _RMS))
        bits = torch.empty(experts, rows, columns // 2, dtype=torch.uint8, device=self._device)
        scale = torch.empty(experts, rows, columns // 32, dtype=torch.uint8, device=self._device)
        return Mxfp4(bits.random_(0, 256, generator=random), scale.random_(exponent, exponent + 2, generator=random))

    def model(self, rank: int) -> ModelWeights:
        """One rank."""
        of, d = self._of, self._of.hidden_size
        return ModelWeights(
            embedding=self.normal_once("embedding", (of.vocab_size, d), 1.0),
            layers={layer: self.layer(layer, rank) for layer in range(of.layers)},
            final_mix=self.mix("final"),
            lm_head=self.normal(f"head {rank}", (of.vocab_size // self._tp, d), d**-0.5),
        )

    def layer(self, layer: int, rank: int) -> LayerWeights:
        """One layer of one rank."""
        attention = self.kda if layer in self._of.kda_layers else self.mla
        mlp = self.dense if layer < self._of.moe.first_layer else self.moe
        return LayerWeights(
            attention_mix=self.mix(f"{layer} attention"), attention=attention(layer, rank),
            mlp_mix=self.mix(f"{layer} mlp"), mlp=mlp(layer, rank),
        )  # fmt: skip

    def mix(self, name: str) -> MixWeights:
        """An AttnRes mix, the same on all ranks."""
        d = self._of.hidden_size
        return MixWeights(
            res_norm=self.normal_once(f"{name} res_norm", (d,), 0.1, 1.0),
            res_proj=self.normal_once(f"{name} res_proj", (d,), d**-0.5),
            out_norm=self.normal_once(f"{name} out_norm", (d,), 0.1, 1.0),
        )

    def kda(self, layer: int, rank: int) -> KdaWeights:
        """Decays reach from one token to hundreds."""
        of, shard, at = self._of, self._of.kda_shard(self._tp), f"{layer} kda"
        d, p = of.hidden_size, shard.channels
        in_proj = self.normal(f"{at} in_proj {rank}", (shard.projection_rows, d), d**-0.5)
        in_proj[shard.columns["f_a"]] = self.normal_once(f"{at} f_a", (shard.gate_rank, d), d**-0.5)
        in_proj[shard.columns["pad"]] = 0
        return KdaWeights(
            in_proj=in_proj,
            f_b=self.normal(f"{at} f_b {rank}", (p, shard.gate_rank), shard.gate_rank**-0.5),
            conv_weight=self.normal(f"{at} conv {rank}", (3 * p, shard.conv_width), 0.5, dtype=torch.float32),
            a_log=self.uniform(f"{at} a_log {rank}", (shard.heads,), 1, 16).log_(),
            dt_bias=self.uniform(f"{at} dt_bias {rank}", (p,), -4, 0),
            o_norm=self.normal_once(f"{at} o_norm", (shard.head_dim,), 0.1, 1.0),
            o_proj=self.normal(f"{at} o_proj {rank}", (d, p), (p * self._tp) ** -0.5),
        )

    def mla(self, layer: int, rank: int) -> MlaWeights:
        """Query and latent projections are the same on all ranks."""
        mla, d, at = self._of.mla, self._of.hidden_size, f"{layer} mla"
        heads = mla.heads // self._tp
        p = heads * mla.v_head_dim
        shared = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim
        key = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        return MlaWeights(
            qkv_a_g=torch.cat([
                self.normal_once(f"{at} q_a kv_a", (shared, d), d**-0.5),
                self.normal(f"{at} g {rank}", (p, d), d**-0.5),
            ]),
            q_a_norm=self.normal_once(f"{at} q_a_norm", (mla.q_lora_rank,), 0.1, 1.0),
            kv_a_norm=self.normal_once(f"{at} kv_a_norm", (mla.kv_lora_rank,), 0.1, 1.0),
            q_b=self.normal(f"{at} q_b {rank}", (heads * key, mla.q_lora_rank), mla.q_lora_rank**-0.5),
            kv_b=self.normal(
                f"{at} kv_b {rank}", (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
                mla.kv_lora_rank**-0.5,
            ),
            o_proj=self.normal(f"{at} o_proj {rank}", (d, p), (p * self._tp) ** -0.5),
        )  # fmt: skip

    def dense(self, layer: int, rank: int) -> DenseWeights:
        """The dense MLP."""
        d, whole, at = self._of.hidden_size, self._of.dense_intermediate_size, f"{layer} dense"
        n = whole // self._tp
        return DenseWeights(
            gate_up=self.normal(f"{at} gate_up {rank}", (2 * n, d), d**-0.5),
            down=self.normal(f"{at} down {rank}", (d, n), whole**-0.5),
        )

    def moe(self, layer: int, rank: int) -> MoeWeights:
        """Biases make some experts several times as popular as others, and ties of scores rarer."""
        moe, d, at = self._of.moe, self._of.hidden_size, f"{layer} moe"
        latent, intermediate = moe.latent_size, moe.expert_intermediate_size // self._tp
        shared = moe.shared_experts * moe.expert_intermediate_size
        n = shared // self._tp
        return MoeWeights(
            router=self.normal_once(f"{at} router", (moe.experts, d), d**-0.5),
            correction_bias=self.normal_once(f"{at} bias", (moe.experts,), 0.4, 0.0, torch.float32),
            latent_down=self.normal_once(f"{at} latent_down", (latent, d), d**-0.5),
            latent_norm=self.normal_once(f"{at} latent_norm", (latent,), 0.1, 1.0),
            latent_up=self.normal_once(f"{at} latent_up", (d, latent), latent**-0.5),
            w13=self.packed(f"{at} w13 {rank}", moe.experts, 2 * intermediate, latent, latent),
            w2=self.packed(f"{at} w2 {rank}", moe.experts, latent, intermediate, moe.expert_intermediate_size),
            shared_gate_up=self.normal(f"{at} shared_gate_up {rank}", (2 * n, d), d**-0.5),
            shared_down=self.normal(f"{at} shared_down {rank}", (d, n), shared**-0.5),
        )
