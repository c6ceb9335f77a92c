"""What a checkpoint's `config.json` says of its quantised weights: refused unless it is the published MXFP4.

Other four-bit formats have tensors of the same names, shapes and types, so nothing but this tells them apart.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, model_validator

from .... import strict
from ..architecture import only
from .mxfp4 import GROUP

FORMAT = "mxfp4-pack-quantized"


class _Published(BaseModel):
    """Keys that say nothing about how weights are stored (targets, observers, status) are not ours to judge."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Weights(_Published):
    num_bits: Annotated[StrictInt, AfterValidator(only(4))]
    type: Literal["float"]
    group_size: Annotated[StrictInt, AfterValidator(only(GROUP))]
    strategy: Literal["group"] = "group"
    symmetric: Literal[True] = True
    scale_dtype: Literal["torch.uint8", "uint8"] | None = None


class _Group(_Published):
    weights: _Weights
    input_activations: None = None
    output_activations: None = None
    format: Literal["mxfp4-pack-quantized"] | None = None


class _Quantisation(_Published):
    quant_method: Literal["compressed-tensors"]
    format: Literal["mxfp4-pack-quantized"] | None = None
    config_groups: dict[str, _Group] = Field(min_length=1)
    kv_cache_scheme: None = None

    @model_validator(mode="after")
    def _says_its_format(self) -> "_Quantisation":
        if self.format is None and not all(group.format for group in self.config_groups.values()):
            raise ValueError(f"format must be {FORMAT}, here or in every group")
        return self


class _Text(_Published):
    quantization_config: _Quantisation | None = None


class _Config(_Published):
    """Both places are in use: the text part of the published file, and its top level where tools rewrote it."""

    text_config: _Text
    quantization_config: _Quantisation | None = None

    @model_validator(mode="after")
    def _is_there(self) -> "_Config":
        if self.quantization_config is None and self.text_config.quantization_config is None:
            raise ValueError(f"quantization_config is missing: experts are read as {FORMAT}, which it must say")
        return self


def check(config: Path) -> None:
    """Raises UserError "file:line: key: what" unless `config` says compressed-tensors MXFP4 with groups of 32."""
    strict.read(config, _Config)


def published() -> dict:
    """The content of `quantization_config` in a published configuration, as far as `check` reads it."""
    weights = {"num_bits": 4, "type": "float", "group_size": GROUP, "strategy": "group", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "format": FORMAT, "input_activations": None, "output_activations": None, "targets": ["Linear"],
                "weights": {**weights, "scale_dtype": "torch.uint8"},
            }
        },
    }  # fmt: skip
