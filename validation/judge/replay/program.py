"""A plan with its device code, loaded: launches bound to a slot, and enqueued in plan order on its streams."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..device_code.records import DeviceCode
from ..pack import KernelPack, Role
from .arguments import parameters
from .driver import DeviceError, Driver, Handle, Shape
from .kernels import JudgeKernels
from .slots import Slot


class Refused(Exception):
    """A plan and its device code do not fit each other. `reason` is a stable id (`execution.*`)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Bound:
    """One launch of a plan with the parameters of one slot."""

    name: str
    function: Handle
    shape: Shape
    parameters: tuple[bytes, ...]
    stream: str
    waits: tuple[str, ...]
    role: Role


class Streams:
    """The streams of a plan, the stream that they fork from and join, and events to use and use again."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.origin = driver.stream()
        self._named: dict[str, Handle] = {}
        self._made: list[Handle] = []
        self._events: list[Handle] = []
        self._used = 0

    def __getitem__(self, name: str) -> Handle:
        if name not in self._named:
            if len(self._named) == len(self._made):
                self._made.append(self._driver.stream())
            self._named[name] = self._made[len(self._named)]
        return self._named[name]

    def rename(self) -> None:
        """Another plan, with names of its own, uses the same streams: a worker that saw many names has no more of them
        than one plan needs."""
        self._named.clear()

    def follow(self, later: Handle, earlier: Handle) -> None:
        """What is enqueued on `later` from now on waits for everything on `earlier` so far."""
        if self._used == len(self._events):
            self._events.append(self._driver.event())
        event = self._events[self._used]
        self._used += 1
        self._driver.record(event, earlier)
        self._driver.wait(later, event)

    def rewind(self) -> None:
        """Lets events be used again: nothing that is enqueued still needs them."""
        self._used = 0


class Program:
    """The modules of one plan. Loading anew is what resets the kernels' global symbols."""

    def __init__(self, driver: Driver, pack: KernelPack, codes: Mapping[str, DeviceCode]) -> None:
        self._driver, self._pack = driver, pack
        self._modules: list[Handle] = []
        self._kernels: dict[str, tuple[DeviceCode, Handle, tuple[int, ...]]] = {}
        try:
            for key in pack.kernels:
                self._kernels[key] = self._load(key, codes)
        except (DeviceError, Refused):
            self.unload()
            raise

    def _load(self, key: str, codes: Mapping[str, DeviceCode]) -> tuple[DeviceCode, Handle, tuple[int, ...]]:
        if key not in codes:
            raise Refused("execution.no_code", f"there is no device code for kernel {key}")
        code = codes[key]
        module = self._driver.load(code.cubin)
        self._modules.append(module)
        function = self._driver.function(module, code.entry)
        launches = [launch for launch in self._pack.launches if launch.kernel == key]
        self._driver.prepare(function, max([code.shared_bytes, *(one.shared_bytes for one in launches)]), code.ctas)
        return code, function, tuple(size for _, size in self._driver.parameters(function))

    def bind(self, slot: Slot) -> tuple[Bound, ...]:
        """The plan's launches on a slot. Raises Refused where parameters differ in number or size from the code's."""
        bound = []
        for number, launch in enumerate(self._pack.launches):
            code, function, sizes = self._kernels[launch.kernel]
            name = f"launch {number} ({self._pack.kernels[launch.kernel].function})"
            given = parameters(launch, code, slot)
            if tuple(map(len, given)) != sizes:
                message = f"{name}: parameters of {[len(one) for one in given]} bytes, the code takes {list(sizes)}"
                raise Refused("execution.parameters", message)
            x, y, z = launch.grid
            shape = Shape(
                grid=(x * code.ctas, y, z) if code.trailing_scratch else (x, y, z),
                threads=32 * code.warps,
                shared_bytes=code.shared_bytes if code.trailing_scratch else launch.shared_bytes,
                cluster=code.ctas,
                programmatic=code.launch_pdl,
                cooperative=code.launch_cooperative_grid,
            )
            if math.prod(shape.grid) % code.ctas:
                message = f"{name}: {shape.grid} blocks do not divide into clusters of {code.ctas}"
                raise Refused("execution.cluster", message)
            bound.append(Bound(name, function, shape, given, launch.stream, launch.waits, launch.role))
        return tuple(bound)

    def unload(self) -> None:
        """Unloads every module."""
        while self._modules:
            self._driver.unload(self._modules.pop())


def enqueue(
    driver: Driver, kernels: JudgeKernels, streams: Streams, launches: Sequence[Bound], roles: frozenset[Role],
    delays: Mapping[str, int],
) -> None:  # fmt: skip
    """Enqueues one run of a plan. Its streams fork from the origin, and everything joins there.

    `delays` keeps named streams busy for so many nanoseconds before each of their launches, so that a launch which
    should have waited for them starts too early. A launch whose role is left out still waits: what follows it on its
    stream counts on that. Raises DeviceError naming the launch.

    A programmatic launch overlaps with the launch before it on its stream; the first of a run, or one that waits for
    another stream, has none that it could overlap with.
    """
    origin, started = streams.origin, set()
    last_was_kernel: set[str] = set()
    for launch in launches:
        stream = streams[launch.stream]
        if launch.stream not in started:
            streams.follow(stream, origin)
            started.add(launch.stream)
        for name in launch.waits:
            if name in started:
                streams.follow(stream, streams[name])
                last_was_kernel.discard(launch.stream)
        if launch.role not in roles:
            continue
        if launch.stream in delays:
            kernels.delay(delays[launch.stream], stream)
            last_was_kernel.discard(launch.stream)
        shape = launch.shape
        if shape.programmatic and launch.stream not in last_was_kernel:
            shape = Shape(**{**vars(shape), "programmatic": False})
        try:
            driver.launch(launch.function, shape, launch.parameters, stream)
        except DeviceError as error:
            raise DeviceError(error.code, f"{launch.name}: {error.where}") from error
        last_was_kernel.add(launch.stream)
    for name in sorted(started):
        streams.follow(origin, streams[name])
