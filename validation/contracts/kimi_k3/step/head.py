"""The end of a step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .precision import Precision


def logits(normed: Tensor, lm_heads: Sequence[Tensor], precision: Precision) -> Tensor:
    """[rows, vocabulary] from the finally normed rows [rows, d] and each rank's [local vocabulary, d]."""
    return torch.cat([precision.linear(normed, lm_head) for lm_head in lm_heads], -1)
