"""The reference of a foreign definition, run where it can harm nobody."""

import mmap
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ...errors import UserError
from ...sandbox import JobStatus, Limits, Profile, Sandbox, sealed_memory
from .schema import Definition

if TYPE_CHECKING:
    from torch import Tensor

_MODULE = f"{__package__}.reference_job"
_LIMITS = Limits(wall_seconds=120, memory_bytes=8 << 30, output_bytes=2 << 30)


class Evaluator(Protocol):
    """Calls a definition's reference."""

    def __call__(self, definition: Definition, inputs: "Mapping[str, Tensor]", *, wide: bool) -> "dict[str, Tensor]":
        """The outputs at `inputs` (scalars as tensors of one element): as written, or in float64."""


class SandboxedReference:
    """An evaluator in a sandbox of its own, which starts with the first call and ends with the context."""

    def __init__(self, *, unsafe_no_sandbox: bool = False) -> None:
        self._unsafe = unsafe_no_sandbox
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None

    def __enter__(self) -> "SandboxedReference":
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            if self._sandbox is not None:
                self._sandbox.close()
                self._sandbox = None

    def _started(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                # Neither forks nor executes: a reference has no need to.
                self._sandbox = Sandbox(Profile.INTERPRETER, preload=("torch", _MODULE), unsafe=self._unsafe)
            return self._sandbox

    def __call__(self, definition: Definition, inputs: "Mapping[str, Tensor]", *, wide: bool) -> "dict[str, Tensor]":
        """Raises UserError where the reference fails, or returns something other than the definition says."""
        entries, size = [], 0
        for name, tensor in definition.inputs.items():
            if tensor.shape is None:
                entries.append({"scalar": float(inputs[name])})
                continue
            length = inputs[name].numel() * inputs[name].element_size()
            entries.append({"dtype": tensor.dtype, "shape": list(inputs[name].shape), "offset": size, "bytes": length})
            size += -(-length // 64) * 64
        payload = {
            "reference": definition.reference, "inputs": entries, "outputs": len(definition.outputs), "wide": wide,
        }  # fmt: skip
        descriptor = sealed_memory(max(size, 1), "fasttrack-reference")
        try:
            with mmap.mmap(descriptor, max(size, 1)) as memory:
                for entry, name in zip(entries, definition.inputs, strict=True):
                    if "offset" in entry:
                        memory[entry["offset"] : entry["offset"] + entry["bytes"]] = _bytes(inputs[name])
            answer = self._started().run(f"{_MODULE}:run", payload, memory=(descriptor,), limits=_LIMITS)
        finally:
            os.close(descriptor)
        if answer.status is not JobStatus.OK or "outputs" not in answer.value:
            why = answer.error.strip().splitlines()[-1:] or [str(answer.value.get("failed", answer.status.value))]
            how = "correct the reference"
            if wide:
                how += '; if it means its own types, say oracle = "as_written" in the side file'
            raise UserError(f"{definition.name}: the reference failed: {why[0][:500]}", how)
        return _outputs(definition, inputs, answer.value["outputs"], answer.blobs, wide)


def _outputs(definition, inputs, described, blobs, wide: bool) -> "dict[str, Tensor]":
    """The answer as tensors, held against the definition: the job's process belongs to the reference."""
    import torch

    from .reference_job import TORCH

    sizes = _sizes(definition, inputs)
    found = {}
    if not isinstance(described, list) or not len(described) == len(blobs) == len(definition.outputs):
        raise UserError(f"{definition.name}: the reference's process answered nonsense", "correct the reference")
    for (name, tensor), said, blob in zip(definition.outputs.items(), described, blobs, strict=True):
        said = said if isinstance(said, dict) else {}
        floating = tensor.dtype.startswith(("float", "bfloat"))
        dtype, shape = "float64" if wide and floating else tensor.dtype, [sizes[axis] for axis in tensor.shape]
        if said.get("dtype") != dtype or said.get("shape") != shape:
            raise UserError(
                f"{definition.name}: outputs.{name}: the reference returns {said.get('dtype')} {said.get('shape')}, "
                f"expected is {dtype} {shape}", "correct the reference or the definition",
            )  # fmt: skip
        flat = torch.frombuffer(bytearray(blob), dtype=TORCH[dtype]) if blob else torch.empty(0, dtype=TORCH[dtype])
        found[name] = flat.reshape(shape)
    return found


def _sizes(definition: Definition, inputs: "Mapping[str, Tensor]") -> dict[str, int]:
    sizes = {name: axis.value for name, axis in definition.axes.items() if axis.type == "const"}
    for name, tensor in definition.inputs.items():
        sizes |= dict(zip(tensor.shape or (), inputs[name].shape, strict=False))
    return sizes


def _bytes(tensor: "Tensor") -> bytes:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
