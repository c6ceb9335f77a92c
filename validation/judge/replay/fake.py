"""A device on host memory, behind the same worker: what protocol, faults and recovery are tested with, without a GPU.

Its device code is Python text (`CODE_MARK`, then functions named as the entry), which sees memory through `Call`.
Streams are simulated: what is enqueued runs when the device is waited for, in the order in which it could start, each
launch at its start, so that a missing wait shows as it would. Only tests start a worker with it.
"""

import bisect
import ctypes
import inspect
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy

from . import kernels
from .driver import Captured, DeviceError, Facts, Shape, TensorMap

CODE_MARK = b"fake device code\n"
MEMORY_BYTES = 1 << 28
MAX_SHARED_BYTES = 232448
KERNEL_NS, COPY_NS = 1000, 100
_FIRST_ADDRESS, _GRANULE, _GAP = 0x7F0000000000, 512, 1 << 20
_PORTABLE_CLUSTER = 8
_MAP = struct.Struct("<QBBBx5Q4Q5I")


def make(specification: str) -> "FakeDriver":
    """A fake device. `specification` may name a file: as long as it exists, the device is lost."""
    if specification and os.path.exists(specification):
        raise DeviceError("CUDA_ERROR_DEVICE_UNAVAILABLE", "cuInit")
    return FakeDriver()


@dataclass(frozen=True)
class Call:
    """What a kernel sees beside its arguments."""

    driver: "FakeDriver"
    grid: tuple[int, int, int]
    threads: int

    def array(self, address: int, dtype: str, count: int) -> numpy.ndarray:
        """`count` elements at a device address, live. Memory that is not allocated is an illegal access."""
        return self.driver.array(address, dtype, count)


@dataclass(frozen=True)
class _Function:
    call: Callable
    sizes: tuple[int, ...]
    formats: tuple[str, ...]
    nanoseconds: Callable[[tuple], int]


@dataclass(eq=False)
class _Event:
    version: int = 0
    times: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class _Stream:
    clock: int = 0
    items: deque = field(default_factory=deque)


