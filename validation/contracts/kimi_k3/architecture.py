"""Constants of the Kimi K3 text backbone, read strictly from a published `config.json`."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, StrictBool, StrictInt, field_validator,
)  # fmt: skip

from ... import strict
from ...errors import UserError
from ...records import Frozen

CONFIG = Path(__file__).parent / "config.json"

# The same architecture at tiny widths, every mechanism alive: 13 layers in three AttnRes blocks, KDA and MLA layers
# with the last two both MLA, a dense first layer, latent MoE; every sharded size divides by 16.
NANO = Path(__file__).parent / "nano.json"

# The fused in-projection is padded to this many rows, so that a row of its output keeps 32-byte slices.
PROJECTION_ALIGNMENT = 16



def only(constant: bool | int) -> Callable[[bool | int], bool | int]:
    """Validates that a value is `constant`."""

    def check(value: bool | int) -> bool | int:
        if value != constant:
            raise ValueError(f"Input should be {constant}")
        return value

    return check


# A Literal compares by value, for which 1 is True: the type is held first.
_True = Annotated[StrictBool, AfterValidator(only(True))]
_False = Annotated[StrictBool, AfterValidator(only(False))]
_One = Annotated[StrictInt, AfterValidator(only(1))]


class _Published(BaseModel):
    """A part of a published configuration: other keys (vision, tokens, loader hints) are not ours to judge."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class LinearAttention(_Published):
    """`linear_attn_config`. Layer numbers are published counting from one."""

    num_heads: PositiveInt
    head_dim: PositiveInt
    short_conv_kernel_size: PositiveInt
    gate_lower_bound: float = Field(lt=0, ge=-5)
    use_full_rank_gate: _True
    kda_layers: tuple[PositiveInt, ...]
    full_attn_layers: tuple[PositiveInt, ...]


class TextConfig(_Published):
    """`text_config`, with the field names of the Kimi Linear and DeepSeek family."""

    model_type: Literal["kimi_linear"]
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt
    tie_word_embeddings: _False
    rms_norm_eps: PositiveFloat
    hidden_act: Literal["situ"]
    activation_situ_beta: PositiveFloat
    activation_situ_linear_beta: PositiveFloat
    attn_res_block_size: PositiveInt
    linear_attn_config: LinearAttention
    q_lora_rank: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    mla_use_nope: _True
    mla_use_output_gate: _True
    first_k_dense_replace: int = Field(ge=0)
    moe_layer_freq: _One
    num_experts: int = Field(gt=0, le=1 << 16)
    num_experts_per_token: PositiveInt
    num_shared_experts: PositiveInt
    num_expert_group: _One
    topk_group: _One
    moe_intermediate_size: PositiveInt
    routed_expert_hidden_size: PositiveInt
    latent_moe_use_norm: _True
    moe_router_activation_func: Literal["sigmoid"]
    moe_renormalize: _True
    routed_scaling_factor: PositiveFloat

    @field_validator("linear_attn_config")
    @classmethod
    def _layers(cls, linear: LinearAttention, info) -> LinearAttention:
        layers = info.data.get("num_hidden_layers")
        listed = sorted(linear.kda_layers + linear.full_attn_layers)
        if layers is not None and (len(listed) != layers or listed != list(range(1, layers + 1))):
            raise ValueError(f"kda_layers and full_attn_layers must hold each of 1 to {layers} exactly once")
        return linear

    @field_validator("num_key_value_heads")
    @classmethod
    def _one_latent_for_every_head(cls, heads: int, info) -> int:
        if heads != info.data.get("num_attention_heads", heads):
            raise ValueError(f"must be num_attention_heads = {info.data['num_attention_heads']}: no heads are grouped")
        return heads

    @field_validator("num_experts_per_token")
    @classmethod
    def _top_k(cls, top_k: int, info) -> int:
        if top_k > info.data.get("num_experts", top_k):
            raise ValueError(f"at most num_experts = {info.data['num_experts']} experts can be chosen")
        return top_k


class PublishedConfig(_Published):
    """A `config.json` of a Kimi K3 checkpoint. SiTU constants count only inside `text_config`."""

    model_type: Literal["kimi_k3"]
    text_config: TextConfig


class NormEps(Frozen):
    """Epsilon of each norm. Those that `config.json` does not publish carry the modelling code's defaults."""

    backbone: PositiveFloat = Field(description="input, post-attention, AttnRes, routed-expert and final RMSNorm")
    kda_output: PositiveFloat = Field(default=1e-5, description="per-head gated RMSNorm of KDA")
    kda_l2: PositiveFloat = Field(default=1e-6, description="added to the sum of squares of q and k, inside the root")
    mla_q_a: PositiveFloat = Field(default=1e-6, description="RMSNorm of the query latent; some engines use 1e-5")
    mla_kv_a: PositiveFloat = Field(default=1e-6, description="RMSNorm of the KV latent; some engines use 1e-5")


