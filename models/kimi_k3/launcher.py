"""The serving side of a kernel's `ctx`: Triton and CUDA C++ on torch's current stream, so that a graph captures it.

The same object shape as at recording: `hardware`, `stream`, `wait`, `prefetch`, `cuda`, `scalar`, `tensor_map`, `peers`.
Triton kernels launch themselves on torch's current stream. What must not happen inside a capture (compiling, encoding
tensor maps, uploading tables) is done at the first call of a launch and kept, so every launch runs once before capture.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).parent
MAIN = "main"


@dataclass(frozen=True)
class Hardware:
    """Facts of the device."""

    name: str
    capability: int
    """Without the dot: 90 or 103"""
    multiprocessors: int
    max_shared: int
    """Bytes of shared memory that one block may use"""


def hardware(name: str, device: int | None = None) -> Hardware:
    """The facts of a CUDA device, called `name` in the dispatch tables."""
    found = torch.cuda.get_device_properties(torch.cuda.current_device() if device is None else device)
    shared = found.shared_memory_per_block_optin
    return Hardware(name, 10 * found.major + found.minor, found.multi_processor_count, shared)


@dataclass(frozen=True)
class Scalar:
    """An argument with its type said: i8 to i64, u8 to u64, u1, fp32, fp64."""

    type: str
    value: bool | int | float


_FORMATS = {
    "u1": "<?", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q",
    "fp32": "<f", "fp64": "<d",
}  # fmt: skip


def packed(argument: Any) -> bytes:
    """The bytes of one kernel parameter: tensors are addresses, bool u1, int i32, float fp32, tensor maps themselves."""
    match argument:
        case Tensor():
            return struct.pack("<Q", argument.data_ptr())
        case bytes():
            return argument
        case Scalar(type=kind, value=value):
            return struct.pack(_FORMATS[kind], value)
        case bool():
            return struct.pack("<?", argument)
        case int():
            return struct.pack("<i", argument)
        case float():
            return struct.pack("<f", argument)
    raise TypeError(f"a CUDA kernel takes tensors, numbers, ctx.scalar(), ctx.tensor_map() and ctx.peers(), not {argument!r}")


class ServingContext:
    """What kernels are launched with on one GPU. One a decoder: kept maps and tables live as long as it."""

    def __init__(self, facts: Hardware, root: Path = ROOT) -> None:
        self.hardware = facts
        self._root = root
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._kernels: dict[tuple, CudaKernel] = {}
        self._maps: dict[tuple, bytes] = {}
        self._tables: dict[tuple[int, ...], Tensor] = {}

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Launches inside go to stream `name`, after everything launched so far on the enclosing one."""
        enclosing = torch.cuda.current_stream()
        side = self._stream(name)
        side.wait_stream(enclosing)
        with torch.cuda.stream(side):
            yield

    def wait(self, name: str) -> None:
        """The next launch on the current stream starts after everything launched so far on stream `name`."""
        if name not in self._streams:
            raise ValueError(f"wait({name!r}): nothing was launched on that stream; known: {sorted(self._streams)}")
        torch.cuda.current_stream().wait_stream(self._streams[name])

    @contextmanager
    def prefetch(self) -> Iterator[None]:
        """Launches inside only warm caches."""
        yield

    def cuda(
        self, file: str, kernel: str, *, threads: int, constants: Mapping[str, Any] = {},
        max_registers: int | None = None, pdl: bool = False, cluster: int = 1, cooperative: bool = False,
    ) -> "CudaKernel":  # fmt: skip
        """The kernel `kernel` of the directory's file `file`, compiled at its first launch."""
        key = (file, kernel, threads, tuple(sorted(constants.items())), max_registers, pdl, cluster, cooperative)
        if key not in self._kernels:
            self._kernels[key] = CudaKernel(
                self._root / file, kernel, dict(constants), max_registers, threads, pdl, cluster, cooperative
            )
        return self._kernels[key]

    def scalar(self, type: str, value: bool | int | float) -> Scalar:
        """An argument of another type than Python's own would have."""
        if type not in _FORMATS:
            raise ValueError(f"scalar({type!r}): known are {', '.join(sorted(_FORMATS))}")
        return Scalar(type, value)

    def tensor_map(
        self, tensor: Tensor, block_shape: Sequence[int], *, swizzle: int = 0, padding: str = "zero",
        round_to_tf32: bool = False,
    ) -> bytes:  # fmt: skip
        """An encoded tensor map over `tensor` in boxes, kept by address and layout."""
        what = (
            tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tuple(block_shape), swizzle,
            padding, round_to_tf32,
        )  # fmt: skip
        if what not in self._maps:
            from . import cuda_driver

            self._maps[what] = cuda_driver.tensor_map(tensor, block_shape, swizzle, padding, round_to_tf32)
        return self._maps[what]

    def peers(self, tensors: Sequence[Tensor]) -> Tensor:
        """A device table of 64-bit addresses, one a rank."""
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        if addresses not in self._tables:
            self._tables[addresses] = torch.tensor(addresses, dtype=torch.int64, device=tensors[0].device)
        return self._tables[addresses]

    def _stream(self, name: str) -> "torch.cuda.Stream":
        if name == MAIN:
            raise ValueError("stream('main'): launches outside of every `with` are on the main stream")
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream()
        return self._streams[name]


class CudaKernel:
    """One kernel of a CUDA C++ file: `kernel[grid](arguments in order, shared_bytes=0)`; the grid counts blocks."""

    def __init__(
        self, file: Path, name: str, constants: Mapping[str, Any], max_registers: int | None, threads: int, pdl: bool,
        cluster: int, cooperative: bool,
    ) -> None:  # fmt: skip
        self._file, self._name, self._constants, self._max_registers = file, name, constants, max_registers
        self._threads, self._pdl, self._cluster, self._cooperative = threads, pdl, cluster, cooperative
        self._allowed = 0

    @cached_property
    def _function(self):
        from . import cuda_driver

        return cuda_driver.function(self._file, self._name, self._constants, self._max_registers)

    def __getitem__(self, grid: Sequence[int] | int):
        sizes = tuple(grid) if isinstance(grid, Sequence) else (grid,)
        x, y, z = (*sizes, 1, 1)[:3]

        def launch(*arguments: Any, shared_bytes: int = 0) -> None:
            from . import cuda_driver

            if shared_bytes > self._allowed or (self._cluster > 8 and not self._allowed):
                cuda_driver.allow(self._function, shared_bytes, self._cluster)
                self._allowed = max(shared_bytes, 1)
            cuda_driver.launch(
                self._function, (x, y, z), self._threads, shared_bytes, [packed(argument) for argument in arguments],
                torch.cuda.current_stream().cuda_stream, pdl=self._pdl, cluster=self._cluster,
                cooperative=self._cooperative,
            )  # fmt: skip

        return launch
