"""The candidate's `prepare` on the judge's static tensors: a job of its own, whose buffers alone are taken back."""

import math
import mmap
import os
from collections.abc import Mapping

import torch

from ..contracts.base import OpContract, TensorSpec, Workload
from ..performance.hardware import Hardware
from ..sandbox import JobStatus, Limits, Sandbox, sealed_memory
from .answers import last_line, text_of
from .candidate import Candidate
from .pack import KernelPack
from .stages import RECORD_LIMITS, facts_of

PREPARE_ENTRY = "fasttrack_validation.judge.recorder.prepare_job:run"
# A slow host repacks weights no slower than this.
PREPARE_BYTES_PER_SECOND = 10e6


class PrepareFailed(Exception):
    """`prepare` did not give the buffers that the plan declares."""


def _prepare_limits(static_bytes: int, pack: KernelPack) -> Limits:
    """What `prepare` may use: its weights, what it declared to make of them, and working copies of both."""
    made = sum(math.prod(buffer.shape) * buffer.dtype.bytes for buffer in pack.prepared.values())
    return RECORD_LIMITS.model_copy(
        update={
            "wall_seconds": RECORD_LIMITS.wall_seconds + (static_bytes + made) / PREPARE_BYTES_PER_SECOND,
            "output_bytes": RECORD_LIMITS.output_bytes + made,
        }
    )


def prepare(
    sandbox: Sandbox, candidate: Candidate, contract: OpContract, workload: Workload, hardware: Hardware,
    static: Mapping[str, torch.Tensor], pack: KernelPack,
) -> dict[str, bytes]:  # fmt: skip
    """Runs `prepare` on the given static tensors, apart from everything else, and takes back its buffers.

    Raises PrepareFailed when the job dies or answers with other buffers than the plan declares.
    """
    places, size = [], 0
    for spec in contract.tensors(workload):
        if spec.name in static:
            length = spec.storage_elements * spec.dtype.bytes
            places.append({"spec": spec.model_dump(mode="json"), "offset": size, "bytes": length})
            size += -(-length // 256) * 256
    fd = sealed_memory(max(size, 1), "fasttrack-static")
    try:
        memory = mmap.mmap(fd, max(size, 1))
        for place in places:
            _place(memory, place, TensorSpec.model_validate(place["spec"]), static[place["spec"]["name"]])
        payload = {
            "candidate": candidate.model_dump(mode="json"), "axes": workload.axes, "hardware": facts_of(hardware),
            "static": places,
        }  # fmt: skip
        result = sandbox.run(PREPARE_ENTRY, payload, memory=(fd,), limits=_prepare_limits(size, pack))
    finally:
        os.close(fd)
    names = result.value.get("prepared") if result.status is JobStatus.OK else None
    named = isinstance(names, list) and sorted(map(str, names)) == sorted(pack.prepared)
    if not named or len(result.blobs) != len(names):
        detail = last_line(result) if result.status is not JobStatus.OK else str(result.value.get("rejected", names))
        raise PrepareFailed(text_of(f"prepare gave other buffers than it declared: {detail}"))
    # By name: a plan that was kept in a file lists its buffers in another order.
    found = dict(zip(names, result.blobs, strict=True))
    for name, buffer in pack.prepared.items():
        declared = math.prod(buffer.shape) * buffer.dtype.bytes
        if len(found[name]) != declared:
            raise PrepareFailed(
                f"prepared buffer {name} has {len(found[name])} bytes on real weights, {declared} when recorded"
            )
    return found


def _place(memory: mmap.mmap, place: Mapping[str, int], spec: TensorSpec, value: torch.Tensor) -> None:
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=len(memory))
    flat = raw[place["offset"] : place["offset"] + place["bytes"]].view(value.dtype)
    flat.as_strided(spec.shape, spec.strides).copy_(value)
