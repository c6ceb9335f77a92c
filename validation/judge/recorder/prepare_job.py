"""The job that runs `prepare` on the judge's static tensors: torch and an importable Triton are all that it needs.

Nothing is recorded here, so it does not matter which Triton is installed; a kernel that `prepare` launches finds no
device. The child belongs to the candidate from the first import on: its answer is data to be validated.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton  # noqa: F401 - so that a process which has imported this module is warm

from ...contracts.base import TensorSpec
from ...tensors import torch_dtype
from ..candidate import Candidate
from . import package
from .context import Hardware
from .declared import prepared
from .refusal import CandidateFiles, Refused


def run(payload: Mapping[str, Any], memory: Sequence[Any], scratch: str | Path) -> tuple[dict, list[bytes]]:
    """payload: {"candidate": Candidate, "axes", "hardware": {"name", "capability", "multiprocessors", "max_shared"},
    "static": [{"spec": TensorSpec, "offset", "bytes"}]}, the last into memory[0]: storage bytes, gaps included.

    Answers ({"prepared": [name, ...]}, blobs), one blob of contiguous bytes for each name; or
    ({"rejected": {"reason", "message", "where"}}, []).
    """
    candidate = Candidate.model_validate(payload["candidate"])
    files = CandidateFiles(package.install(candidate.files, Path(scratch)))
    static = {}
    for place in payload["static"]:
        spec = TensorSpec.model_validate(place["spec"])
        raw = bytearray(memoryview(memory[0])[place["offset"] : place["offset"] + place["bytes"]])
        storage = torch.frombuffer(raw or bytearray(8), dtype=torch_dtype(spec.dtype))
        static[spec.name] = storage.as_strided(spec.shape, spec.strides)
    try:
        with files.blamed(f"importing {candidate.entry}"):
            entry = package.load(candidate.entry)
        hardware = Hardware(**payload["hardware"])
        tensors = prepared(entry, files, hardware, static, payload["axes"], candidate.config)
    except Refused as refusal:
        return {"rejected": {"reason": refusal.reason, "message": refusal.message, "where": refusal.where}}, []
    return {"prepared": list(tensors)}, [_bytes(tensor) for tensor in tensors.values()]


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
