"""What a performance cell may say: measured, or not measured with its reason. A model is never a measurement."""

from typing import Annotated, Literal

from pydantic import Field

from ..records import Frozen


class Modelled(Frozen):
    """An estimate by a stated model. Ranks candidates; is never shown as a measurement, never becomes a ratio."""

    microseconds: float
    model: str = Field(description="identifier and version of the model, as documented in validation/timing/model.py")
    hardware: str
    bound: str = Field(description="what the model says binds: launch, latency, bytes")


class Measured(Frozen):
    """A time taken on the named device by the named method."""

    kind: Literal["measured"] = "measured"
    microseconds: float = Field(gt=0)
    low: float = Field(gt=0, description="lower end of the 95 % interval, microseconds")
    high: float = Field(gt=0, description="upper end of the 95 % interval, microseconds")
    repetitions: int = Field(ge=1)
    method: str
    hardware: str


class NotMeasured(Frozen):
    """No measurement, and why. An estimate may stand beside it, marked as modelled."""

    kind: Literal["not_measured"] = "not_measured"
    reason: str = Field(min_length=1)
    modelled: Modelled | None = None


Cell = Annotated[Measured | NotMeasured, Field(discriminator="kind")]


class Ratio(Frozen):
    """A derived speed-up: stock over candidate, both measured under the same conditions."""

    kind: Literal["ratio"] = "ratio"
    value: float
    low: float
    high: float


class Withheld(Frozen):
    """No multiplier, and why."""

    kind: Literal["withheld"] = "withheld"
    reason: str


def speedup(candidate: Cell, stock: Cell) -> Ratio | Withheld:
    """The speed-up of `candidate` over `stock`, or why there is none.

    A ratio exists only between two measurements taken on the same hardware by the same method; its interval is the
    conservative quotient of the two 95 % intervals.
    """
    for name, cell in (("candidate", candidate), ("stock path", stock)):
        if isinstance(cell, NotMeasured):
            return Withheld(reason=f"{name} not measured: {cell.reason}")
    if candidate.hardware != stock.hardware:
        return Withheld(reason=f"hardware differs: {candidate.hardware} against {stock.hardware}")
    if candidate.method != stock.method:
        return Withheld(reason=f"timing method differs: {candidate.method} against {stock.method}")
    return Ratio(
        value=stock.microseconds / candidate.microseconds,
        low=stock.low / candidate.high,
        high=stock.high / candidate.low,
    )
