"""Verdicts as data. A verdict is a pure function of recorded check results (see `rule`)."""

from enum import StrEnum

from pydantic import Field

from ..claims.cells import Cell
from ..records import Frozen
from ..timing.result import Timing
from .pack import KernelPack


class Status(StrEnum):
    """The five things that can become of a candidate. `not_run` is never a pass."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"
    NOT_RUN = "not_run"


class Outcome(StrEnum):
    """The result of one check."""

    PASS = "pass"
    FAIL = "fail"
    INVALID = "invalid"
    NOT_RUN = "not_run"


class CheckResult(Frozen):
    """One check (C1 to C22, see README.md) or stage of the judge, and what came of it."""

    check: str = Field(description="C1 ... C22, or record, plan, compile")
    title: str
    outcome: Outcome
    reason: str | None = Field(default=None, description="stable reason id when the outcome is not pass")
    message: str = Field(default="", description="what is wrong and by how much; shown to agents")
    figures: dict[str, float | int | str] = Field(default_factory=dict)


class TensorError(Frozen):
    """Error of one produced tensor against the float64 oracle, beside the plain path's own, relative to row scale."""

    tensor: str
    values: int
    median: float
    p999: float
    maximum: float
    plain_median: float
    plain_p999: float
    plain_maximum: float


class KernelAudit(Frozen):
    """What the compiled device code of one kernel says, for one target."""

    kernel: str
    target: str = Field(description="sm_90 or sm_103")
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    mma_types: tuple[str, ...]
    conversions: dict[str, int] = Field(description="conversion instruction -> count, from SASS")
    local_loads: int = Field(default=0, description="LDL instructions: spills and arrays in local memory")
    local_stores: int = Field(default=0, description="STL instructions")
    barriers: int = Field(default=0, description="BAR instructions: waits of a whole block")
    uneven_sums: int = Field(default=0, description="sums over lanes that leave each lane another last bit")
    writable_globals: int = Field(default=0, description="bytes of global variables that the code may write")
    code_bytes: int
    compiler: str


class WorkloadResult(Frozen):
    """What was checked and found at one workload."""

    workload: str
    axes: dict[str, int]
    held_out: bool
    launches: int
    trials: int
    distributions: tuple[str, ...]
    errors: tuple[TensorError, ...]


class TimedCell(Frozen):
    """What is known of the time of one workload on one card."""

    hardware: str
    workload: str
    cell: Cell
    timing: Timing | None = Field(default=None, description="where the cell is measured: stock path, floors, samples")


class Note(Frozen):
    """Something in a candidate's text that a reader may want to look at; advice that decides nothing."""

    file: str
    line: int
    what: str
    text: str = Field(description="the line, quoted: printable, and bounded")


class Verdict(Frozen):
    """The judge's ruling on one candidate."""

    schema_version: int = 1
    model: str
    op: str
    status: Status
    reason: str | None = Field(default=None, description="reason id of the first failed check; None when accepted")
    message: str = ""
    candidate_digest: str
    contract_digest: str
    judge_digest: str
    config: dict[str, bool | int | float | str]
    checks: tuple[CheckResult, ...]
    workloads: tuple[WorkloadResult, ...] = ()
    audits: tuple[KernelAudit, ...] = ()
    cells: tuple[TimedCell, ...] = Field(default=(), description="one for each card and declared workload")
    plan: KernelPack | None = Field(default=None, description="launch plan at the first workload, for the report")
    notes: tuple[Note, ...] = Field(default=(), description="the static scan's (C18); never decisive")
    executor: str = Field(description="interpreter or gpu, with the device")
    sandbox: str = Field(description="what confined the candidate's code")
    toolchain: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict, description="wall time by stage")


def rule(checks: tuple[CheckResult, ...], required: tuple[str, ...]) -> tuple[Status, str | None, str]:
    """Status, reason id and message that follow from the check results.

    invalid beats rejected (a broken reference proves nothing); a required check that did not run is `not_run`;
    accepted needs every required check to have passed.
    """
    for outcome, status in ((Outcome.INVALID, Status.INVALID), (Outcome.FAIL, Status.REJECTED)):
        for check in checks:
            if check.outcome is outcome:
                return status, check.reason, check.message
    passed = {check.check for check in checks if check.outcome is Outcome.PASS}
    for name in required:
        if name not in passed:
            found = next((c for c in checks if c.check == name), None)
            reason = (found and found.reason) or f"{name}.not_run"
            why = (found and found.message) or "the check did not run"
            return Status.NOT_RUN, reason, f"required check {name} did not run: {why}"
    return Status.ACCEPTED, None, ""
