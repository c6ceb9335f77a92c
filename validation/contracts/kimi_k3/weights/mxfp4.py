"""MXFP4 (OCP Microscaling Formats 1.0): E2M1 elements that share one E8M0 scale for each 32 along the last axis.

A byte holds two elements, the even one in its low nibble. A nibble is sign | exponent 2 | mantissa 1 and stands for
+-{0, 0.5, 1, 1.5, 2, 3, 4, 6}. A scale byte s stands for 2^(s - 127); 255 stands for NaN.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from ....errors import UserError

GROUP = 32
NEUTRAL_SCALE = 127
"""The scale byte of 1: what padding and all-zero groups carry."""
NAN_SCALE = 255

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_ELEMENTS = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], dtype=torch.float64)
_SCALES = torch.tensor([*(2.0 ** (byte - 127) for byte in range(255)), math.nan], dtype=torch.float64)
_BYTES = torch.stack([torch.arange(256) & 15, torch.arange(256) >> 4], dim=1)

# Exponent of the largest element, 6 = 1.5 * 2^2.
_ELEMENT_EMAX = 2

# Midpoints between neighbouring magnitudes. A tie goes to the neighbour with an even mantissa, that is an even code:
# down at the first, third, ... midpoint and up at the others.
_TIES_DOWN = (0.25, 1.25, 2.5, 5.0)
_TIES_UP = (0.75, 1.75, 3.5)


def pack(codes: Tensor) -> Tensor:
    """Element codes [..., K] uint8 below 16, K even, as bytes [..., K / 2] uint8."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: Tensor) -> Tensor:
    """Bytes [..., K / 2] uint8 as element codes [..., K] uint8."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def dequantise(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Bytes [..., K / 2] and scales [..., K / 32], both uint8, as values [..., K] in `dtype`.

    Exact in float64. Exact in float32 and bfloat16 (subnormals included) up to their largest powers of two: where
    element times scale reaches 2^128, possible from scale byte 253 on, the result is infinite with the element's sign.
    All 32 elements under scale 255 are NaN, zeros included. Negative zero keeps its sign. Raises UserError for scales
    of another group size.
    """
    if packed.shape[:-1] != scale.shape[:-1] or 2 * packed.shape[-1] != GROUP * scale.shape[-1]:
        raise UserError(
            f"MXFP4 bytes {list(packed.shape)} do not go with scales {list(scale.shape)}",
            f"give one scale for {GROUP} elements, that is {GROUP // 2} bytes",
        )
    # A byte's two values are gathered as one complex number: on a CPU several times faster than an index of many axes.
    pairs, scales = _tables(packed.device, dtype)
    values = torch.view_as_real(pairs.index_select(0, packed.flatten().int())).reshape(*scale.shape, GROUP).to(dtype)
    return values.mul_(scales[scale.int()][..., None]).flatten(-2)


@lru_cache(None)
def _tables(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What each byte of elements stands for, complex [256], and each of scales [256]; on a GPU a copy that its stream waits for once."""
    pairs = torch.view_as_complex(_ELEMENTS[_BYTES].to(dtype if dtype.itemsize > 2 else torch.float32))
    return pairs.to(device), _SCALES.to(device, dtype)


def quantise(values: Tensor) -> tuple[Tensor, Tensor]:
    """Finite float values [..., K], K a multiple of 32, as bytes [..., K / 2] and scales [..., K / 32], both uint8.

    The rule of the OCP specification (section 6.3): the shared exponent is floor(log2 max|v|) - 2, held to -127..127;
    v / 2^exponent is rounded to the nearest E2M1 value, ties to an even mantissa, and saturates at +-6. A zero keeps
    its sign, and an all-zero group gets scale 1. Values that were dequantised come back unchanged.
    Raises UserError for NaN, an infinity, or a K that is no multiple of 32.
    """
    if values.shape[-1] % GROUP:
        raise UserError(
            f"{values.shape[-1]} elements are no whole number of MXFP4 groups", f"use a multiple of {GROUP}"
        )
    groups = values.unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1)
    if not largest.isfinite().all():
        raise UserError("NaN and infinities have no MXFP4 form", "quantise finite values")
    exponent = torch.frexp(largest).exponent - 1 - _ELEMENT_EMAX
    exponent = torch.where(largest == 0, 0, exponent.clamp(-127, 127))
    # Multiplying by the opposite scale is exact, save for results far below the first midpoint.
    magnitudes = groups.abs() * _SCALES.to(values.device, values.dtype)[127 - exponent][..., None]
    codes = torch.zeros_like(groups, dtype=torch.uint8)
    for midpoint in _TIES_DOWN:
        codes += magnitudes > midpoint
    for midpoint in _TIES_UP:
        codes += magnitudes >= midpoint
    codes |= groups.signbit().to(torch.uint8) << 3
    return pack(codes.flatten(-2)), (exponent + 127).to(torch.uint8)
