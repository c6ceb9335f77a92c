"""What timing an op at one workload gave, as data."""

from pydantic import Field

from ..claims.cells import Measured
from ..records import Frozen
from .clocks import Conditions
from .comparison import Comparison
from .plausibility import Fault


class Timing(Frozen):
    """One workload's session: candidate and stock path on one card, and what the figures rest on."""

    candidate: Measured
    stock: Measured
    comparison: Comparison = Field(description="candidate against stock path")
    launches: int
    stock_launches: int
    physical_floor_us: float = Field(description="the contract's bytes and flops at datasheet peaks")
    target_floor_us: float = Field(description="the contract's bytes at the read ceiling of this card in this run")
    ceiling_bytes_per_second: float
    conditions: Conditions
    disturbed: str | None = Field(default=None, description="why the times are no measurement (clocks.disturbance)")
    stock_flags: dict[str, str]
    samples: dict[str, tuple[float, ...]] = Field(description="contestant -> microseconds per call, in order")
    faults: tuple[Fault, ...]
