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


class Parameter(Frozen):
    """One knob of a kernel: the values worth trying, and the one to start from."""

    values: tuple[ConfigValue, ...] = Field(min_length=1)
    default: ConfigValue

    @model_validator(mode="after")
    def _sane(self) -> "Parameter":
        keys = [canonical_json(value) for value in self.values]
        if len(set(keys)) != len(keys):
            raise ValueError("a value is listed twice")
        if canonical_json(self.default) not in keys:
            raise ValueError(f"default {self.default!r} is not among the values {list(self.values)}")
        return self


class Exclusion(Frozen):
    """Configurations that cannot work: all that agree with `when`."""

    when: Config = Field(min_length=1)
    why: str = Field(min_length=1)


class InFlight(Frozen):
    """How the parameters set the bytes that one program has under way at once (see agents/floor.py)."""

    unit_bytes: int = Field(ge=1, description="bytes of one element of the tile")
    tile: tuple[str, ...] = Field(min_length=1, description="parameters whose product is the tile's element count")
    stages: tuple[str, ...] = Field(default=(), description="parameters whose product is the tiles under way at once")


class Space(Frozen):
    """A design space: parameters, exclusions and, where the kernel streams memory, its bytes in flight."""

    parameter: dict[str, Parameter] = Field(min_length=1)
    exclude: tuple[Exclusion, ...] = ()
    in_flight: InFlight | None = None

    @model_validator(mode="after")
    def _sane(self) -> "Space":
        size = math.prod(len(parameter.values) for parameter in self.parameter.values())
        if size > MAX_CONFIGURATIONS:
            raise ValueError(f"{size} configurations, more than {MAX_CONFIGURATIONS}; list fewer values")
        for exclusion in self.exclude:
            for name, value in exclusion.when.items():
                if name not in self.parameter:
                    raise ValueError(f"exclude names {name!r}, which is not a parameter")
                if not _listed(value, self.parameter[name].values):
                    raise ValueError(f"exclude names {name}={value!r}, which is not among its values")
        for name in (*self.in_flight.tile, *self.in_flight.stages) if self.in_flight else ():
            if name not in self.parameter:
                raise ValueError(f"in_flight names {name!r}, which is not a parameter")
            if not all(type(value) is int and value > 0 for value in self.parameter[name].values):
                raise ValueError(f"in_flight names {name!r}, whose values are not all positive integers")
        if not self.holds(self.default):
            raise ValueError("the default configuration is excluded")
        return self

    @property
    def default(self) -> Config:
        """The configuration of defaults."""
        return {name: parameter.default for name, parameter in self.parameter.items()}

    def holds(self, config: Config) -> bool:
        """Whether `config` sets every parameter to a listed value and nothing else, and no exclusion matches."""
        if set(config) != set(self.parameter):
            return False
        if not all(_listed(config[name], parameter.values) for name, parameter in self.parameter.items()):
            return False
        return not any(all(_same(config[k], v) for k, v in exclusion.when.items()) for exclusion in self.exclude)

    def configurations(self) -> Iterator[Config]:
        """Every configuration that is not excluded, in the order of the file."""
        for values in itertools.product(*(parameter.values for parameter in self.parameter.values())):
            config = dict(zip(self.parameter, values, strict=True))
            if self.holds(config):
                yield config


def parse(text: str, path: Path) -> Space:
    """The design space in `text`. Raises UserError naming `path`, the key and the line."""
    return strict_toml.parse(text, Space, path)


def _same(left: ConfigValue, right: ConfigValue) -> bool:
    # In Python 1 == True == 1.0; to a kernel they are three configurations.
    return canonical_json(left) == canonical_json(right)


def _listed(value: ConfigValue, values: tuple[ConfigValue, ...]) -> bool:
    return any(_same(value, other) for other in values)
