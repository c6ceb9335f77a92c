"""What a candidate declares beside `launch`: its buffers, and what `prepare` makes of the static tensors."""

from collections.abc import Collection, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from ...tensors import DType, torch_dtype
from ..pack import ScratchBuffer
from .context import Hardware, RecordingContext
from .refusal import CandidateFiles, Refused


class Buffers(SimpleNamespace):
    """What `launch` and `prepare` see: one attribute for each tensor of the op and each declared buffer."""

    def __getattr__(self, name: str) -> torch.Tensor:
        raise AttributeError(f"the op has no buffer {name!r}; it has {', '.join(sorted(vars(self)))}")


def declaration(origin: str, name: Any, shape: tuple[int, ...], dtype: Any, taken: Collection[str]) -> ScratchBuffer:
    """A declared buffer. Raises Refused for an unknown dtype, a name that is `taken`, or an impossible shape."""
    known = {torch_dtype(known): known for known in DType}
    if dtype not in known:
        listed = ", ".join(str(known) for known in known)
        raise Refused("record.dtype", f"{origin}: buffer {name!r} has dtype {dtype!r}; known: {listed}")
    if not (isinstance(name, str) and name.isidentifier()) or name in taken:
        raise Refused("record.buffer_name", f"{origin}: {name!r} is not a free buffer name")
    if not all(type(size) is int and size > 0 for size in shape):
        raise Refused("record.shape", f"{origin}: buffer {name!r} has shape {shape}; sizes are positive integers")
    return ScratchBuffer(shape=shape, dtype=known[dtype])


def prepared(
    entry: ModuleType, files: CandidateFiles, hardware: Hardware, static: Mapping[str, torch.Tensor],
    axes: Mapping[str, int], config: Mapping[str, Any], device: str = "cpu",
) -> dict[str, torch.Tensor]:  # fmt: skip
    """What `prepare` returns for these static tensors, by name: dense ones on their `device`. Raises Refused for anything
    else."""
    if not hasattr(entry, "prepare"):
        return {}
    with files.blamed("prepare"), torch.no_grad():
        tensors = dict(entry.prepare(RecordingContext(hardware), Buffers(**static), dict(axes), dict(config)))
    for name, tensor in tensors.items():
        if type(tensor) is not torch.Tensor or tensor.device.type != device or tensor.layout is not torch.strided:
            kind = type(tensor).__name__
            raise Refused("record.prepared", f"prepare returned {name!r} as {kind}, not a dense CPU tensor")
    return tensors
