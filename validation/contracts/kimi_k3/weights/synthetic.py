"""Synthetic checkpoints in the published form: names, types, shards, index and configuration.

Every tensor is drawn from a generator seeded with (seed, name), so a layer has the same weights whichever others are
written beside it. Weights are scaled by their fan-in, so that a normalised input leaves every projection with entries
of order one and the residual stream grows only with the number of sources that it sums.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor

from ....errors import UserError
from ..architecture import Architecture
from . import mxfp4, names, quantisation
from .checkpoint import CONFIG_FILE, INDEX_FILE, TORCH_DTYPES
from .names import ALog, TensorInfo, expected

_PACKED, _SCALE = ".weight_packed", ".weight_scale"


def write(
    directory: Path,
    architecture: Architecture,
    *,
    seed: int = 0,
    layers: Collection[int] | None = None,
    ends: bool = True,
    ties: bool = False,
    a_log: ALog = ALog.VECTOR,
) -> None:
    """Writes a checkpoint of these layers (None: all; counted from zero) into `directory`, which must not exist.

    One shard a layer and one for the ends; one layer at a time is in memory; `directory` appears only when complete.
    Experts are used unevenly, each of them sometimes. With `ties`, experts 2n and 2n + 1 always score the same. An
    `A_log` vector gets a tail of zeros. Raises UserError if `directory` exists, or for a layer that there is not.
    """
    if directory.exists():
        raise UserError(f"{directory}: exists already", "name a new directory, or remove this one")
    chosen = range(architecture.layers) if layers is None else sorted(set(layers))
    if odd := [layer for layer in chosen if not 0 <= layer < architecture.layers]:
        raise UserError(f"there is no layer {odd[0]}", f"layers count from 0 to {architecture.layers - 1}")
    parts = [expected(architecture, [layer], ends=False, a_log=a_log) for layer in chosen]
    if ends:
        parts.append(expected(architecture, [], a_log=a_log))
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        _write_into(unfinished, architecture, parts, lambda name, info: _draw(name, info, seed, ties))
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def published_config(architecture: Architecture) -> dict:
    """The content of a `config.json` from which `Architecture.from_config` reads `architecture`.

    Epsilons that the published form lacks are not in it.
    """
    a, kda, mla, moe = architecture, architecture.kda, architecture.mla, architecture.moe
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": {
            "model_type": "kimi_linear",
            "hidden_size": a.hidden_size,
            "intermediate_size": a.dense_intermediate_size,
            "num_hidden_layers": a.layers,
            "num_attention_heads": mla.heads,
            "num_key_value_heads": mla.heads,
            "vocab_size": a.vocab_size,
            "max_position_embeddings": a.max_positions,
            "tie_word_embeddings": False,
            "rms_norm_eps": a.eps.backbone,
            "hidden_act": "situ",
            "activation_situ_beta": a.situ.beta,
            "activation_situ_linear_beta": a.situ.linear_beta,
            "attn_res_block_size": a.attn_res_block_size,
            "linear_attn_config": {
                "num_heads": kda.heads,
                "head_dim": kda.head_dim,
                "short_conv_kernel_size": kda.conv_width,
                "gate_lower_bound": kda.gate_lower_bound,
                "use_full_rank_gate": True,
                "kda_layers": [layer + 1 for layer in a.kda_layers],
                "full_attn_layers": [layer + 1 for layer in a.mla_layers],
            },
            "q_lora_rank": mla.q_lora_rank,
            "kv_lora_rank": mla.kv_lora_rank,
            "qk_nope_head_dim": mla.qk_nope_head_dim,
            "qk_rope_head_dim": mla.qk_rope_head_dim,
            "v_head_dim": mla.v_head_dim,
            "mla_use_nope": True,
            "mla_use_output_gate": True,
            "first_k_dense_replace": moe.first_layer,
            "moe_layer_freq": 1,
            "num_experts": moe.experts,
            "num_experts_per_token": moe.top_k,
            "num_shared_experts": moe.shared_experts,
            "num_expert_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": moe.expert_intermediate_size,
            "routed_expert_hidden_size": moe.latent_size,
            "latent_moe_use_norm": True,
            "moe_router_activation_func": "sigmoid",
            "moe_renormalize": True,
            "routed_scaling_factor": moe.routed_scaling_factor,
            "num_nextn_predict_layers": 0,
            "quantization_config": quantisation.published(),
        },
    }


_Draw = Callable[[str, TensorInfo], dict[str, Tensor]]


def _write_into(
    directory: Path, architecture: Architecture, parts: Collection[dict[str, TensorInfo]], draw: _Draw
) -> None:
    weight_map: dict[str, str] = {}
    total_size = 0
    for number, infos in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = {name: tensor for item in infos.items() for name, tensor in draw(*item).items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total_size += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(directory / INDEX_FILE, index)
    _write_json(directory / CONFIG_FILE, published_config(architecture))


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _draw(name: str, info: TensorInfo, seed: int, ties: bool) -> dict[str, Tensor]:
    """The tensor `name`; for packed elements their scales too, and for scales nothing."""
    if name.endswith(_SCALE):
        return {}
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    random = Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
    if name.endswith(_PACKED):
        rows, k = info.shape[0], 2 * info.shape[1]
        packed, scale = mxfp4.quantise(_by_fan_in((rows, k), random))
        return {name: packed, name.removesuffix(_PACKED) + _SCALE: scale}
    draw = next(draw for suffixes, draw in _RULES if name.endswith(suffixes))
    values = draw(info.shape, random)
    if ties and name.endswith(_ROUTING):
        pairs = len(values) // 2 * 2
        values[1:pairs:2] = values[0:pairs:2]
    if info.zero_tail:
        # As published: 96 heads in a buffer of 128.
        values = torch.cat([values, values.new_zeros((1 << len(values).bit_length()) - len(values))])
    return {name: values.to(TORCH_DTYPES[info.dtype])}


_Shape = tuple[int, ...]


def _by_fan_in(shape: _Shape, random: Generator) -> Tensor:
    return torch.randn(shape, generator=random).mul_(shape[-1] ** -0.5)


def _normal(mean: float, deviation: float) -> Callable[[_Shape, Generator], Tensor]:
    return lambda shape, random: torch.randn(shape, generator=random).mul_(deviation).add_(mean)


def _uniform(low: float, high: float) -> Callable[[_Shape, Generator], Tensor]:
    return lambda shape, random: torch.rand(shape, generator=random).mul_(high - low).add_(low)


def _log_uniform(low: float, high: float) -> Callable[[_Shape, Generator], Tensor]:
    return lambda shape, random: _uniform(low, high)(shape, random).log_()


_ROUTING = (".gate.weight", ".gate.e_score_correction_bias")

# The first rule with a matching suffix draws a tensor.
_RULES: Iterable[tuple[tuple[str, ...], Callable[[_Shape, Generator], Tensor]]] = (
    (("norm.weight",), _normal(1, 0.1)),
    (("_conv1d.weight",), _normal(0, 0.5)),
    # Decays exp(-5 sigmoid(exp(A_log) (f + dt_bias))): slow heads forget over hundreds of tokens, fast ones at once.
    (("A_log",), _log_uniform(1, 16)),
    (("dt_bias",), _uniform(-4, 0)),
    # Scores spread by about 0.2 over tokens; this much bias makes some experts several times as popular as others.
    (("e_score_correction_bias",), _normal(0, 0.1)),
    ((names.EMBEDDING,), _normal(0, 1)),
    ((".weight",), _by_fan_in),
)
