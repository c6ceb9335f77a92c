"""Hardware profiles: peaks from data sheets, ceilings where we measured them. Data in hardware.toml."""

import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TypeVar

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


class Datasheet(Frozen):
    """What a vendor publishes of one GPU. Rates in bytes or flops per second, sizes in bytes."""

    name: str
    title: str
    multiprocessors: int = Field(description="streaming multiprocessors, or compute units")
    memory_bytes: int
    l2_bytes: int
    datasheet_bytes_per_second: float
    datasheet_flops_bf16: float = Field(description="dense")
    link_bytes_per_second: float = Field(description="to the GPUs of its domain, both directions together")
    link_domain: int = Field(description="GPUs that these links connect")
    source: str

    def physical_floor_seconds(self, moved_bytes: int, flops: int = 0) -> float:
        """The least time the datasheet allows for `moved_bytes` and `flops`; anything faster is impossible."""
        return max(moved_bytes / self.datasheet_bytes_per_second, flops / self.datasheet_flops_bf16)


class Hardware(Datasheet):
    """A GPU that the judge compiles for, with what a kernel may use of it."""

    cuda_name: str = Field(description="what CUDA calls the card")
    target: int = Field(description="compute capability x 10: 90 or 103")
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_multiprocessor: int
    shared_per_block: int
    ceiling: Ceiling | None = None


_Card = TypeVar("_Card", bound=Datasheet)


@cache
def datasheets() -> dict[str, Datasheet]:
    """Every GPU of hardware.toml by name, whether or not the judge compiles for it."""
    path = files(__package__) / "hardware.toml"
    try:
        return {
            name: (Hardware if "target" in entry else Datasheet)(name=name, **entry)
            for name, entry in tomllib.loads(path.read_text("utf-8")).items()
        }
    except (ValidationError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: {error}", "correct the hardware profile") from error


@cache
def profiles() -> dict[str, Hardware]:
    """Every GPU that the judge compiles for, by name."""
    return {name: card for name, card in datasheets().items() if isinstance(card, Hardware)}


def datasheet(name: str) -> Datasheet:
    """The GPU called `name`; UserError with the nearest name when there is none."""
    return _named(name, datasheets())


def profile(name: str) -> Hardware:
    """The GPU called `name` that the judge compiles for; UserError with the nearest name when there is none."""
    return _named(name, profiles())


def profile_of(cuda_name: str) -> Hardware | None:
    """The profile of the card that CUDA calls `cuda_name`; None where there is none."""
    return next((one for one in profiles().values() if one.cuda_name == cuda_name), None)


def _named(name: str, known: Mapping[str, _Card]) -> _Card:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"unknown hardware {name!r}", f"{hint}known: {', '.join(sorted(known))}")
    return known[name]
