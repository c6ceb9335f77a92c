"""Drawing the inputs of an imported definition: one function of definition, workload, distribution and seed."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Generator, Tensor

from ...errors import UserError
from . import expressions
from .judging import Integers, Judging
from .reference_job import TORCH
from .schema import Definition, SafetensorsInput, ScalarInput, Workload

DISTRIBUTIONS: dict[str, str] = {
    "typical": "standard normal values, or those of the workload's files, each scaled by 0.5 to 1.5",
    "offset": "the same with a mean of one: sums of like sign, catches narrow accumulators",
    "wide_range": "rows scaled by powers of two from 2^-8 to 2^8: catches half-precision intermediates",
    "small": "everything a thousand times smaller: catches epsilons left out or moved, and underflow",
}


def draw(
    definition: Definition, judging: Judging, workload: Workload, sizes: Mapping[str, int], root: Path,
    distribution: str, seed: int,
) -> dict[str, Tensor]:  # fmt: skip
    """Every input at the given sizes, dense on the CPU; equal arguments give equal bits. Scalars come as one element.

    Raises UserError for a file that is missing or does not fit, or integers that cannot be drawn.
    """
    random = Generator().manual_seed(seed)
    drawn = {}
    for name, tensor in definition.inputs.items():
        given, dtype = workload.inputs[name], TORCH[tensor.dtype]
        where = f"{definition.name}: workload {workload.uuid}: inputs.{name}"
        if tensor.shape is None:
            if not isinstance(given, ScalarInput):
                raise UserError(f"{where}: a scalar needs a value", 'give {"type": "scalar", "value": ...}')
            factor = 0.75 + 0.5 * float(torch.rand((), generator=random))
            value = float(given.value) * factor if given.value else factor - 1
            drawn[name] = torch.tensor([value], dtype=dtype)
            continue
        shape = tuple(sizes[axis] for axis in tensor.shape)
        if isinstance(given, ScalarInput):
            raise UserError(f"{where}: a number for a tensor", "give random or safetensors")
        if not dtype.is_floating_point:
            drawn[name] = _integers(judging.integers[name], shape, sizes, random, where).to(dtype)
            continue
        if isinstance(given, SafetensorsInput):
            value = stored(root, given, tensor.dtype, shape, where).float()
            value = value * (0.5 + torch.rand(shape, generator=random))
        else:
            value = torch.randn(shape, generator=random)
        drawn[name] = _shaped(value, distribution, random).to(dtype)
    return drawn


def stored(root: Path, given: SafetensorsInput, dtype: str, shape: tuple[int, ...], where: str) -> Tensor:
    """A tensor of a workload's file. Raises UserError where it is missing or of another type or shape."""
    from safetensors import SafetensorError, safe_open

    path = root / given.path
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise UserError(f"{where}: {given.path} leads out of the trace set", "give a file inside it")
        with safe_open(path, "pt") as file:
            tensor = file.get_tensor(given.tensor_key)
    except (OSError, SafetensorError) as error:
        how = "give the trace set's directory as root"
        raise UserError(f"{where}: {given.tensor_key} of {path}: {error}", how) from error
    if tensor.dtype is not TORCH[dtype] or tuple(tensor.shape) != shape:
        raise UserError(f"{where}: {path} holds {tensor.dtype} {list(tensor.shape)}, expected is {dtype} {list(shape)}",
                        "correct the workload or its file")  # fmt: skip
    return tensor


def _shaped(value: Tensor, distribution: str, random: Generator) -> Tensor:
    match distribution:
        case "offset":
            return value + 1
        case "wide_range":
            scale = torch.randint(-8, 9, (len(value), *(1,) * (value.dim() - 1)), generator=random)
            return value * scale.float().exp2()
        case "small":
            return value * 2.0**-10
    return value


def _integers(
    rule: Integers, shape: tuple[int, ...], sizes: Mapping[str, int], random: Generator, where: str
) -> Tensor:
    low = expressions.count(rule.low, sizes, f"{where}: low")
    high = expressions.count(rule.high, sizes, f"{where}: high")
    total = math.prod(shape)
    if high <= low or (rule.distinct and high - low < total):
        what = f"{total} integers from {low} to below {high} cannot be drawn"
        raise UserError(f"{where}: {what}", "correct the side file")
    if rule.distinct:
        return (torch.randperm(high - low, generator=random)[:total] + low).reshape(shape)
    return torch.randint(low, high, shape, generator=random)