class Kda(Frozen):
    """Kimi Delta Attention, whole model. q, k, v and the output gate all have `heads * head_dim` channels."""

    heads: int
    head_dim: int
    conv_width: int
    gate_rank: int = Field(description="rank of the decay gate's two factors; the head dimension")
    gate_lower_bound: float = Field(description="the log decay lies in (gate_lower_bound, 0)")


class Mla(Frozen):
    """Multi-head latent attention without positional encoding, whole model."""

    heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int = Field(description="present in the weights, never rotated")
    v_head_dim: int


class Moe(Frozen):
    """Latent mixture of experts."""

    experts: int
    top_k: int
    shared_experts: int
    latent_size: int
    expert_intermediate_size: int
    routed_scaling_factor: float
    first_layer: int


class Situ(Frozen):
    """SiTU(g, u) = beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta)."""

    beta: float
    linear_beta: float


class KdaShard(Frozen):
    """One rank's share of a KDA layer under tensor parallelism: contiguous heads."""

    tp: int
    heads: int
    head_dim: int
    conv_width: int
    gate_rank: int

    @cached_property
    def channels(self) -> int:
        """Channels of each of q, k, v and g on this rank."""
        return self.heads * self.head_dim

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Columns of a projected row: q | k | v | g | f_a (replicated on every rank) | beta | pad."""
        sizes = dict.fromkeys("qkvg", self.channels) | {"f_a": self.gate_rank, "beta": self.heads}
        columns, start = {}, 0
        for name, size in sizes.items():
            columns[name] = slice(start, start + size)
            start += size
        return columns | {"pad": slice(start, -(-start // PROJECTION_ALIGNMENT) * PROJECTION_ALIGNMENT)}

    @cached_property
    def projection_rows(self) -> int:
        """Rows of the fused in-projection weight, padding included: the width of a projected row."""
        return self.columns["pad"].stop


class Architecture(Frozen):
    """Everything about the text backbone that a contract may depend on. Layers count from zero."""

    hidden_size: int
    layers: int
    vocab_size: int
    max_positions: int
    dense_intermediate_size: int
    attn_res_block_size: int
    kda_layers: tuple[int, ...]
    mla_layers: tuple[int, ...]
    kda: Kda
    mla: Mla
    moe: Moe
    situ: Situ
    eps: NormEps

    @classmethod
    def from_config(cls, path: Path = CONFIG) -> Self:
        """Reads a published `config.json`. Raises UserError "file:line: key: what" for whatever does not fit."""
        text = strict.read(path, PublishedConfig).text_config
        linear = text.linear_attn_config
        return cls(
            hidden_size=text.hidden_size,
            layers=text.num_hidden_layers,
            vocab_size=text.vocab_size,
            max_positions=text.max_position_embeddings,
            dense_intermediate_size=text.intermediate_size,
            attn_res_block_size=text.attn_res_block_size,
            kda_layers=tuple(sorted(layer - 1 for layer in linear.kda_layers)),
            mla_layers=tuple(sorted(layer - 1 for layer in linear.full_attn_layers)),
            kda=Kda(
                heads=linear.num_heads,
                head_dim=linear.head_dim,
                conv_width=linear.short_conv_kernel_size,
                gate_rank=linear.head_dim,
                gate_lower_bound=linear.gate_lower_bound,
            ),
            mla=Mla(
                heads=text.num_attention_heads,
                q_lora_rank=text.q_lora_rank,
                kv_lora_rank=text.kv_lora_rank,
                qk_nope_head_dim=text.qk_nope_head_dim,
                qk_rope_head_dim=text.qk_rope_head_dim,
                v_head_dim=text.v_head_dim,
            ),
            moe=Moe(
                experts=text.num_experts,
                top_k=text.num_experts_per_token,
                shared_experts=text.num_shared_experts,
                latent_size=text.routed_expert_hidden_size,
                expert_intermediate_size=text.moe_intermediate_size,
                routed_scaling_factor=text.routed_scaling_factor,
                first_layer=text.first_k_dense_replace,
            ),
            situ=Situ(beta=text.activation_situ_beta, linear_beta=text.activation_situ_linear_beta),
            eps=NormEps(backbone=text.rms_norm_eps),
        )

    def kda_shard(self, tp: int) -> KdaShard:
        """One rank's share of a KDA layer at tensor parallelism `tp`, which must divide the heads (UserError)."""
        if tp < 1 or self.kda.heads % tp:
            divisors = [n for n in range(1, self.kda.heads + 1) if self.kda.heads % n == 0]
            raise UserError(f"{self.kda.heads} KDA heads cannot be split over TP {tp}", f"use one of {divisors}")
        return KdaShard(
            tp=tp,
            heads=self.kda.heads // tp,
            head_dim=self.kda.head_dim,
            conv_width=self.kda.conv_width,
            gate_rank=self.kda.gate_rank,
        )
