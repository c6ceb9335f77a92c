"""Trainable parameters under the published names, and what is made of them: weights of a step, a checkpoint.

Everything is a float32 master copy. A forward pass reads it as it will be published: bfloat16 where the checkpoint has
bfloat16, MXFP4 values where it has MXFP4, with the gradient passed straight through the rounding (quantisation-aware
training). The matrices of a layer's experts are stacked: `...experts.w1` is [experts, I, L].
"""

from pathlib import Path

import torch
from torch import Generator, Tensor

from ..architecture import Architecture
from ..layer_weights import DenseWeights, KdaWeights, LayerWeights, MixWeights, MlaWeights, ModelWeights, MoeWeights
from ..step.unpack import Unpacked
from ..weights import mxfp4, names, writer
from ..weights.checkpoint import Checkpoint
from ..weights.names import DType, TensorInfo, expected, layer_prefix

_PACKED, _SCALE = ".weight_packed", ".weight_scale"

Parameters = dict[str, Tensor]
"""Published name (of experts: the stack's) -> float32 master copy."""


def shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Of every parameter."""
    found: dict[str, tuple[int, ...]] = {}
    for name, info in expected(architecture).items():
        if name.endswith(_PACKED):
            prefix, matrix = _stack_of(name)
            found[prefix + matrix] = (architecture.moe.experts, info.shape[0], 2 * info.shape[1])
        elif not name.endswith(_SCALE):
            found[name] = info.shape
    return found


def initial(architecture: Architecture, seed: int) -> Parameters:
    """Drawn in the order of names: matrices of variance 1 / K, those that end a sublayer smaller, norms of one."""
    random = Generator().manual_seed(seed)
    return {name: _draw(name, shape, architecture, random) for name, shape in sorted(shapes(architecture).items())}


def weights(parameters: Parameters, architecture: Architecture) -> ModelWeights:
    """The unsharded weights of a step, differentiable; experts carry their MXFP4 values."""
    reader = _Reader(parameters, architecture)
    return ModelWeights(
        embedding=reader.bf16(names.EMBEDDING),
        layers={layer: reader.layer(layer) for layer in range(architecture.layers)},
        final_mix=reader.mix(names.FINAL_RES_NORM, names.FINAL_RES_PROJ, names.FINAL_NORM),
        lm_head=reader.bf16(names.LM_HEAD),
    )


def export(parameters: Parameters, architecture: Architecture, directory: Path) -> None:
    """Writes a checkpoint in the published form. Raises UserError if `directory` exists."""
    types = {DType.BF16: torch.bfloat16, DType.F32: torch.float32}

    def source(name: str, info: TensorInfo) -> dict[str, Tensor]:
        if name.endswith(_SCALE):
            return {}
        if name.endswith(_PACKED):
            prefix, matrix = _stack_of(name)
            packed, scale = mxfp4.quantise(parameters[prefix + matrix][_expert_of(name)].detach().float().cpu())
            return {name: packed, name.removesuffix(_PACKED) + _SCALE: scale}
        return {name: parameters[name].detach().cpu().to(types[info.dtype], copy=True).contiguous()}

    layers = [expected(architecture, [layer], ends=False) for layer in range(architecture.layers)]
    writer.write(directory, architecture, [*layers, expected(architecture, [])], source)


def imported(checkpoint: Checkpoint) -> Parameters:
    """The values of a checkpoint as master copies."""
    architecture = checkpoint.architecture
    found = {}
    for name, shape in shapes(architecture).items():
        prefix, _, matrix = name.rpartition("experts.")
        if not prefix or "." in matrix:
            found[name] = checkpoint.read(name, (slice(0, shape[0]),)).float()
            continue
        stored = (f"{prefix}experts.{expert}.{matrix}" for expert in range(shape[0]))
        found[name] = torch.stack(
            [mxfp4.dequantise(checkpoint.read(e + _PACKED), checkpoint.read(e + _SCALE), torch.float32) for e in stored]
        )
    return found


def quantised(master: Tensor) -> Unpacked:
    """MXFP4 of [E, N, K]; its values pass their gradient on to `master` as if nothing had been rounded."""
    packed, scale = mxfp4.quantise(master.detach())
    values = mxfp4.dequantise(packed, scale, torch.float32)
    return Unpacked(packed, scale, master + (values - master).detach())


class _Reader:
    """Assembles the fused tensors of a step."""

    def __init__(self, parameters: Parameters, architecture: Architecture) -> None:
        self.parameters = parameters
        self.architecture = architecture

    def bf16(self, *parts: str) -> Tensor:
        """These parameters below each other, rounded."""
        return torch.cat([self.parameters[name] for name in parts]).bfloat16()

    def mix(self, res_norm: str, res_proj: str, out_norm: str) -> MixWeights:
        return MixWeights(self.bf16(res_norm), self.bf16(res_proj)[0], self.bf16(out_norm))

    def layer(self, layer: int) -> LayerWeights:
        prefix = layer_prefix(layer)
        attention = self.kda if layer in self.architecture.kda_layers else self.mla
        mlp = self.dense(prefix + "mlp.") if layer < self.architecture.moe.first_layer else self.moe(prefix)
        mixes = [
            self.mix(*(f"{prefix}{part}.weight" for part in (f"{name}_res_norm", f"{name}_res_proj", norm)))
            for name, norm in (("self_attention", "input_layernorm"), ("mlp", "post_attention_layernorm"))
        ]
        return LayerWeights(mixes[0], attention(prefix + "self_attn."), mixes[1], mlp)

    def kda(self, prefix: str) -> KdaWeights:
        shard = self.architecture.kda_shard(1)
        rows = self.bf16(*(f"{prefix}{name}_proj.weight" for name in ("q", "k", "v", "g", "f_a", "b")))
        padding = rows.new_zeros(shard.projection_rows - len(rows), rows.shape[1])
        return KdaWeights(
            in_proj=torch.cat([rows, padding]),
            f_b=self.bf16(prefix + "f_b_proj.weight"),
            conv_weight=torch.cat([self.parameters[f"{prefix}{name}_conv1d.weight"][:, 0] for name in "qkv"]),
            a_log=self.parameters[prefix + "A_log"],
            dt_bias=self.parameters[prefix + "dt_bias"],
            o_norm=self.bf16(prefix + "o_norm.weight"),
            o_proj=self.bf16(prefix + "o_proj.weight"),
        )

    def mla(self, prefix: str) -> MlaWeights:
        return MlaWeights(
            qkv_a_g=self.bf16(*(f"{prefix}{name}.weight" for name in ("q_a_proj", "kv_a_proj_with_mqa", "g_proj"))),
            q_a_norm=self.bf16(prefix + "q_a_layernorm.weight"),
            kv_a_norm=self.bf16(prefix + "kv_a_layernorm.weight"),
            q_b=self.bf16(prefix + "q_b_proj.weight"),
            kv_b=self.bf16(prefix + "kv_b_proj.weight"),
            o_proj=self.bf16(prefix + "o_proj.weight"),
        )

    def dense(self, prefix: str) -> DenseWeights:
        return DenseWeights(
            self.bf16(prefix + "gate_proj.weight", prefix + "up_proj.weight"), self.bf16(prefix + "down_proj.weight")
        )

    def moe(self, layer: str) -> MoeWeights:
        prefix = layer + "block_sparse_moe."
        shared = self.dense(prefix + "shared_experts.")
        w1, w2, w3 = (self.parameters[f"{prefix}experts.{name}"] for name in ("w1", "w2", "w3"))
        return MoeWeights(
            router=self.bf16(prefix + "gate.weight"),
            correction_bias=self.parameters[correction_bias(layer)],
            latent_down=self.bf16(prefix + "routed_expert_down_proj.weight"),
            latent_norm=self.bf16(prefix + "routed_expert_norm.weight"),
            latent_up=self.bf16(prefix + "routed_expert_up_proj.weight"),
            w13=quantised(torch.cat([w1, w3], 1)),
            w2=quantised(w2),
            shared_gate_up=shared.gate_up,
            shared_down=shared.down,
        )


def correction_bias(prefix: str) -> str:
    """The name of the selection bias in the layer with this prefix: moved by loads, not by gradients."""
    return prefix + "block_sparse_moe.gate.e_score_correction_bias"


def _draw(name: str, shape: tuple[int, ...], architecture: Architecture, random: Generator) -> Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("e_score_correction_bias") or name.endswith("res_proj.weight"):
        return torch.zeros(shape)  # equal mixes of all sources to begin with
    if name.endswith("A_log"):
        return (1 + 3 * torch.rand(shape, generator=random)).log()
    if name.endswith("dt_bias"):
        # Log decays of -5 sigmoid(rate (f + bias)): from one token to hundreds.
        return -4 * torch.rand(shape, generator=random)
    if name == names.EMBEDDING:
        return torch.randn(shape, generator=random)
    deviation = shape[-1] ** -0.5
    if name.endswith(("o_proj.weight", "down_proj.weight", "routed_expert_up_proj.weight")) and shape[0] == (
        architecture.hidden_size
    ):
        deviation *= (2 * architecture.layers) ** -0.5
    return torch.randn(shape, generator=random) * deviation


def _stack_of(name: str) -> tuple[str, str]:
    """Prefix up to "experts." and matrix of one expert's tensor."""
    prefix, rest = name.split("experts.", 1)
    return prefix + "experts.", rest.split(".")[1]


def _expert_of(name: str) -> int:
    return int(name.split("experts.", 1)[1].split(".")[0])
