"""What became of a cell of the performance grid, as it is kept: measured, failed, or not run with its reason."""

from typing import Annotated, Literal

from pydantic import Field

from ..contracts.grid import CellSpec
from ..numerics.calibrate import Ruling
from ..records import Frozen
from ..timing.clocks import Conditions
from ..timing.comparison import Comparison
from ..timing.session import Method
from ..timing.statistics import Interval

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Path(Frozen):
    """One path through the cell."""

    microseconds: Interval
    samples: tuple[float, ...] = Field(description="microseconds a call, in the order taken")
    kernels: tuple[str, ...] = Field(
        description="what one call launches, read from its captured graph: kernels in the order of its nodes, then "
        "copies and fills by kind"
    )
    prepare_seconds: float = Field(description="repacking weights and binding, of one copy")
    first_call_seconds: float = Field(description="the first call: compiling, loading")
    extra_bytes: int = Field(description="device memory of one copy beyond the tensors that it is given")
    rulings: tuple[Ruling, ...] = Field(description="its results against the oracle, before anything was timed")

    @property
    def launches(self) -> int:
        """How many."""
        return len(self.kernels)


class Call(Frozen):
    """One call of a kernel file by the specialised path."""

    op: str
    kernel: str


class Measured(Frozen):
    """Both paths, timed against each other after both were found right."""

    kind: Literal["measured"] = "measured"
    specialised: Path
    stock: Path
    comparison: Comparison = Field(description="specialised against stock: the ratio is above one where it is faster")
    target_floor_us: float = Field(description="the bytes at the read ceiling measured in this run")
    physical_floor_us: float = Field(description="bytes and flops at datasheet peaks")
    bytes: int = Field(description="what must be moved at least in the arrangement of the specialised path")
    stock_bytes: int = Field(description="the same in the arrangement of the stock path, which may read more")
    ceiling_bytes_per_second: float
    method: Method
    conditions: Conditions
    examined_rows: tuple[int, ...] = Field(description="rows of the batch that were held against the oracle")
    calls: tuple[Call, ...] = Field(description="of the specialised path, in launch order")


    @property
    def by_bytes(self) -> float:
        """The factor of the gain that comes of bytes no longer read."""
        return self.stock_bytes / self.bytes

    @property
    def by_speed(self) -> float:
        """The factor that is left: bytes per second of the specialised path over the stock path's."""
        return self.comparison.ratio / self.by_bytes


class Failed(Frozen):
    """It ran, and gave no figure."""

    kind: Literal["failed"] = "failed"
    stage: Literal["path", "results", "timing", "card"]
    reason: str = Field(min_length=1)


class NotRun(Frozen):
    """It did not run."""

    kind: Literal["not_run"] = "not_run"
    reason: str = Field(min_length=1)


Outcome = Annotated[Measured | Failed | NotRun, Field(discriminator="kind")]


class Subject(Frozen):
    """What a cell's figures are about, as digests: another one, and they are stale."""

    decode: Sha256 = Field(description="the decode path's own sources")
    kernels: Sha256 = Field(description="the files of every op that the cell's layer has, fused ones included")
    dispatch: Sha256 = Field(description="kernel and configuration of every such op at this TP and these rows")
    contract: Sha256 = Field(description="the exams of these ops")
    harness: Sha256 = Field(description="what measures, and the stock path")


class Record(Frozen):
    """One cell, kept as soon as it is known."""

    spec: CellSpec
    hardware: str
    scope: str = Field(description="what the figures are about")
    subject: Subject
    machine: dict[str, str] = Field(description="GPU, driver, versions, switches of the processes that were timed")
    outcome: Outcome
