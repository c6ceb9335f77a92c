"""Reading a published checkpoint: `config.json`, `model.safetensors.index.json` and the shards that it names.

Everything is checked when the checkpoint is opened, before the first tensor is used: names, files, shapes, types. The
shards are memory-mapped and only the part that is asked for is read, so nothing is held beyond what the caller keeps.
"""

from collections import defaultdict
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, StringConstraints
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .... import strict
from ....errors import UserError
from ..architecture import Architecture
from .mxfp4 import NAN_SCALE
from . import quantisation
from .names import SKIPPED, ALog, DType, TensorInfo, expected

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
TORCH_DTYPES = {DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.U8: torch.uint8}

Index = tuple[slice | int, ...]

# A shard lies beside its index: no directory part.
_ShardName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*\.safetensors$")]


class _IndexFile(BaseModel):
    """`model.safetensors.index.json`; its metadata (a total size) is not relied on."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    weight_map: dict[str, _ShardName]


class Checkpoint:
    """An open, validated checkpoint directory.

    `layers` (None: all; counted from zero) and `ends` say which part is needed; the rest may be absent, is not opened,
    and cannot be read. `a_log` says how `A_log` is stored. Raises UserError with file, tensor, what was found and what
    was expected: for a configuration that lacks a constant or says another format than MXFP4, a missing, extra,
    misshapen or mistyped tensor, one outside of the text backbone that is not known to be skipped, a shard
    that is missing, truncated or not the one in which the index promises a tensor.
    """

    def __init__(
        self,
        directory: Path,
        *,
        layers: Collection[int] | None = None,
        ends: bool = True,
        a_log: ALog = ALog.VECTOR,
    ) -> None:
        self.directory = directory
        quantisation.check(directory / CONFIG_FILE)
        self.architecture = Architecture.from_config(directory / CONFIG_FILE)
        self.layers = tuple(range(self.architecture.layers)) if layers is None else tuple(sorted(set(layers)))
        if odd := [layer for layer in self.layers if not 0 <= layer < self.architecture.layers]:
            raise UserError(
                f"{directory / CONFIG_FILE}: there is no layer {odd[0]}",
                f"layers count from 0 to {self.architecture.layers - 1}",
            )
        self.a_log = a_log
        self._tensors = expected(self.architecture, self.layers, ends=ends, a_log=a_log)
        self._weight_map = strict.read(directory / INDEX_FILE, _IndexFile).weight_map
        self._check_names()
        by_file: dict[str, list[str]] = defaultdict(list)
        for name in self._tensors:
            by_file[self._weight_map[name]].append(name)
        self._shards = {file: self._open(file, names) for file, names in by_file.items()}

    @cached_property
    def skipped(self) -> dict[str, int]:
        """Prefixes that are known to be no part of the text backbone -> tensors of the index that were left alone."""
        counts = {prefix: sum(name.startswith(prefix) for name in self._weight_map) for prefix in SKIPPED}
        return {prefix: count for prefix, count in counts.items() if count}

    def read(self, name: str, index: Index = ()) -> Tensor:
        """A fresh tensor with the part `index` (slices without step, and integers) of a tensor; () is the whole."""
        part = self._part(name, index)
        return torch.empty(part.shape, dtype=part.dtype).copy_(part)

    def read_into(self, destination: Tensor, name: str, index: Index = ()) -> None:
        """Copies the part `index` of a tensor into `destination`, of the same shape and type."""
        part = self._part(name, index)
        if part.shape != destination.shape or part.dtype != destination.dtype:
            raise ValueError(f"{name}: {part.dtype} {part.shape} into {destination.dtype} {destination.shape}")
        destination.copy_(part)

    def _part(self, name: str, index: Index) -> Tensor:
        """The part itself, a view of the mapped file."""
        if name not in self._tensors:
            raise UserError(
                f"{self.directory}: {name}: outside the part that was opened", "open the checkpoint with that layer"
            )
        part = self._shards[self._weight_map[name]].get_slice(name)[index or ...]
        # The extremes are NaN where anything is, and take no memory of the tensor's size.
        if part.is_floating_point() and not all(extreme.isfinite() for extreme in part.aminmax()):
            count = int((~part.isfinite()).sum())
            raise UserError(
                f"{self._path(name)}: {name}: found {count} values that are NaN or infinite, expected finite weights",
                "fetch the file again, or convert it again from weights that are finite",
            )
        if name.endswith(".weight_scale") and (part == NAN_SCALE).any():
            raise UserError(
                f"{self._path(name)}: {name}: found scale byte {NAN_SCALE}, which stands for NaN; expected at most 254",
                "fetch the file again; no published expert has such a scale",
            )
        return part

    def _path(self, name: str) -> Path:
        return self.directory / self._weight_map[name]

    def _check_names(self) -> None:
        index = self.directory / INDEX_FILE
        known = expected(self.architecture, a_log=self.a_log)
        extra = [name for name in self._weight_map if not name.startswith(SKIPPED) and name not in known]
        missing = [name for name in self._tensors if name not in self._weight_map]
        if missing:
            name = missing[0]
            siblings = [other for other in extra if _module(other) == _module(name)]
            found = f"found {siblings[0]} in its module" if siblings else "found nothing like it"
            raise UserError(
                f"{index}: {name}: missing{_more(missing)}: {found}, expected {self._tensors[name]}",
                "use the published names; a renamed tensor is not loaded under its old name",
            )
        if extra:
            raise UserError(
                f"{index}: {extra[0]}: found{_more(extra)}, expected no such tensor in this architecture",
                f"remove it, or correct {CONFIG_FILE}; known to be skipped: {', '.join(SKIPPED)}",
            )

    def _open(self, file: str, names: list[str]) -> safe_open:
        """One shard, once everything that the index says about it has been found true."""
        path = self.directory / file
        if path.exists() and not path.is_file():  # opening a pipe would never end
            raise UserError(
                f"{path}: {names[0]}{_more(names)}: found something that is no regular file, expected a shard",
                "fetch the file again",
            )
        try:
            shard = safe_open(path, "pt")
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{path}: {names[0]}{_more(names)}: cannot be read, missing, truncated or damaged: {error}",
                "fetch the file again",
            ) from error
        held = set(shard.keys())
        for name in names:
            if name not in held:
                raise UserError(
                    f"{path}: {name}: not found in this file, expected here by {INDEX_FILE}",
                    "fetch the index and the shards from the same revision",
                )
            self._check_tensor(path, name, shard.get_slice(name))
        for name in sorted(held):
            if not name.startswith(SKIPPED) and self._weight_map.get(name) != file:
                place = self._weight_map.get(name, "nowhere")
                raise UserError(
                    f"{path}: {name}: found in this file, expected {place} by {INDEX_FILE}",
                    "fetch the index and the shards from the same revision",
                )
        return shard

    def _check_tensor(self, path: Path, name: str, stored) -> None:
        info = self._tensors[name]
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        if not info.admits(shape, dtype):
            raise UserError(f"{path}: {name}: found {dtype} {list(shape)}, expected {info}", _misfit_remedy(name, info))
        if info.zero_tail and stored[info.shape[0] :].any():
            raise UserError(
                f"{path}: {name}: found entries other than zero behind the first {info.shape[0]}, expected zeros",
                "fetch the file again; the tail belongs to no head",
            )


def _misfit_remedy(name: str, info: TensorInfo) -> str:
    if name.endswith(".A_log"):
        return f"say how A_log is stored with a_log: {', '.join(ALog)}"
    if name.endswith(".weight_scale"):
        return "use the checkpoint with one scale for 32 elements along the last axis"
    return "use the published checkpoint, or correct config.json"


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
