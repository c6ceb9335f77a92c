"""The sizes of a Kimi K3: those of the published model, and how to read them from an engine's configuration."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of the whole model. Layers count from zero; all that are not KDA are MLA."""

    hidden: int
    layers: int
    vocabulary: int
    dense_intermediate: int
    block_size: int
    """Layers of one block of attention residuals: its first layer banks the stream"""
    kda_layers: tuple[int, ...]
    kda_heads: int
    kda_head_dim: int
    conv_width: int
    mla_heads: int
    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    experts: int
    top_k: int
    latent: int
    expert_intermediate: int
    shared_experts: int
    first_moe: int

    @property
    def latent_row(self) -> int:
        """Width of a cached latent row, and of an absorbed query."""
        return self.kv_rank + self.rope_dim

    @property
    def banks(self) -> int:
        """Streams that a whole step banks."""
        return -(-self.layers // self.block_size)

    def begins(self, layer: int) -> bool:
        """Whether `layer` banks the stream that it reads."""
        return layer % self.block_size == 0

    def differences(self, other: "Shape") -> tuple[str, ...]:
        """"name: own value, the other's" for each size that differs."""
        theirs = asdict(other)
        return tuple(f"{name}: {own}, not {theirs[name]}" for name, own in asdict(self).items() if own != theirs[name])

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape":
        """From a checkpoint's `text_config`, whose lists of layers count from one. KeyError for a missing key."""
        linear = config["linear_attn_config"]
        return cls(
            hidden=config["hidden_size"], layers=config["num_hidden_layers"], vocabulary=config["vocab_size"],
            dense_intermediate=config["intermediate_size"], block_size=config["attn_res_block_size"],
            kda_layers=tuple(sorted(layer - 1 for layer in linear["kda_layers"])), kda_heads=linear["num_heads"],
            kda_head_dim=linear["head_dim"], conv_width=linear["short_conv_kernel_size"],
            mla_heads=config["num_attention_heads"], q_rank=config["q_lora_rank"], kv_rank=config["kv_lora_rank"],
            nope_dim=config["qk_nope_head_dim"], rope_dim=config["qk_rope_head_dim"], v_dim=config["v_head_dim"],
            experts=config["num_experts"], top_k=config["num_experts_per_token"],
            latent=config["routed_expert_hidden_size"], expert_intermediate=config["moe_intermediate_size"],
            shared_experts=config["num_shared_experts"], first_moe=config["first_k_dense_replace"],
        )  # fmt: skip


PUBLISHED = Shape(
    hidden=7168, layers=93, vocabulary=163840, dense_intermediate=33792, block_size=12,
    kda_layers=tuple(layer for layer in range(93) if layer % 4 != 3 and layer != 92), kda_heads=96, kda_head_dim=128,
    conv_width=4, mla_heads=96, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128, experts=896, top_k=16,
    latent=3584, expert_intermediate=3072, shared_experts=2, first_moe=1,
)  # fmt: skip
"""What the kernels' constants are: anything else runs on the stock path."""
