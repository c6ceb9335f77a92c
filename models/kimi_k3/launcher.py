"""The serving side of a kernel's `ctx`: Triton and CUDA C++ on torch's current stream, so that a graph captures it.

The same object shape as at recording: `hardware`, `stream`, `wait`, `prefetch`, `cuda`, `scalar`, `tensor_map`, `peers`.
Triton kernels launch themselves on torch's current stream. What must not happen inside a capture (compiling, encoding
tensor maps, uploading tables) is done at the first call of a launch and kept, so every launch runs once before capture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

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


_TYPES = {
    "u1": torch.bool, "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "u16": torch.uint16, "i32": torch.int32,
    "u32": torch.uint32, "i64": torch.int64, "u64": torch.uint64, "fp32": torch.float32, "fp64": torch.float64,
}  # fmt: skip


def packed(argument: Any) -> Tensor:
    """The bytes of one kernel parameter, [n] uint8 on the CPU.

    Tensors are addresses, bool is u1, int i32, float fp32; maps are themselves. Raises TypeError for anything else, and
    RuntimeError for a number that its type cannot hold.
    """
    match argument:
        case TensorMap():
            return argument.data
        case Tensor():
            return packed(Scalar("u64", argument.data_ptr()))
        case Scalar(type=kind, value=value):
            return torch.tensor([value], dtype=_TYPES[kind]).view(torch.uint8)
        case bool():
            return packed(Scalar("u1", argument))
        case int():
            return packed(Scalar("i32", argument))
        case float():
            return packed(Scalar("fp32", argument))
    known = "tensors, numbers, ctx.scalar(), ctx.tensor_map() and ctx.peers()"
    raise TypeError(f"a CUDA kernel takes {known}, not {argument!r}")


@dataclass(frozen=True)
class TensorMap:
    """An encoded map, [128] uint8 on the CPU."""

    data: Tensor


class _Side:
    """Launches inside go to a side stream."""

    def __init__(self, side: "torch.cuda.Stream") -> None:
        self._side = side

    def __enter__(self) -> None:
        self._side.wait_stream(torch.cuda.current_stream())
        self._inside = torch.cuda.stream(self._side)
        self._inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)


class _Prefetching:
    """Launches inside only warm caches."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


class ServingContext:
    """What kernels are launched with on one GPU. One a decoder: kept maps and tables live as long as it.

    `sources`: CUDA C++ files and headers of the model directory, relative path -> text.
    """

    def __init__(self, facts: Hardware, sources: Mapping[str, str]) -> None:
        self.hardware = facts
        self._sources = sources
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._kernels: dict[tuple, CudaKernel] = {}
        self._maps: dict[tuple, TensorMap] = {}
        self._tables: dict[tuple[int, ...], Tensor] = {}

    def stream(self, name: str) -> _Side:
        """Launches inside go to stream `name`, after everything launched so far on the enclosing one."""
        if name == MAIN:
            raise ValueError("stream('main'): launches outside of every `with` are on the main stream")
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream()
        return _Side(self._streams[name])

    def wait(self, name: str) -> None:
        """The next launch on the current stream starts after everything launched so far on stream `name`."""
        if name not in self._streams:
            raise ValueError(f"wait({name!r}): nothing was launched on that stream; known: {sorted(self._streams)}")
        torch.cuda.current_stream().wait_stream(self._streams[name])

    def prefetch(self) -> _Prefetching:
        """Launches inside only warm caches."""
        return _Prefetching()

    def cuda(
        self, file: str, kernel: str, *, threads: int, constants: Mapping[str, Any] = {},
        max_registers: int | None = None, pdl: bool = False, cluster: int = 1, cooperative: bool = False,
    ) -> "CudaKernel":  # fmt: skip
        """The kernel `kernel` of the directory's file `file`, compiled at its first launch."""
        key = (file, kernel, threads, tuple(sorted(constants.items())), max_registers, pdl, cluster, cooperative)
        if key not in self._kernels:
            self._kernels[key] = CudaKernel(
                self._sources, file, kernel, dict(constants), max_registers, threads, pdl, cluster, cooperative
            )
        return self._kernels[key]

    def scalar(self, type: str, value: bool | int | float) -> Scalar:
        """An argument of another type than Python's own would have."""
        if type not in _TYPES:
            raise ValueError(f"scalar({type!r}): known are {', '.join(sorted(_TYPES))}")
        return Scalar(type, value)

    def tensor_map(
        self, tensor: Tensor, block_shape: Sequence[int], *, swizzle: int = 0, padding: str = "zero",
        round_to_tf32: bool = False,
    ) -> TensorMap:  # fmt: skip
        """An encoded tensor map over `tensor` in boxes, kept by address and layout."""
        what = (
            tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tuple(block_shape), swizzle,
            padding, round_to_tf32,
        )  # fmt: skip
        if what not in self._maps:
            from . import cuda_driver

            data = cuda_driver.tensor_map(tensor, block_shape, swizzle, padding, round_to_tf32)
            self._maps[what] = TensorMap(data)
        return self._maps[what]

    def peers(self, tensors: Sequence[Tensor]) -> Tensor:
        """A device table of 64-bit addresses, one a rank."""
        addresses = tuple(tensor.data_ptr() for tensor in tensors)
        if addresses not in self._tables:
            self._tables[addresses] = torch.tensor(addresses, dtype=torch.int64, device=tensors[0].device)
        return self._tables[addresses]


class CudaKernel:
    """One kernel of a CUDA C++ file: `kernel[grid](arguments in order, shared_bytes=0)`; the grid counts blocks."""

    def __init__(
        self, sources: Mapping[str, str], file: str, name: str, constants: Mapping[str, Any],
        max_registers: int | None, threads: int, pdl: bool, cluster: int, cooperative: bool,
    ) -> None:  # fmt: skip
        self._sources, self._file, self._name = sources, file, name
        self._constants, self._max_registers = constants, max_registers
        self._threads, self._pdl, self._cluster, self._cooperative = threads, pdl, cluster, cooperative
        self._allowed = 0

    @cached_property
    def _function(self):
        from . import cuda_driver

        return cuda_driver.function(self._sources, self._file, self._name, self._constants, self._max_registers)

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
