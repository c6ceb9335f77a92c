"""Drawing inputs of an op by distribution, and naming its known mistakes."""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ..base import Workload

Inputs = dict[str, Tensor]
Draw = Callable[..., Inputs]
"""(contract, workload, random) -> tensors"""
Shaper = Callable[..., None]
"""(inputs, contract, workload, random): makes another distribution of typical inputs, in place"""


class Distributions:
    """The distributions of one op: typical weights and inputs, and what reshapes them."""

    def __init__(self, weights: Draw, inputs: Draw, typical: str) -> None:
        self._weights = weights
        self._inputs = inputs
        self.lines: dict[str, str] = {"typical": typical}
        self._shapers: dict[str, Shaper] = {}

    def __call__(self, line: str) -> Callable[[Shaper], Shaper]:
        """Registers a shaper under its own name; `line` says what the values look like and what they catch."""

        def register(shaper: Shaper) -> Shaper:
            name = shaper.__name__
            self.lines[name], self._shapers[name] = line, shaper
            return shaper

        return register

    def draw(self, contract, workload: Workload, distribution: str, seed: int) -> Inputs:
        """Static tensors, inputs and initial state, contiguous on the CPU; equal arguments, equal bits."""
        random = Generator().manual_seed(seed)
        drawn = self._weights(contract, workload, random) | self._inputs(contract, workload, random)
        if distribution != "typical":
            self._shapers[distribution](drawn, contract, workload, random)
        return drawn

    def typical_inputs(self, contract, workload: Workload, seed: int) -> Inputs:
        """Inputs alone, without weights."""
        return self._inputs(contract, workload, Generator().manual_seed(seed))


class Mistakes(dict):
    """What a person would say is wrong -> the variant of the oracle that is wrong in this way."""

    def __call__(self, description: str) -> Callable[[type], type]:
        """Registers a subclass of the oracle."""

        def register(variant: type) -> type:
            self[description] = variant
            return variant

        return register


def normal(random: Generator, *shape: int) -> Tensor:
    """Standard normal, float32."""
    return torch.randn(shape, generator=random)


def uniform(random: Generator, low: float, high: float, *shape: int) -> Tensor:
    """Uniform, float32."""
    return low + (high - low) * torch.rand(shape, generator=random)


def matrix(random: Generator, *shape: int) -> Tensor:
    """A weight [..., N, K] bf16 of variance 1 / K, so that it keeps the scale of what it multiplies."""
    return torch.randn(shape, generator=random).mul_(shape[-1] ** -0.5).bfloat16()


def around_one(random: Generator, *shape: int) -> Tensor:
    """A norm's weight, bf16."""
    return uniform(random, 0.5, 1.5, *shape).bfloat16()


def integers(random: Generator, limit: int, *shape: int) -> Tensor:
    """Integers from -limit to limit, bf16: sums of their products are exact in float32 up to 2^24."""
    return torch.randint(-limit, limit + 1, shape, generator=random).bfloat16()


def scales(random: Generator, octaves: int, *shape: int) -> Tensor:
    """Powers of two from 2^-octaves to 2^octaves, bf16."""
    return torch.randint(-octaves, octaves + 1, shape, generator=random).float().exp2().bfloat16()


def every_other(rows: int, random: Generator) -> Tensor:
    """Padded rows: every other one from a random one on; none where a batch has one row.

    A batch of nothing but padding would be the same for every seed, which the judge takes for an input seen before.
    """
    first = int(torch.randint(2, (), generator=random))
    return torch.arange(first, rows, 2) if rows > 1 else torch.arange(0)


def truncated(x: Tensor) -> Tensor:
    """float64 values cut to bfloat16, towards zero."""
    return (x.float().view(torch.int32) & -65536).view(torch.float32).double()


def bf16(x: Tensor) -> Tensor:
    """float64 values rounded to bfloat16."""
    return x.bfloat16().double()


def fp8(x: Tensor) -> Tensor:
    """Rows rounded to E4M3 under one scale a row, as float64."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
    return (x / scale).float().to(torch.float8_e4m3fn).double() * scale


def split_sum(x: Tensor, weight: Tensor, parts: int = 8) -> Tensor:
    """x W^T with the partial sums of `parts` slices of K rounded to bfloat16 before they are added."""
    slices = zip(x.chunk(parts, -1), weight.chunk(parts, -1), strict=True)
    return sum(bf16(a @ b.mT) for a, b in slices)


def read_densely(tensor: Tensor, stride: int) -> Tensor:
    """What a kernel reads that takes rows (or pages) `stride` apart for dense ones; gaps read as NaN."""
    size, page = len(tensor), tensor[0].numel()
    storage = torch.full((size * max(stride, page),), math.nan, dtype=tensor.dtype)
    storage.as_strided((size, page), (stride, 1)).copy_(tensor.reshape(size, page))
    return storage[: tensor.numel()].view(tensor.shape).clone()
