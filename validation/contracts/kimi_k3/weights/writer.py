"""Writing a checkpoint in the published form: shards, index and configuration."""

import json
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ....errors import UserError
from ..architecture import Architecture
from . import quantisation
from .checkpoint import CONFIG_FILE, INDEX_FILE
from .names import TensorInfo

Source = Callable[[str, TensorInfo], dict[str, Tensor]]
"""(name, what is expected there) -> tensors to store, by name: usually that one; none if another call gave it."""


def write(
    directory: Path, architecture: Architecture, parts: Collection[dict[str, TensorInfo]], source: Source
) -> None:
    """Writes one shard for each of `parts` (see `names.expected`), one of them in memory at a time.

    `directory` appears only when complete. Raises UserError if it exists.
    """
    if directory.exists():
        raise UserError(f"{directory}: exists already", "name a new directory, or remove this one")
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        _write_into(unfinished, architecture, parts, source)
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def _write_into(
    directory: Path, architecture: Architecture, parts: Collection[dict[str, TensorInfo]], source: Source
) -> None:
    weight_map: dict[str, str] = {}
    total_size = 0
    for number, infos in enumerate(parts, 1):
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = {name: tensor for item in infos.items() for name, tensor in source(*item).items()}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
        total_size += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(directory / INDEX_FILE, index)
    _write_json(directory / CONFIG_FILE, published_config(architecture))


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


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
