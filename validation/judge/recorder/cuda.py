"""CUDA C++ kernels as `launch` sees them: bound by name, launched like Triton's, never compiled here.

What a value becomes is decided by its Python type, as Triton does it: a tensor is a pointer to its element type, a bool
is u1, an int is i32, a float is fp32. Everything else is said: `ctx.scalar("i64", n)`. The compiler holds these types
against the kernel's own parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .refusal import Refused

SCALARS = frozenset(("u1", "fp32", "fp64", *(f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64))))


@dataclass(frozen=True)
class Scalar:
    """A scalar argument with its type said: i8 to i64, u8 to u64, u1, fp32, fp64."""

    type: str
    value: bool | int | float


@dataclass(frozen=True)
class TensorMap:
    """A tensor map over `tensor` (its shape and strides), for TMA."""

    tensor: torch.Tensor
    block_shape: tuple[int, ...]
    swizzle: int
    padding: str
    round_to_tf32: bool


@dataclass(frozen=True)
class CudaLaunch:
    """One `kernel[grid](...)` of a CUDA kernel."""

    file: str
    function: str
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: tuple[int, int, int]
    arguments: tuple[Any, ...]
    shared_bytes: int


@dataclass(frozen=True)
class CudaKernel:
    """`kernel[grid](arguments in order, shared_bytes=0)`; the grid counts blocks."""

    file: str
    function: str
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    on_launch: Callable[[CudaLaunch], None]

    def __getitem__(self, grid: Sequence[int] | int) -> Callable[..., None]:
        sizes = tuple(grid) if isinstance(grid, Sequence) else (grid,)
        if not 1 <= len(sizes) <= 3 or not all(type(size) is int for size in sizes):
            raise Refused("record.grid", f"grid of {self.function!r}: {sizes!r} is not one to three integers")
        x, y, z = (*sizes, 1, 1)[:3]

        def launch(*arguments: Any, shared_bytes: int = 0) -> None:
            self.on_launch(
                CudaLaunch(self.file, self.function, self.constants, self.options, (x, y, z), arguments, shared_bytes)
            )

        return launch
