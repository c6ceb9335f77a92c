"""What the worker needs of a device: the part of CUDA's driver API that replay uses, and how it fails.

`cuda_driver.py` is the real one, `fake.py` the same on host memory. Addresses, streams, events, modules, functions and
graphs are opaque; every call raises DeviceError when the driver reports one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Handle = Any


class DeviceError(Exception):
    """The driver reported an error. `code` is CUDA's name of it, such as CUDA_ERROR_ILLEGAL_ADDRESS."""

    def __init__(self, code: str, where: str) -> None:
        super().__init__(f"{code} in {where}")
        self.code, self.where = code, where


@dataclass(frozen=True)
class Facts:
    """The device that a worker holds. Memory in bytes."""

    name: str
    capability: int
    """Compute capability without the dot: 90, 103."""
    driver: int
    """CUDA version that the driver supports, as 1000 major + 10 minor."""
    memory: int
    multiprocessors: int


@dataclass(frozen=True)
class Shape:
    """How one kernel is launched. `grid` counts blocks, clusters included; a cluster lies along x."""

    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    programmatic: bool = False
    cooperative: bool = False


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map as cuTensorMapEncodeTiled takes it: axes innermost first, strides in bytes without the first.

    `element` is a CUtensorMapDataType, `swizzle` a CUtensorMapSwizzle. Not interleaved; element strides are 1.
    """

    address: int
    element: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    nan_outside: bool = False


@dataclass(frozen=True)
class Captured:
    """An executable graph, and the names of its kernel nodes as the driver gives them, in no particular order."""

    graph: Handle
    kernels: tuple[str, ...]


class Driver(Protocol):
    """One device and its only context."""

    facts: Facts

    def load(self, image: bytes) -> Handle: ...
    def unload(self, module: Handle) -> None: ...
    def function(self, module: Handle, name: str) -> Handle: ...
    def parameters(self, function: Handle) -> tuple[tuple[int, int], ...]:
        """(offset, size) in bytes of every parameter, in order."""

    def prepare(self, function: Handle, shared_bytes: int, cluster: int) -> None:
        """Allows the launches of a function so much dynamic shared memory and such clusters."""

    def allocate(self, size: int) -> int: ...
    def free(self, address: int) -> None: ...
    def upload(self, address: int, host: int, size: int) -> None:
        """Copies from host address `host`; done when it returns."""

    def download(self, host: int, address: int, size: int) -> None: ...
    def copy(self, target: int, source: int, size: int, stream: Handle) -> None: ...
    def stream(self) -> Handle: ...
    def event(self) -> Handle: ...
    def record(self, event: Handle, stream: Handle) -> None: ...
    def wait(self, stream: Handle, event: Handle) -> None: ...
    def elapsed_ns(self, start: Handle, end: Handle) -> float: ...
    def synchronize(self) -> None:
        """Waits for the whole device; raises what any earlier launch did wrong."""

    def begin_capture(self, stream: Handle) -> None: ...
    def end_capture(self, stream: Handle) -> Captured: ...
    def launch_graph(self, graph: Handle, stream: Handle) -> None: ...
    def destroy_graph(self, graph: Handle) -> None: ...
    def reset_persisting_l2(self) -> None:
        """Turns every cache line that was to stay in L2 into an ordinary one."""

    def launch(self, function: Handle, shape: Shape, arguments: Sequence[bytes], stream: Handle) -> None: ...
    def tensor_map(self, request: TensorMap) -> bytes:
        """The 128 bytes of an encoded tensor map."""
