"""The judge's own kernels (judge_kernels.cu) and the same digest on a host."""

from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING

from .driver import Driver, Handle, Shape

if TYPE_CHECKING:
    import numpy

IMAGE = "judge_kernels.ptx"
NAMES = ("judge_digest", "judge_noise", "judge_freshen", "judge_delay")
_THREADS, _MAX_BLOCKS = 256, 2048
_BYTES_A_BLOCK = 8 * _THREADS * 4
_MASK = (1 << 64) - 1


def image() -> bytes:
    """The PTX, ended as the driver wants it."""
    return resources.files(__package__).joinpath(IMAGE).read_bytes() + b"\0"


class JudgeKernels:
    """The four kernels, loaded once for a worker. `scratch` holds the digest's two sums."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        module = driver.load(image())
        self._digest, self._noise, self._freshen, self._delay = (driver.function(module, name) for name in NAMES)
        self._sums = driver.allocate(16)

    def digest(self, ranges: Iterable[tuple[int, int]], key: tuple[int, int], stream: Handle) -> str:
        """128 bits (hex) over the bytes of (address, size) ranges, in order. Waits for the device.

        Addresses are multiples of 8. Equal to `host_digest` of the same bytes.
        """
        import ctypes

        sums = (ctypes.c_uint64 * 2)()
        self._driver.upload(self._sums, ctypes.addressof(sums), 16)
        first = 0
        for address, size in ranges:
            arguments = _words(address, size, first, *key, self._sums)
            self._driver.launch(self._digest, _shape(size), arguments, stream)
            first += -(-size // 8)
        self._driver.synchronize()
        self._driver.download(ctypes.addressof(sums), self._sums, 16)
        return f"{sums[0]:016x}{sums[1]:016x}"

    def noise(self, address: int, size: int, seed: int, stream: Handle) -> None:
        """Fills memory with noise drawn from `seed`."""
        if size:
            self._driver.launch(self._noise, _shape(size), _words(address, size, seed), stream)

    def freshen(self, address: int, size: int, seed: int, mask: int, stream: Handle) -> None:
        """Flips bits drawn from `seed` where the 64-bit `mask`, repeated, allows it."""
        if size:
            self._driver.launch(self._freshen, _shape(size), _words(address, size, seed, mask), stream)

    def delay(self, nanoseconds: int, stream: Handle) -> None:
        """Keeps `stream` busy for so long."""
        self._driver.launch(self._delay, Shape((1, 1, 1), 1), _words(nanoseconds), stream)


def host_digest(parts: Iterable[bytes], key: tuple[int, int]) -> str:
    """What `JudgeKernels.digest` gives for ranges that hold these bytes."""
    import numpy

    low = high = first = 0
    for part in parts:
        words = numpy.frombuffer(part + bytes(-len(part) % 8), "<u8")
        mixed = mix(words ^ drawn(key[0], first, len(words)))
        low += int(mixed.sum(dtype=numpy.uint64))
        high += int(mix(mixed + numpy.uint64(key[1])).sum(dtype=numpy.uint64))
        first += len(words)
    return f"{low & _MASK:016x}{high & _MASK:016x}"


def drawn(key: int, first: int, count: int) -> "numpy.ndarray":
    """Words `first` to `first + count` of the noise of `key`."""
    import numpy

    index = numpy.arange(first + 1, first + count + 1, dtype=numpy.uint64)
    return mix(numpy.uint64(key) + index * numpy.uint64(0x9E3779B97F4A7C15))


def mix(words: "numpy.ndarray") -> "numpy.ndarray":
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    import numpy

    words = (words ^ (words >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return words ^ (words >> numpy.uint64(31))


def _words(*values: int) -> tuple[bytes, ...]:
    return tuple((value & _MASK).to_bytes(8, "little") for value in values)


def _shape(size: int) -> Shape:
    return Shape((max(1, min(_MAX_BLOCKS, -(-size // _BYTES_A_BLOCK))), 1, 1), _THREADS)
