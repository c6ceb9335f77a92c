"""Runs one kernel over a grid, on addresses, in a chosen program order."""

import random
from collections.abc import Iterator, Mapping

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, TensorHandle

from . import accesses
from .memory import Memory


def program_order(grid: tuple[int, int, int], order: str) -> Iterator[tuple[int, int, int]]:
    """Program ids of `grid`: "ascending" (x fastest, as hardware starts them), "descending" or "shuffled:<seed>".

    Raises ValueError for another order.
    """
    nx, ny, nz = grid
    count = nx * ny * nz
    name, _, seed = order.partition(":")
    if order == "ascending":
        indices = range(count)
    elif order == "descending":
        indices = range(count - 1, -1, -1)
    elif name == "shuffled" and seed:
        indices = list(range(count))
        random.Random(seed).shuffle(indices)
        if indices == list(range(count)):
            indices.reverse()  # few programs: the order asked for would be the one that it is compared with
    else:
        raise ValueError(f"program order {order!r} is not ascending, descending or shuffled:<seed>")
    for index in indices:
        yield index % nx, index // nx % ny, index // (nx * ny)


def pointer(address: int, element: str) -> tl.tensor:
    """A pointer argument: `address` in this process, to elements of the Triton type named `element`."""
    dtype = tl.pointer_type(tl.str_to_ty(element, None))
    return tl.tensor(TensorHandle(np.array([address], np.uint64), dtype), dtype)


def scalar(value: bool | int | float, type_name: str) -> tl.tensor:
    """A run-time scalar of the Triton type named `type_name`. Raises OverflowError when an integer does not fit."""
    dtype = tl.int1 if type_name in ("i1", "u1") else tl.str_to_ty(type_name, None)
    if dtype.is_bf16():
        return tl.tensor(interpreter.interpreter_builder.get_bf16(value), dtype)
    stored = interpreter._get_np_dtype(dtype)
    if stored.kind in "iu" and not np.iinfo(stored).min <= value <= np.iinfo(stored).max:
        raise OverflowError(f"{value} does not fit {type_name}")
    return tl.tensor(TensorHandle(np.array([value], stored), dtype), dtype)


def run_programs(
    kernel: InterpretedFunction,
    arguments: Mapping[str, object],
    grid: tuple[int, int, int],
    order: str,
    allowed: Memory,
    launch: int,
) -> Iterator[tuple[int, int, int]]:
    """Runs every program of `grid`, yielding its id after each. `launch` is the launch's number in the plan.

    `arguments` maps every parameter to a tensor (`pointer`, `scalar`) or a constant. Raises MemoryViolation at the
    first access that `allowed` refuses, NotInterpretable, or whatever the kernel itself raises.
    """
    function = kernel.rewrite()
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(*grid)
    accesses.enter(allowed)
    try:
        with np.errstate(all="ignore"):
            for index in program_order(grid, order):
                builder.set_grid_idx(*index)
                accesses.begin_program(launch, index)
                function(**arguments)
                yield index
    finally:
        accesses.leave()
