"""What became of a cell of a server's grid, as it is kept: measured, failed, or not run with its reason."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..performance.records import NotRun
from ..performance.serving_grid import ServingCell
from ..records import Frozen, canonical_json, sha256
from .answers import Counters, Run
from .figures import Figures, Objective
from .servers import Arm

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Request(Frozen):
    """One request of a load. When each of its pieces came is in the raw file, where one was kept."""

    sent: float
    first: float
    latency: float
    pieces: int
    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int


class Round(Frozen):
    """One load, and its figures."""

    tool: str
    seed: int
    seconds: float
    repeated_ngrams: float | None
    counters: Counters
    figures: Figures
    requests: tuple[Request, ...]

    @classmethod
    def of(cls, run: Run, figures: Figures) -> "Round":
        """What is kept of a load, times to the microsecond."""
        return cls(
            tool=run.tool, seed=run.seed, seconds=round(run.seconds, 6), repeated_ngrams=run.repeated_ngrams,
            counters=run.counters, figures=figures,
            requests=tuple(
                Request(
                    sent=round(one.sent, 6), first=round(one.first, 6), latency=round(one.latency, 6),
                    pieces=len(one.gaps) + 1, input_tokens=one.input_tokens, cached_tokens=one.cached_tokens,
                    output_tokens=one.output_tokens,
                )
                for one in run.answers
            ),
        )  # fmt: skip


class Side(Frozen):
    """One arm in a cell: its loads in the order of their rounds."""

    arm: Arm
    conditions: dict[str, Any] = Field(description="what the file of servers states of it, as a measurement record's fields")
    model: str
    version: str | None = Field(description="of the engine, as the server says; None where it does not")
    rounds: tuple[Round, ...] = Field(min_length=1)


class Measured(Frozen):
    """Both arms, loaded in turns. In even rounds (from 0) the first of `order` goes first, in odd ones the other."""

    kind: Literal["measured"] = "measured"
    stock: Side
    specialised: Side
    order: tuple[Arm, Arm]

    @model_validator(mode="after")
    def _turns(self) -> "Measured":
        if len(self.stock.rounds) != len(self.specialised.rounds):
            raise ValueError("rounds: as many of each arm, for they took turns")
        return self


class Failed(Frozen):
    """It ran, and gave no figure."""

    kind: Literal["failed"] = "failed"
    stage: Literal["server", "load"]
    reason: str = Field(min_length=1)


Outcome = Annotated[Measured | Failed | NotRun, Field(discriminator="kind")]


class Asking(Frozen):
    """What was asked of both arms, beside the cell: equal for both, and part of what a figure is about."""

    data: str
    osl: int
    requests: int
    warm_up: int
    temperature: float
    rate: float | None = Field(description="requests a second of an open loop")
    objective: Objective | None
    decode_only: bool


class Record(Frozen):
    """One cell, kept as soon as it is known. `conditions` is what it may be shown together with."""

    cell: ServingCell
    hardware: str
    asking: Asking
    subject: Sha256 = Field(description="of the model directory's decode path, kernels and dispatch tables")
    conditions: Sha256 = Field(description="of all that was stated and seen of both servers, and of how it was asked")
    draft_tokens: int
    floor: tuple[int, int] | None = Field(description="(bytes, flops) that one GPU cannot do without in a step")
    taken: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    outcome: Outcome


MACHINE = (
    "identity.commit", "identity.build", "identity.engine", "identity.engine_version", "hardware.sku", "hardware.driver",
    "hardware.sm_clock_mhz", "hardware.memory_clock_mhz", "hardware.clocks_locked", "hardware.throttled",
    "hardware.interconnect",
)  # fmt: skip
"""What is one over a whole grid, whatever a cell's TP and speculation: commit, driver, clock state"""


def machine(side: Side) -> dict[str, Any]:
    """What MACHINE names of an arm, as it was stated or seen; what is unknown is absent."""
    found = {}
    for path in MACHINE:
        value: Any = side.conditions
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    if side.version is not None:
        found["identity.engine_version"] = side.version
    found["tool"] = ", ".join(sorted({one.tool for one in side.rounds}))
    return found


def conditions_digest(*stated: Any) -> str:
    """One digest over what keeps figures apart: commit, driver, clocks, options, tool, data, of both arms."""
    return sha256(canonical_json(list(stated)).encode())
