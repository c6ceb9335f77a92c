"""Design spaces: what may vary in a kernel, as data beside the kernel (`*.space.toml`)."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field, model_validator

from fasttrack_validation.records import Frozen, canonical_json

from .. import strict_toml

ConfigValue = bool | int | float | str
Config = dict[str, ConfigValue]

MAX_CONFIGURATIONS = 65_536


class InFlight(Frozen):
    """What one program of the matching configurations has under way at once (see agents/floor.py).

    Tiles of `unit_bytes` times the product of `tile`; as many at once as `ahead` times the product of `stages`.
    """

    when: Config = Field(default={}, description="applies to configurations that agree with all of it")
    unit_bytes: int = Field(ge=1, description="bytes of one element of the tile")
    tile: tuple[str, ...] = Field(min_length=1, description="parameters whose product is the tile's element count")
    stages: tuple[str, ...] = Field(default=(), description="parameters whose product is the tiles under way")
    ahead: int = Field(default=1, ge=1, description="tiles under way that no parameter sets")
    program_bytes: int | None = Field(default=None, ge=1, description="what a program reads in all, if not just that")


class Space(Frozen):
    """A design space: parameters with the values worth trying, what to start from, and what cannot work."""

    op: str
    entry: str = Field(description="the kernel file, beside this one")
    parameters: dict[str, tuple[ConfigValue, ...]] = Field(min_length=1)
    default: Config
    exclude: tuple[Config, ...] = Field(default=(), description="partial configurations: all that agree are left out")
    in_flight: tuple[InFlight, ...] = ()

    @model_validator(mode="after")
    def _sane(self) -> "Space":
        for name, values in self.parameters.items():
            if len({canonical_json(value) for value in values}) != max(1, len(values)):
                raise ValueError(f"parameter {name!r} has no values, or one of them twice")
        size = math.prod(len(values) for values in self.parameters.values())
        if size > MAX_CONFIGURATIONS:
            raise ValueError(f"{size} configurations, more than {MAX_CONFIGURATIONS}; list fewer values")
        for part in (*self.exclude, *(layout.when for layout in self.in_flight)):
            for name, value in part.items():
                if not _listed(value, self.parameters.get(name, ())):
                    raise ValueError(f"{name} = {value!r} is not a parameter with one of its values")
        if not all(self.exclude):
            raise ValueError("an exclusion without a parameter leaves nothing to try")
        for name in (name for layout in self.in_flight for name in (*layout.tile, *layout.stages)):
            if not all(type(value) is int and value > 0 for value in self.parameters.get(name, ("",))):
                raise ValueError(f"in_flight names {name!r}, which is not a parameter of positive integers")
        if not self.holds(self.default):
            raise ValueError("the default does not give each parameter one of its values, or is excluded")
        return self

    def holds(self, config: Config) -> bool:
        """Whether `config` sets every parameter to a listed value and nothing else, and no exclusion matches."""
        if set(config) != set(self.parameters):
            return False
        if not all(_listed(config[name], values) for name, values in self.parameters.items()):
            return False
        return not any(_agrees(config, exclusion) for exclusion in self.exclude)

    def configurations(self) -> Iterator[Config]:
        """Every configuration that is not excluded, in the order of the file."""
        for values in itertools.product(*self.parameters.values()):
            config = dict(zip(self.parameters, values, strict=True))
            if self.holds(config):
                yield config

    def layout(self, config: Config) -> InFlight | None:
        """The first statement about bytes in flight that applies to `config`."""
        return next((layout for layout in self.in_flight if _agrees(config, layout.when)), None)


def parse(text: str, path: Path) -> Space:
    """The design space in `text`. Raises UserError naming `path`, the key and the line."""
    return strict_toml.parse(text, Space, path)


def _agrees(config: Config, part: Config) -> bool:
    return all(_same(config[name], value) for name, value in part.items())


def _same(left: ConfigValue, right: ConfigValue) -> bool:
    # In Python 1 == True == 1.0; to a kernel they are three configurations.
    return canonical_json(left) == canonical_json(right)


def _listed(value: ConfigValue, values: tuple[ConfigValue, ...]) -> bool:
    return any(_same(value, other) for other in values)
