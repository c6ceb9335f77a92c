"""Synthetic checkpoints in the published form: names, types, shards, index and configuration.

Every tensor is drawn from a generator seeded with (seed, name), so a layer has the same weights whichever others are
written beside it. Weights are scaled by their fan-in, so that a normalised input leaves every projection with entries
of order one and the residual stream grows only with the number of sources that it sums.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import torch
from torch import Generator, Tensor

from ....errors import UserError
from ..architecture import Architecture
from . import mxfp4, names, writer
from .checkpoint import TORCH_DTYPES
from .names import ALog, TensorInfo, expected

_PACKED, _SCALE = ".weight_packed", ".weight_scale"


def write(
    directory: Path,
    architecture: Architecture,
    *,
    seed: int = 0,
    layers: Collection[int] | None = None,
    ends: bool = True,
    ties: bool = False,
    a_log: ALog = ALog.VECTOR,
) -> None:
    """Writes a checkpoint of these layers (None: all; counted from zero) into `directory`, which must not exist.

    One shard a layer and one for the ends; one layer at a time is in memory; `directory` appears only when complete.
    Experts are used unevenly, each of them sometimes. With `ties`, experts 2n and 2n + 1 always score the same. An
    `A_log` vector gets a tail of zeros. Raises UserError if `directory` exists, or for a layer that there is not.
    """
    chosen = range(architecture.layers) if layers is None else sorted(set(layers))
    if odd := [layer for layer in chosen if not 0 <= layer < architecture.layers]:
        raise UserError(f"there is no layer {odd[0]}", f"layers count from 0 to {architecture.layers - 1}")
    parts = [expected(architecture, [layer], ends=False, a_log=a_log) for layer in chosen]
    if ends:
        parts.append(expected(architecture, [], a_log=a_log))
    writer.write(directory, architecture, parts, lambda name, info: _draw(name, info, seed, ties))


def _draw(name: str, info: TensorInfo, seed: int, ties: bool) -> dict[str, Tensor]:
    """The tensor `name`; for packed elements their scales too, and for scales nothing."""
    if name.endswith(_SCALE):
        return {}
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    random = Generator().manual_seed(int.from_bytes(digest, "little", signed=True))
    if name.endswith(_PACKED):
        rows, k = info.shape[0], 2 * info.shape[1]
        packed, scale = mxfp4.quantise(_by_fan_in((rows, k), random))
        return {name: packed, name.removesuffix(_PACKED) + _SCALE: scale}
    draw = next(draw for suffixes, draw in _RULES if name.endswith(suffixes))
    values = draw(info.shape, random)
    if ties and name.endswith(_ROUTING):
        pairs = len(values) // 2 * 2
        values[1:pairs:2] = values[0:pairs:2]
    if info.zero_tail:
        # As published: 96 heads in a buffer of 128.
        values = torch.cat([values, values.new_zeros((1 << len(values).bit_length()) - len(values))])
    return {name: values.to(TORCH_DTYPES[info.dtype])}


_Shape = tuple[int, ...]


def _by_fan_in(shape: _Shape, random: Generator) -> Tensor:
    return torch.randn(shape, generator=random).mul_(shape[-1] ** -0.5)


def _normal(mean: float, deviation: float) -> Callable[[_Shape, Generator], Tensor]:
    return lambda shape, random: torch.randn(shape, generator=random).mul_(deviation).add_(mean)


def _uniform(low: float, high: float) -> Callable[[_Shape, Generator], Tensor]:
    return lambda shape, random: torch.rand(shape, generator=random).mul_(high - low).add_(low)


def _log_uniform(low: float, high: float) -> Callable[[_Shape, Generator], Tensor]:
    return lambda shape, random: _uniform(low, high)(shape, random).log_()


_ROUTING = (".gate.weight", ".gate.e_score_correction_bias")

# The first rule with a matching suffix draws a tensor.
_RULES: Iterable[tuple[tuple[str, ...], Callable[[_Shape, Generator], Tensor]]] = (
    (("norm.weight",), _normal(1, 0.1)),
    (("_conv1d.weight",), _normal(0, 0.5)),
    # Decays exp(-5 sigmoid(exp(A_log) (f + dt_bias))): slow heads forget over hundreds of tokens, fast ones at once.
    (("A_log",), _log_uniform(1, 16)),
    (("dt_bias",), _uniform(-4, 0)),
    # Scores spread by about 0.2 over tokens; this much bias makes some experts several times as popular as others.
    (("e_score_correction_bias",), _normal(0, 0.1)),
    ((names.EMBEDDING,), _normal(0, 1)),
    ((".weight",), _by_fan_in),
)
