"""Weights converted once instead of at every use: same results, for models small enough to hold them."""

from dataclasses import dataclass, fields

from torch import Tensor

from ..layer_weights import ModelWeights, Mxfp4
from ..weights.mxfp4 import dequantise
from .precision import Precision


@dataclass(frozen=True)
class Unpacked(Mxfp4):
    """MXFP4 matrices beside their values."""

    values: Tensor
    """[..., N, K] in the arithmetic type: 16 times (float64) or 8 times (float32) the packed size"""


def unpack(model: ModelWeights, precision: Precision) -> ModelWeights:
    """`model` as a step at `precision` reads it: floating tensors in the arithmetic type, experts with their values."""

    def converted(part):
        if isinstance(part, Tensor):
            return precision.wide(part)
        if isinstance(part, Mxfp4):
            return Unpacked(part.packed, part.scale, dequantise(part.packed, part.scale, precision.arithmetic))
        if isinstance(part, dict):
            return {key: converted(value) for key, value in part.items()}
        return type(part)(**{field.name: converted(getattr(part, field.name)) for field in fields(part)})

    return converted(model)


def values_of(stack: Mxfp4, expert: int, precision: Precision) -> Tensor:
    """One expert's matrix [N, K] in the arithmetic type."""
    if isinstance(stack, Unpacked):
        return stack.values[expert]
    return dequantise(stack.packed[expert], stack.scale[expert], precision.arithmetic)
