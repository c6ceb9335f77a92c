"""What a candidate's `launch` and `prepare` receive as `ctx`: device facts, streams, roles, kernels that are not Triton."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from ..pack import Role
from .cuda import SCALARS, CudaKernel, CudaLaunch, Scalar, TensorMap
from .refusal import Refused

MAIN = "main"


@dataclass(frozen=True)
class Hardware:
    """Facts of the device that the plan is made for."""

    name: str
    capability: int
    """Compute capability without the dot: 90 or 103."""
    multiprocessors: int
    max_shared: int
    """Bytes of shared memory that one block may use."""


class Context(Protocol):
    """The same object shape at recording and in serving. A launch without any `with` goes to stream "main"."""

    hardware: Hardware

    def stream(self, name: str) -> AbstractContextManager[None]:
        """Launches inside go to stream `name`, after everything launched so far on the enclosing stream."""

    def wait(self, name: str) -> None:
        """The next launch on the current stream starts after everything launched so far on stream `name`."""

    def prefetch(self) -> AbstractContextManager[None]:
        """Launches inside only warm caches: they write nothing."""

    def cuda(
        self, file: str, kernel: str, *, threads: int, constants: Mapping[str, Any] = {},
        max_registers: int | None = None, pdl: bool = False, cluster: int = 1, cooperative: bool = False,
    ) -> CudaKernel:  # fmt: skip
        """The `extern "C" __global__` function `kernel` of the candidate's file `file` (from the candidate's root).

        `threads` of a block along x; `constants` are macros; `pdl`: programmatic dependent launch; `cluster`: blocks
        along x that share a cluster; `cooperative`: all blocks run at once. Launch it with
        `kernel[grid](*arguments, shared_bytes=0)`; see `cuda.py` for the arguments' types.
        """

    def scalar(self, type: str, value: bool | int | float) -> Scalar:
        """A scalar of another type than Python's own would have: `ctx.scalar("u64", n)`."""

    def tensor_map(
        self, tensor: torch.Tensor, block_shape: Sequence[int], *, swizzle: int = 0, padding: str = "zero",
        round_to_tf32: bool = False,
    ) -> TensorMap:  # fmt: skip
        """A CUDA kernel's `const __grid_constant__ CUtensorMap` over a buffer or a view of one, in boxes.

        `swizzle` in bytes (0, 32, 64, 128); what lies outside of the tensor reads as `padding` ("zero" or "nan").
        A Triton kernel takes Triton's TensorDescriptor instead.
        """

    def peers(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A device table of 64-bit addresses, one a rank: a pointer to i64 for a Triton kernel, `T* const*` for CUDA."""


class RecordingContext:
    """The recorder's Context: keeps which stream and role the next launch has."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.current = MAIN
        self.role = Role.COMPUTE
        self.on_cuda: Callable[[CudaLaunch], None] = _outside_of_launch
        self.on_peers: Callable[[Sequence[torch.Tensor]], torch.Tensor] = _no_peers
        self._waits: dict[str, list[str]] = {}
        self._launched: set[str] = set()

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        enclosing, self.current = self.current, name
        self._add_wait(enclosing)
        try:
            yield
        finally:
            self.current = enclosing

    def wait(self, name: str) -> None:
        if name not in self._launched:
            raise ValueError(f"wait({name!r}): nothing was launched on that stream; known: {sorted(self._launched)}")
        self._add_wait(name)

    @contextmanager
    def prefetch(self) -> Iterator[None]:
        before, self.role = self.role, Role.PREFETCH
        try:
            yield
        finally:
            self.role = before

    def cuda(
        self, file: str, kernel: str, *, threads: int, constants: Mapping[str, Any] = {},
        max_registers: int | None = None, pdl: bool = False, cluster: int = 1, cooperative: bool = False,
    ) -> CudaKernel:  # fmt: skip
        options = {
            "threads": threads, "max_registers": max_registers, "cluster": cluster, "launch_pdl": pdl,
            "launch_cooperative_grid": cooperative,
        }  # fmt: skip
        return CudaKernel(file, kernel, dict(constants), options, lambda launch: self.on_cuda(launch))

    def scalar(self, type: str, value: bool | int | float) -> Scalar:
        if type not in SCALARS:
            raise ValueError(f"scalar({type!r}): known are {', '.join(sorted(SCALARS))}")
        return Scalar(type, value)

    def tensor_map(
        self, tensor: torch.Tensor, block_shape: Sequence[int], *, swizzle: int = 0, padding: str = "zero",
        round_to_tf32: bool = False,
    ) -> TensorMap:  # fmt: skip
        return TensorMap(tensor, tuple(block_shape), swizzle, padding, round_to_tf32)

    def peers(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.on_peers(tuple(tensors))

    def take_waits(self) -> tuple[str, ...]:
        """The waits of a launch on the current stream, which is hereby launched."""
        self._launched.add(self.current)
        return tuple(self._waits.pop(self.current, ()))

    def _add_wait(self, name: str) -> None:
        waits = self._waits.setdefault(self.current, [])
        if name != self.current and name in self._launched and name not in waits:
            waits.append(name)


def _outside_of_launch(launch: CudaLaunch) -> NoReturn:
    raise Refused("record.launch_outside", f"kernel {launch.function!r} is launched outside of launch()")


def _no_peers(tensors: Sequence[torch.Tensor]) -> NoReturn:
    raise Refused("record.launch_outside", "ctx.peers() makes tables of buffers, which launch() alone is given")
