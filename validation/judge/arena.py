"""The judge's device memory: every buffer of one trial in one arena, with guard bands, poison and a write-set.

The arena is a memfd that the executor maps. The judge keeps a private copy of what it put there; afterwards every byte
that changed must lie inside the write-set (logical elements of outputs and states, scratch, persistent buffers). Gaps
between strided pages, guard bands, inputs and static tensors are outside it, so an overrun, an in-place edit of an input
and a dense page stride are all the same finding, told apart by where the byte lies.
"""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from ..contracts.base import TensorRole, TensorSpec
from ..sandbox import sealed_memory
from ..tensors import torch_dtype
from .pack import PersistentBuffer, ScratchBuffer

ALIGNMENT = 256  # as cudaMalloc gives; offsets inside a buffer keep what the plan claims
GUARD_BYTES = 4096


@dataclass(frozen=True)
class Slot:
    """Where one buffer lies in the arena (bytes) and whether the executor may write to it."""

    offset: int
    size: int
    writable: bool


@dataclass(frozen=True)
class StrayWrite:
    """Bytes that changed outside the write-set, in one region."""

    region: str
    where: str
    count: int
    first_byte: int


class Arena:
    """Buffers of one trial. Create, `put` tensors, hand `fd` and `table()` to an executor, then read back.

    `generator` (numpy, seeded from the judge's secret) places buffers in random order at random multiples of 256 bytes
    and fills guards, gaps and scratch with noise. A smaller `alignment` (bytes, what a plan may rely on or more) puts
    every buffer at an odd multiple of it.
    """

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        scratch: Mapping[str, ScratchBuffer],
        prepared: Mapping[str, ScratchBuffer],
        generator: np.random.Generator,
        persistent: Mapping[str, PersistentBuffer] = MappingProxyType({}),
        alignment: int = ALIGNMENT,
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        sizes = {spec.name: (spec.storage_elements * spec.dtype.bytes, _writable(spec)) for spec in specs}
        for name, buffer in scratch.items():
            sizes[name] = (int(np.prod(buffer.shape)) * buffer.dtype.bytes, True)
        for name, buffer in prepared.items():
            sizes[name] = (int(np.prod(buffer.shape)) * buffer.dtype.bytes, False)
        for name, buffer in persistent.items():
            sizes[name] = (int(np.prod(buffer.shape)) * buffer.dtype.bytes, True)
        self._persistent = dict(persistent)
        self._unchecked = frozenset(scratch) | frozenset(persistent)
        self._scratch = frozenset(scratch)
        self._live: dict[str, tuple[bool, ...]] = {}
        self.slots: dict[str, Slot] = {}
        offset = GUARD_BYTES
        for name in generator.permutation(sorted(sizes)):
            size, writable = sizes[str(name)]
            offset += alignment if alignment < ALIGNMENT else 0
            self.slots[str(name)] = Slot(offset, size, writable)
            gap = GUARD_BYTES + int(generator.integers(0, 16)) * ALIGNMENT
            offset = -(-(offset + size + gap) // ALIGNMENT) * ALIGNMENT
        self.size = offset + GUARD_BYTES
        self.fd = sealed_memory(self.size, "fasttrack-arena")
        self._map = mmap.mmap(self.fd, self.size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._bytes[:] = np.frombuffer(generator.bytes(self.size), np.uint8)
        for name, buffer in persistent.items():
            self._inside(name)[:] = buffer.initial
        self._before: np.ndarray | None = None

    def flat(self, name: str) -> torch.Tensor:
        """The storage of tensor `name`, gaps included: one axis, live memory."""
        slot = self.slots[name]
        storage = torch.frombuffer(self._map, dtype=torch.uint8, count=self.size)
        return storage[slot.offset : slot.offset + slot.size].view(torch_dtype(self.specs[name].dtype))

    def view(self, name: str) -> torch.Tensor:
        """The tensor `name` as laid out in the arena (strided view of live memory)."""
        spec = self.specs[name]
        flat = self.flat(name)
        return torch.as_strided(flat, spec.shape, spec.strides, flat.storage_offset())

    def put(self, name: str, value: torch.Tensor) -> None:
        """Copies a logical tensor into its strided place; gaps keep their noise."""
        if 0 not in self.specs[name].shape:
            self.view(name).copy_(value)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Fills a prepared buffer. Raises ValueError when the size differs from what was declared."""
        slot = self.slots[name]
        if len(data) != slot.size:
            raise ValueError(f"prepared buffer {name} has {len(data)} bytes, {slot.size} were declared")
        self._bytes[slot.offset : slot.offset + slot.size] = np.frombuffer(data, np.uint8)

    def seal(self) -> None:
        """Remembers the contents that the executor starts from."""
        self._before = self._bytes.copy()

    def rewind(self) -> None:
        """Puts everything but persistent buffers back to what was sealed: the next step finds the same inputs."""
        kept = {name: self._inside(name).copy() for name in self._persistent}
        self._bytes[:] = self._before
        for name, contents in kept.items():
            self._inside(name)[:] = contents

    def unrestored(self) -> dict[str, int]:
        """Persistent buffers that every step must restore -> bytes in which they differ from their initial image."""
        found = {
            name: int((self._inside(name) != buffer.initial).sum())
            for name, buffer in self._persistent.items()
            if buffer.after == "restored"
        }
        return {name: count for name, count in found.items() if count}

    def open_pages(self, name: str, live: tuple[bool, ...]) -> None:
        """Says which pages of the state `name` the launches may write."""
        self._live[name] = live

    def table(self) -> dict[str, dict]:
        """Buffer table for the executor: offset and size in bytes, whether it may be written, and what it holds.

        `holds` is "values", "poison" (an output) or "noise" (scratch); `pages` (of outputs and states) has the stride and
        the extent of a page in bytes and which pages may be written.
        """
        return {name: self._entry(name, slot) for name, slot in self.slots.items()}

    def _entry(self, name: str, slot: Slot) -> dict:
        entry = {"offset": slot.offset, "bytes": slot.size, "writable": slot.writable, "holds": "values"}
        spec = self.specs.get(name)
        if name in self._scratch:
            entry["holds"] = "noise"
        elif spec is not None and slot.writable:
            if spec.role is TensorRole.OUTPUT:
                entry["holds"] = "poison"
            if spec.shape and 0 not in spec.shape:
                rest = 1 + sum((n - 1) * stride for n, stride in zip(spec.shape[1:], spec.strides[1:], strict=True))
                live = self._live.get(name, (True,) * spec.shape[0])
                width = spec.dtype.bytes
                if rest <= spec.strides[0]:
                    entry["pages"] = {"stride": spec.strides[0] * width, "bytes": rest * width, "live": live}
        return entry

    def take(self, name: str) -> torch.Tensor:
        """A contiguous private copy of a tensor as the executor left it."""
        return self.view(name).clone(memory_format=torch.contiguous_format)

    def initial(self, name: str) -> torch.Tensor:
        """A contiguous private copy of a tensor as it was sealed (for outputs: the poison)."""
        spec, slot = self.specs[name], self.slots[name]
        flat = torch.from_numpy(self._before[slot.offset : slot.offset + slot.size]).view(torch_dtype(spec.dtype))
        return flat.as_strided(spec.shape, spec.strides).clone(memory_format=torch.contiguous_format)

    def stray_writes(self) -> tuple[StrayWrite, ...]:
        """Every region outside the write-set in which bytes changed since `seal`."""
        changed = self._before != self._bytes
        found = []
        for name, slot in self.slots.items():
            inside = changed[slot.offset : slot.offset + slot.size]
            if not inside.any() or name in self._unchecked:
                changed[slot.offset : slot.offset + slot.size] = False
                continue
            spec = self.specs.get(name)
            if spec is not None and slot.writable:
                stray = inside & ~self._logical_bytes(spec)
                where = "the gap between its pages (strides larger than the dense ones)"
            else:
                stray, where = inside.copy(), "it is read-only"
            if stray.any():
                found.append(StrayWrite(name, where, int(stray.sum()), int(np.argmax(stray))))
            changed[slot.offset : slot.offset + slot.size] = False
        if changed.any():
            first = int(np.argmax(changed))
            found.append(StrayWrite("guard band", self._nearest(first), int(changed.sum()), first))
        return tuple(found)

    def close(self) -> None:
        """Gives the memory back; the mapping goes with the last view of it."""
        self._bytes = self._before = self._map = None
        os.close(self.fd)

    def _inside(self, name: str) -> np.ndarray:
        slot = self.slots[name]
        return self._bytes[slot.offset : slot.offset + slot.size]

    def _logical_bytes(self, spec: TensorSpec) -> np.ndarray:
        mask = np.zeros(spec.storage_elements, bool)
        np.lib.stride_tricks.as_strided(mask, spec.shape, spec.strides)[...] = True
        return np.repeat(mask, spec.dtype.bytes)

    def _nearest(self, offset: int) -> str:
        name, slot = min(self.slots.items(), key=lambda item: _distance(item[1], offset))
        if offset < slot.offset:
            return f"{slot.offset - offset} bytes before the start of {name}"
        return f"{offset - slot.offset - slot.size} bytes after the end of {name}"


def _writable(spec: TensorSpec) -> bool:
    return spec.role in (TensorRole.STATE, TensorRole.OUTPUT)


def _distance(slot: Slot, offset: int) -> int:
    return max(slot.offset - offset, offset - slot.offset - slot.size, 0)
