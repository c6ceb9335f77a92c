"""RMSNorm of the backbone and of the low-rank latents."""

from torch import Tensor

from .precision import Precision


def rms_norm(x: Tensor, weight: Tensor, eps: float, precision: Precision) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `x` in the arithmetic type, `weight` [K]."""
    normalised = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    return precision.round(precision.round(normalised, where=precision.round_normalised) * precision.wide(weight))