class FakeDriver:
    """See driver.Driver."""

    def __init__(self) -> None:
        self.facts = Facts("fake device", 90, 13000, MEMORY_BYTES, 4)
        self.memory: dict[int, bytearray] = {}
        self.modules = 0
        self.graphs = 0
        self._next = _FIRST_ADDRESS
        self._streams: list[_Stream] = []
        self._events: list[_Event] = []
        self._captured: list | None = None
        self._wide: set[int] = set()
        self._broken: DeviceError | None = None

    def load(self, image: bytes) -> dict:
        self._sound("cuModuleLoadData")
        if image == kernels.image():
            module = _judge_kernels()
        elif image.startswith(CODE_MARK):
            module = {"numpy": numpy, "DeviceError": DeviceError}
            exec(compile(image[len(CODE_MARK) :], "device code", "exec"), module)
        else:
            raise DeviceError("CUDA_ERROR_INVALID_IMAGE", "cuModuleLoadData")
        self.modules += 1
        return module

    def unload(self, module: dict) -> None:
        self.modules -= 1

    def function(self, module: dict, name: str) -> _Function:
        if name not in module:
            raise DeviceError("CUDA_ERROR_NOT_FOUND", f"cuModuleGetFunction {name}")
        found = module[name]
        formats = tuple(parameter.annotation for parameter in list(inspect.signature(found).parameters.values())[1:])
        sizes = tuple(struct.calcsize(one) for one in formats)
        return _Function(found, sizes, formats, getattr(found, "nanoseconds", lambda given: KERNEL_NS))

    def parameters(self, function: _Function) -> tuple[tuple[int, int], ...]:
        found, offset = [], 0
        for size in function.sizes:
            offset = -(-offset // min(size, 64)) * min(size, 64)
            found.append((offset, size))
            offset += size
        return tuple(found)

    def prepare(self, function: _Function, shared_bytes: int, cluster: int) -> None:
        if shared_bytes > MAX_SHARED_BYTES:
            raise DeviceError("CUDA_ERROR_INVALID_VALUE", "cuFuncSetAttribute MAX_DYNAMIC_SHARED_SIZE_BYTES")
        if cluster > _PORTABLE_CLUSTER:
            self._wide.add(id(function))

    def allocate(self, size: int) -> int:
        self._sound("cuMemAlloc")
        if sum(map(len, self.memory.values())) + size > MEMORY_BYTES:
            raise DeviceError("CUDA_ERROR_OUT_OF_MEMORY", f"cuMemAlloc of {size} bytes")
        address, self._next = self._next, self._next + -(-size // _GRANULE) * _GRANULE + _GAP
        self.memory[address] = bytearray(size)
        return address

    def free(self, address: int) -> None:
        del self.memory[address]

    def array(self, address: int, dtype: str, count: int) -> numpy.ndarray:
        kind = numpy.dtype(dtype)
        starts = sorted(self.memory)
        start = starts[bisect.bisect_right(starts, address) - 1] if starts and address >= starts[0] else 0
        if start not in self.memory or address - start + count * kind.itemsize > len(self.memory[start]):
            raise DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS", "a launch")
        if address % kind.itemsize:
            raise DeviceError("CUDA_ERROR_MISALIGNED_ADDRESS", "a launch")
        return numpy.frombuffer(self.memory[start], kind, count, address - start)

    def upload(self, address: int, host: int, size: int) -> None:
        self._sound("cuMemcpyHtoD")
        self.array(address, "u1", size)[:] = numpy.frombuffer(ctypes.string_at(host, size), "u1")

    def download(self, host: int, address: int, size: int) -> None:
        self.synchronize()
        ctypes.memmove(host, self.array(address, "u1", size).tobytes(), size)

    def copy(self, target: int, source: int, size: int, stream: _Stream) -> None:
        def move() -> None:
            self.array(target, "u1", size)[:] = self.array(source, "u1", size).copy()

        self._enqueue(stream, "run", (move, COPY_NS))

    def stream(self) -> _Stream:
        self._streams.append(_Stream())
        return self._streams[-1]

    def event(self) -> _Event:
        self._events.append(_Event())
        return self._events[-1]

    def record(self, event: _Event, stream: _Stream) -> None:
        self._enqueue(stream, "record", event)

    def wait(self, stream: _Stream, event: _Event) -> None:
        self._enqueue(stream, "wait", event)

    def elapsed_ns(self, start: _Event, end: _Event) -> float:
        return float(end.times[end.version] - start.times[start.version])

    def synchronize(self) -> None:
        self._sound("cuCtxSynchronize")
        try:
            while any(stream.items for stream in self._streams):
                self._step()
        except DeviceError as error:
            self._broken = DeviceError(error.code, "cuCtxSynchronize")
            raise self._broken from error
        for event in self._events:  # nothing is left that could wait for an earlier record
            event.times = {version: at for version, at in event.times.items() if version == event.version}

    def begin_capture(self, stream: _Stream) -> None:
        self._captured = []

    def end_capture(self, stream: _Stream) -> Captured:
        captured, self._captured = self._captured, None
        self.graphs += 1
        return Captured(captured, tuple(what[2] for _, kind, what in captured if kind == "run" and len(what) == 3))

    def launch_graph(self, graph: list, stream: _Stream) -> None:
        for item in graph:
            self._enqueue(*item)

    def destroy_graph(self, graph: list) -> None:
        self.graphs -= 1

    def launch(self, function: _Function, shape: Shape, arguments: Sequence[bytes], stream: _Stream) -> None:
        if not 1 <= shape.threads <= 1024 or min(shape.grid) < 1:
            raise DeviceError("CUDA_ERROR_INVALID_VALUE", "cuLaunchKernelEx")
        if shape.grid[0] % shape.cluster or (shape.cluster > _PORTABLE_CLUSTER and id(function) not in self._wide):
            raise DeviceError("CUDA_ERROR_INVALID_CLUSTER_SIZE", "cuLaunchKernelEx")
        given = [
            data if kind == "128s" else struct.unpack(f"<{kind}", data)[0]
            for kind, data in zip(function.formats, arguments, strict=True)
        ]
        call = Call(self, shape.grid, shape.threads)
        work = lambda: function.call(call, *given)  # noqa: E731
        self._enqueue(stream, "run", (work, function.nanoseconds(tuple(given)), function.call.__name__))

    def reset_persisting_l2(self) -> None:
        self._sound("cuCtxResetPersistingL2Cache")

    def tensor_map(self, request: TensorMap) -> bytes:
        rank = len(request.sizes)
        if request.address % 16 or any(stride % 16 for stride in request.strides) or any(b > 256 for b in request.box):
            raise DeviceError("CUDA_ERROR_INVALID_VALUE", "cuTensorMapEncodeTiled")
        pad = [0] * (5 - rank)
        fields = (*request.sizes, *pad, *request.strides, *pad, *request.box, *pad)
        return _MAP.pack(request.address, rank, request.element, request.swizzle, *fields).ljust(128, b"\0")

    def _sound(self, where: str) -> None:
        if self._broken is not None:  # a context does not outlive such an error
            raise DeviceError(self._broken.code, where)

    def _enqueue(self, stream: _Stream, kind: str, what) -> None:
        if self._captured is not None:
            self._captured.append((stream, kind, what))
            return
        if kind == "record":
            what.version += 1
        version = what.version if kind in ("record", "wait") else 0
        stream.items.append((kind, what, version))

    def _step(self) -> None:
        """Everything that takes no time, then the one piece of work that could start first."""
        while any([_passed(stream) for stream in self._streams]):
            continue
        ready = [stream for stream in self._streams if stream.items and stream.items[0][0] == "run"]
        if ready:
            first = min(ready, key=lambda stream: stream.clock)
            _, (work, duration, *_), _ = first.items.popleft()
            work()
            first.clock += duration


def _passed(stream: _Stream) -> bool:
    """Takes records, and waits whose event has been, off the head of a stream; whether there were any."""
    any_passed = False
    while stream.items and stream.items[0][0] != "run":
        kind, event, version = stream.items[0]
        if kind == "record":
            event.times[version] = stream.clock
        elif version and version not in event.times:
            break
        else:
            stream.clock = max(stream.clock, event.times.get(version, 0))
        stream.items.popleft()
        any_passed = True
    return any_passed


def read_tensor_map(data: bytes) -> TensorMap:
    """What `FakeDriver.tensor_map` encoded."""
    address, rank, element, swizzle, *rest = _MAP.unpack(data[: _MAP.size])
    sizes, strides, box = rest[:rank], rest[5 : 5 + rank - 1], rest[9 : 9 + rank]
    return TensorMap(address, element, tuple(sizes), tuple(strides), tuple(box), swizzle)


def _judge_kernels() -> dict[str, Callable]:
    def judge_digest(call: Call, data: "Q", size: "Q", first: "Q", key0: "Q", key1: "Q", sums: "Q") -> None:  # noqa: F821
        padded = call.array(data, "u1", size).tobytes() + bytes(-size % 8)
        mixed = kernels.mix(numpy.frombuffer(padded, "<u8") ^ kernels.drawn(key0, first, len(padded) // 8))
        both = call.array(sums, "u8", 2)
        both += numpy.array(
            [mixed.sum(dtype=numpy.uint64), kernels.mix(mixed + numpy.uint64(key1)).sum(dtype=numpy.uint64)]
        )

    def judge_noise(call: Call, data: "Q", size: "Q", seed: "Q") -> None:  # noqa: F821
        call.array(data, "u8", size // 8)  # it writes words
        call.array(data, "u1", size)[:] = kernels.drawn(seed, 0, -(-size // 8)).view("u1")[:size]

    def judge_freshen(call: Call, data: "Q", size: "Q", seed: "Q", mask: "Q") -> None:  # noqa: F821
        flips = kernels.drawn(seed, 0, -(-size // 8)) & numpy.uint64(mask)
        call.array(data, "u1", size)[:] ^= flips.view("u1")[:size]

    def judge_delay(call: Call, nanoseconds: "Q") -> None:  # noqa: F821
        return None

    judge_delay.nanoseconds = lambda given: given[0]
    made = (judge_digest, judge_noise, judge_freshen, judge_delay)
    return {one.__name__: one for one in made}
