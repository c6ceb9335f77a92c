"""The values of MXFP4 matrices, from the OCP Microscaling formats specification (E2M1 elements, E8M0 scales)."""

import math

import torch
from torch import Tensor

from ....errors import UserError
from ..layer_weights import Mxfp4

GROUP = 32
"""Elements along K that share a scale."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_ELEMENTS = torch.tensor(_E2M1 + tuple(-x for x in _E2M1), dtype=torch.float64)
_PAIRS = torch.stack([_ELEMENTS.repeat(16), _ELEMENTS.repeat_interleave(16)], -1)
"""The two elements of each byte, the low nibble's first"""
_SCALES = torch.tensor([2.0 ** (e - 127) for e in range(255)] + [math.nan], dtype=torch.float64)


def dequantise(matrix: Mxfp4, dtype: torch.dtype) -> Tensor:
    """[..., N, K] in `dtype`: element times 2^(e - 127), low nibble first; scale byte 255 is NaN.

    Exact in float64, and in float32 for magnitudes below 2^128. Raises UserError for scales of another group size.
    """
    columns = 2 * matrix.packed.shape[-1]
    if matrix.scale.shape != (*matrix.packed.shape[:-1], columns // GROUP) or columns % GROUP:
        raise UserError(
            f"MXFP4 elements {list(matrix.packed.shape)} do not go with scales {list(matrix.scale.shape)}",
            f"give one scale byte for each {GROUP} elements ({GROUP // 2} bytes) of a row",
        )
    device = matrix.packed.device
    pairs, scales = _PAIRS.to(device, dtype), _SCALES.to(device, dtype)
    elements = pairs.index_select(0, matrix.packed.flatten().int()).view(*matrix.scale.shape, GROUP)
    return elements.mul_(scales[matrix.scale.int()][..., None]).flatten(-2)
