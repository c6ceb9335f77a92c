"""The recorder's job: runs in a confined child process and answers with launch plans, or with why there is none.

The child belongs to the candidate from the first import on, so the answer is data to be validated (see plan.py).
"""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from ...contracts.base import TensorRole, TensorSpec
from ...tensors import DType, torch_dtype
from ..candidate import Candidate
from ..pack import KernelPack, PersistentBuffer, ScratchBuffer
from . import package
from .context import Hardware, RecordingContext
from .declared import Buffers, declaration, prepared
from .refusal import CandidateFiles, Refused
from .session import Recording
from .torch_guard import guarded
from .triton_hook import BoundLaunch, check_version, intercepted


def run(payload: Mapping[str, Any], memory: Sequence[Any], scratch: str | Path) -> tuple[dict, list[bytes]]:
    """Records one candidate at each workload, twice, and compares.

    payload: {"candidate": Candidate, "workloads": [{"name", "axes", "tensors": [TensorSpec]}],
    "hardware": {"name", "capability", "multiprocessors", "max_shared"}}. `prepare` sees tensors without
    values here, or zeros, and only the shapes of what it returns are kept: its values are prepare_job.py's business.

    Answers ({"packs": [KernelPack]}, []), or ({"rejected": {"reason", "message", "where", "workload"}}, []).
    """
    check_version()
    candidate = Candidate.model_validate(payload["candidate"])
    hardware = Hardware(**payload["hardware"])
    files = CandidateFiles(package.install(candidate.files, Path(scratch)))
    packs = []
    workload_name = None
    try:
        with intercepted(hardware.capability, _outside_of_launch):
            with files.blamed(f"importing {candidate.entry}"):
                entry = package.load(candidate.entry)
        if not callable(getattr(entry, "launch", None)):
            raise Refused("record.no_launch", f"{candidate.entry} defines no launch(ctx, buffers, axes, config)")
        for workload in payload["workloads"]:
            workload_name = workload["name"]
            packs.append(_Recorder(candidate, entry, hardware, files, workload).pack().model_dump(mode="json"))
    except Refused as refusal:
        fields = {"reason": refusal.reason, "message": refusal.message, "where": refusal.where}
        return {"rejected": {**fields, "workload": workload_name}}, []
    return {"packs": packs}, []


