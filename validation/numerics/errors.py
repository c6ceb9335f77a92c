"""How far a produced tensor lies from the float64 oracle. Pure functions of tensors."""

import math

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ..records import Frozen

# Rows smaller than this are measured against it: flushing float32 subnormals (below 2^-126) is then an error of at
# most 2^-22, while anything larger in a row that ought to be zero still counts.
TINY = 2.0**-104


class Summary(Frozen):
    """Quantiles of relative errors, by nearest rank. Infinite where a value is not finite and should be."""

    values: int = Field(ge=1)
    median: float
    p999: float
    maximum: float


class Location(Frozen):
    """One element that is far off. JSON has no NaN, so values are shown as text."""

    index: tuple[int, ...]
    row: int | None = Field(description="batch row that owns the element")
    error: float
    expected: str
    got: str
    plain: str


def relative(expected: Tensor, got: Tensor, row_axes: int) -> Tensor:
    """|got - expected| over the root mean square of the expected row, float64, in the shape of `expected`.

    `expected` is float64. The first `row_axes` axes count as rows. Where either side is not finite the error is 0 if
    both are the same infinity or both NaN, else infinity.
    """
    scale = expected.flatten(row_axes).square().mean(-1).sqrt().clamp(min=TINY)
    got = got.double()
    errors = (got - expected).abs_().div_(scale.reshape(*scale.shape, *[1] * (expected.ndim - row_axes)))
    if bool(errors.isfinite().all()):  # nearly always; what follows takes as long again
        return errors
    same = (got == expected) | (got.isnan() & expected.isnan())
    return torch.where(same, 0.0, torch.where(errors.isnan(), math.inf, errors))


def summary(errors: np.ndarray) -> Summary:
    """Median, p99.9 and maximum of a flat array of errors: the smallest value that the fraction does not exceed."""
    ranks = [math.ceil(fraction * errors.size) - 1 for fraction in (0.5, 0.999, 1.0)]
    ordered = np.partition(errors, ranks)
    median, p999, maximum = (float(ordered[rank]) for rank in ranks)
    return Summary(values=errors.size, median=median, p999=p999, maximum=maximum)


def same_bits(left: Tensor, right: Tensor) -> Tensor:
    """Element-wise bit equality of two tensors of one dtype: NaN equals its own bits, and +0 is not -0."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    if left.dtype != right.dtype:
        raise ValueError(f"bits of {left.dtype} and {right.dtype} cannot be compared")
    return left.contiguous().view(integer) == right.contiguous().view(integer)
