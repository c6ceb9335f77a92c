"""Drawing inputs of an op by distribution, and naming its known mistakes, for the contracts of any model.

The code lies in `kimi_k3/drawing.py`, for the reason that `rank_op.py` gives. Imports torch.
"""

from .kimi_k3.drawing import (
    Distributions, Inputs, Mistakes, around_one, bf16, every_other, fp8, integers, matrix, normal, read_densely, scales,
    split_sum, truncated, uniform,
)  # fmt: skip

__all__ = [
    "Distributions", "Inputs", "Mistakes", "around_one", "bf16", "every_other", "fp8", "integers", "matrix", "normal",
    "read_densely", "scales", "split_sum", "truncated", "uniform",
]  # fmt: skip