class _Recorder:
    def __init__(self, candidate, entry, hardware, files, workload) -> None:
        self.candidate, self.entry, self.hardware, self.files = candidate, entry, hardware, files
        self.workload = workload["name"]
        self.axes = dict(workload["axes"])
        self.specs = tuple(TensorSpec.model_validate(spec) for spec in workload["tensors"])

    def pack(self) -> KernelPack:
        with intercepted(self.hardware.capability, _outside_of_launch):
            scratch = self._scratch()
            persistent = self._persistent()
            prepared = self._prepare()
        first = self._record(scratch | persistent | prepared, {})
        second = self._record(scratch | persistent | prepared, first.addresses)
        for number, (one, two) in enumerate(zip(first.launches, second.launches)):
            if one != two:
                self._unstable(f"launch {number} ({one.kernel}) differs")
        if len(first.launches) != len(second.launches):
            self._unstable(f"{len(first.launches)} launches, then {len(second.launches)}")
        return KernelPack(
            op=self.candidate.op,
            workload=self.workload,
            candidate_digest=self.candidate.digest(),
            kernels=first.kernels,
            launches=tuple(first.launches),
            scratch=scratch,
            prepared=prepared,
            persistent=persistent,
            toolchain={"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        )

    def _unstable(self, what: str) -> None:
        raise Refused(
            "record.not_deterministic",
            f"launch() was recorded twice with other addresses and the plans are not equal: {what}",
        )

    def _scratch(self) -> dict[str, ScratchBuffer]:
        if not hasattr(self.entry, "scratch"):
            return {}
        with self.files.blamed("scratch"):
            declared = self.entry.scratch(dict(self.axes), dict(self.candidate.config))
            found = {name: (tuple(shape), dtype) for name, (shape, dtype) in declared.items()}
        return {name: self._declaration("scratch", name, shape, dtype) for name, (shape, dtype) in found.items()}

    def _persistent(self) -> dict[str, PersistentBuffer]:
        """name -> (shape, dtype), with the initial byte and "restored" or "epoch" where they are not the defaults."""
        if not hasattr(self.entry, "persistent"):
            return {}
        buffers = {}
        with self.files.blamed("persistent"):
            declared = dict(self.entry.persistent(dict(self.axes), dict(self.candidate.config)))
            for name, (shape, dtype, *rest) in declared.items():
                known = self._declaration("persistent", name, tuple(shape), dtype)
                initial, after = (*rest, *(0, "restored")[len(rest) :])
                buffers[name] = PersistentBuffer(shape=known.shape, dtype=known.dtype, initial=initial, after=after)
        return buffers

    def _prepare(self) -> dict[str, ScratchBuffer]:
        try:
            # Shapes alone: nothing is computed. Repacking a rank's experts takes seconds and gigabytes, at every workload.
            tensors = self._prepared("meta")
        except Refused:
            # It looks at values, or mixes in tensors of its own: zeros, which cost no memory until they are written. If it
            # fails with these as well, that is what is wrong with it.
            tensors = self._prepared("cpu")
        return {
            name: self._declaration("prepare", name, tuple(tensor.shape), tensor.dtype)
            for name, tensor in tensors.items()
        }

    def _prepared(self, device: str) -> dict[str, torch.Tensor]:
        static = {
            spec.name: torch.zeros(max(spec.storage_elements, 1), dtype=torch_dtype(spec.dtype), device=device).as_strided(
                spec.shape, spec.strides
            )
            for spec in self.specs
            if spec.role is TensorRole.STATIC
        }
        return prepared(self.entry, self.files, self.hardware, static, self.axes, self.candidate.config, device)

    def _declaration(self, origin: str, name: str, shape: tuple[int, ...], dtype: Any) -> ScratchBuffer:
        return declaration(origin, name, shape, dtype, {spec.name for spec in self.specs})

    def _record(self, extra: Mapping[str, ScratchBuffer], taken: Mapping[str, int]) -> Recording:
        """One call of `launch`, with every buffer at another address than in `taken`."""
        layouts = {spec.name: (spec.dtype, spec.shape, spec.strides, spec.storage_elements) for spec in self.specs}
        for name, buffer in extra.items():
            layouts[name] = (buffer.dtype, buffer.shape, *_contiguous(buffer.shape))
        tensors = {name: _untouched(*layout, avoid=taken.get(name)) for name, layout in layouts.items()}
        context = RecordingContext(self.hardware)
        cuda_files = frozenset(name for name in self.candidate.files if name.endswith(".cu"))
        recording = Recording(tensors, context, self.files, cuda_files)
        buffers = Buffers(**tensors)
        with intercepted(self.hardware.capability, recording.add), guarded(recording.refuse):
            with self.files.blamed("launch"):
                self.entry.launch(context, buffers, dict(self.axes), dict(self.candidate.config))
        if recording.refusal is not None:
            raise recording.refusal
        if not recording.launches:
            raise Refused("record.no_launches", "launch() launched no kernel")
        return recording


def _contiguous(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    strides, elements = [], 1
    for size in reversed(shape):
        strides.append(elements)
        elements *= size
    return tuple(reversed(strides)), elements


def _untouched(
    dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], elements: int, avoid: int | None
) -> torch.Tensor:
    """A tensor on a storage of its own that nothing has written: address space, not memory."""
    held = []
    while not held or held[-1].data_ptr() == avoid:
        held.append(torch.empty(max(elements, 1), dtype=torch_dtype(dtype)))
    return held[-1].as_strided(shape, strides)


def _outside_of_launch(bound: BoundLaunch) -> None:
    raise Refused("record.launch_outside", f"kernel {bound.function.__name__!r} is launched outside of launch()")
