"""Quantities with their units: times and token rates. Ratios are taken of base units only, so no unit can enter one."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from ..records import Frozen


class Unit(StrEnum):
    """Units that records may use; base units are the second and the token per second."""

    SECOND = "s"
    MILLISECOND = "ms"
    MICROSECOND = "us"
    NANOSECOND = "ns"
    TOKENS_PER_SECOND = "tok/s"
    KILOTOKENS_PER_SECOND = "ktok/s"
    TOKENS_PER_MINUTE = "tok/min"

    @property
    def factor(self) -> float:
        """Base units in one of this."""
        return _FACTOR[self]

    @property
    def is_time(self) -> bool:
        """Whether less is better: a time, and not a rate."""
        return self in _TIMES


_FACTOR = {
    Unit.SECOND: 1.0, Unit.MILLISECOND: 1e-3, Unit.MICROSECOND: 1e-6, Unit.NANOSECOND: 1e-9,
    Unit.TOKENS_PER_SECOND: 1.0, Unit.KILOTOKENS_PER_SECOND: 1e3, Unit.TOKENS_PER_MINUTE: 1 / 60,
}  # fmt: skip
_TIMES = frozenset({Unit.SECOND, Unit.MILLISECOND, Unit.MICROSECOND, Unit.NANOSECOND})

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Quantity(Frozen):
    """One figure and its unit."""

    value: Positive
    unit: Unit

    @property
    def base(self) -> float:
        """In seconds, or in tokens per second."""
        return self.value * self.unit.factor


class Series(Frozen):
    """Many figures in one unit, in the order in which they were taken."""

    unit: Unit
    values: tuple[Positive, ...] = Field(min_length=1)

    @property
    def base(self) -> tuple[float, ...]:
        """In seconds, or in tokens per second."""
        return tuple(value * self.unit.factor for value in self.values)
