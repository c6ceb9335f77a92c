"""Hardware profiles: peaks from datasheets, ceilings where we measured them. Data in hardware.toml."""

import difflib
import tomllib
from functools import cache
from importlib.resources import files

from pydantic import Field, ValidationError

from ..errors import UserError
from ..records import Frozen


class Ceiling(Frozen):
    """What one card was seen to do, with how it was measured."""

    read: tuple[tuple[float, float], ...] = Field(description="(bytes of one launch, bytes per second), increasing")
    launch_seconds: float = Field(description="a dependent one-block kernel inside a CUDA graph")
    source: str

    def read_rate(self, size: float) -> float:
        """Bytes per second for one launch that reads `size` bytes: linear in log(size), constant beyond the ends.

        Below the smallest size that was measured launches are bound by latency, which the caller accounts for.
        """
        from math import log

        points = self.read
        if size <= points[0][0]:
            return points[0][1]
        for (low, low_rate), (high, high_rate) in zip(points, points[1:], strict=False):
            if size <= high:
                return low_rate + (high_rate - low_rate) * log(size / low) / log(high / low)
        return points[-1][1]


class Hardware(Frozen):
    """One GPU. Rates in bytes or flops per second, sizes in bytes."""

    name: str
    title: str
    cuda_name: str = Field(description="what CUDA calls the card")
    target: int = Field(description="compute capability x 10: 90 or 103")
    multiprocessors: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_multiprocessor: int
    shared_per_block: int
    l2_bytes: int
    datasheet_bytes_per_second: float
    datasheet_flops_bf16: float
    source: str
    ceiling: Ceiling | None = None

    def physical_floor_seconds(self, moved_bytes: int, flops: int = 0) -> float:
        """The least time the datasheet allows for `moved_bytes` and `flops`; anything faster is impossible."""
        return max(moved_bytes / self.datasheet_bytes_per_second, flops / self.datasheet_flops_bf16)


@cache
def profiles() -> dict[str, Hardware]:
    """Every known profile by name."""
    path = files(__package__) / "hardware.toml"
    try:
        return {name: Hardware(name=name, **entry) for name, entry in tomllib.loads(path.read_text("utf-8")).items()}
    except (ValidationError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: {error}", "correct the hardware profile") from error


def profile(name: str) -> Hardware:
    """The profile called `name`; UserError with the nearest name when there is none."""
    known = profiles()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"unknown hardware {name!r}", f"{hint}known: {', '.join(sorted(known))}")
    return known[name]


def profile_of(cuda_name: str) -> Hardware | None:
    """The profile of the card that CUDA calls `cuda_name`; None where there is none."""
    return next((one for one in profiles().values() if one.cuda_name == cuda_name), None)
