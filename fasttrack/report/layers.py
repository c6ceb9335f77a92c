"""Cells of the performance grid as a report shows them: one layer of one rank, stock beside specialised, launch by launch.

The records are read as data. That their figures are about the sources that are there can be told here for the decode
path's own files; for the rest it takes the contract's code, which a gate does not run: `fasttrack report --write` asks it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, digest_files

DIRECTORY = "evidence/grid"
_WORDS = {"kda": "KDA", "mla": "MLA", "moe": "MoE"}


class _Read(BaseModel):
    """A part of a record: what is not shown is not read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Interval(_Read):
    """A median with its confidence interval, in microseconds."""

    median: float
    low: float
    high: float


class Summary(_Read):
    """Errors relative to the root mean square of their row."""

    values: int
    median: float
    p999: float
    maximum: float


class Ruling(_Read):
    """One tensor of a path against the oracle, beside the plain path's own error."""

    tensor: str
    decision: str
    candidate: Summary
    plain: Summary


class Path(_Read):
    """One path: its time and its launches in order."""

    microseconds: Interval
    kernels: tuple[str, ...]
    rulings: tuple[Ruling, ...] = ()
    extra_bytes: int = 0


class Comparison(_Read):
    """Stock over specialised: above one where the specialised path is faster."""

    standing: str
    ratio: float
    low: float
    high: float


class Call(_Read):
    """An op, or several, and the file that computed it."""

    op: str
    kernel: str


class Conditions(_Read):
    """Of the card, while the cell was timed."""

    sm_mhz_lowest: int | None = None
    throttles: tuple[str, ...] = ()
    unavailable: str | None = None


class Measured(_Read):
    """Both paths, timed against each other."""

    kind: Literal["measured"]
    specialised: Path
    stock: Path
    comparison: Comparison
    target_floor_us: float
    physical_floor_us: float
    bytes: int
    stock_bytes: int | None = None
    calls: tuple[Call, ...] = ()
    conditions: Conditions = Conditions()

    @property
    def by_bytes(self) -> float | None:
        """The factor of the gain that comes of bytes that the stock path's arrangement reads and this one does not."""
        return self.stock_bytes / self.bytes if self.stock_bytes and self.bytes else None

    @property
    def by_speed(self) -> float | None:
        """The factor that is left: bytes per second of the specialised path over the stock path's."""
        return self.comparison.ratio / self.by_bytes if self.by_bytes else None


class Unmeasured(_Read):
    """No figure, and why."""

    kind: Literal["failed", "not_run"]
    reason: str


class Spec(_Read):
    """Which cell."""

    span: str
    kind: str
    tp: int
    rows: int
    width: int = 1
    context: int | None = None


class Subject(_Read):
    """What the figures are about; the other digests take the contract's code."""

    decode: str


class _Record(_Read):
    spec: Spec
    subject: Subject
    hardware: str
    scope: str
    machine: dict[str, str] = {}
    outcome: Annotated[Measured | Unmeasured, Field(discriminator="kind")]


class Layer(Frozen):
    """One cell, with the file that it was read from (relative to the model directory)."""

    source: str
    spec: Spec
    hardware: str
    scope: str
    outcome: Measured | Unmeasured
    machine: dict[str, str] = {}

    @property
    def name(self) -> str:
        """As a person calls it."""
        spec = self.spec
        extra = [f"verify width {spec.width}"] * (spec.width > 1) + [f"{spec.context} tokens cached"] * bool(spec.context)
        kind = " + ".join(_WORDS.get(part, part) for part in spec.kind.split("_"))
        what = kind if spec.kind == spec.span else f"{kind} {spec.span}"
        return ", ".join([what, f"TP{spec.tp}", f"{spec.rows} row{'s' * (spec.rows != 1)}", *extra])

    @property
    def conditions(self) -> str:
        """Machine, versions, clocks."""
        held = [value if name == "device" else f"{name} {value}" for name, value in self.machine.items()
                if name in ("device", "driver", "cuda", "torch", "triton")]  # fmt: skip
        if isinstance(self.outcome, Measured):
            seen = self.outcome.conditions
            if seen.sm_mhz_lowest is not None:
                held.append(f"SM clock {seen.sm_mhz_lowest} MHz at the lowest")
                held.append(f"throttling: {', '.join(seen.throttles) or 'none seen'}")
            elif seen.unavailable:
                held.append(f"clocks: {seen.unavailable}")
        return "; ".join(held)

    @property
    def measured(self) -> bool:
        """Whether there is a figure."""
        return isinstance(self.outcome, Measured)


def layers(files: Mapping[str, bytes], decode: Iterable[str] = (), stale: Mapping[str, str] = {}) -> tuple[Layer, ...]:
    """Every record of the grid in a model directory, by hardware, kind, TP, context and rows.

    `decode`: the decode path's own sources; figures about others are none. `stale`: path of a record -> why its figures
    are about something else, as far as it took the contract to tell. UserError for a file that is no such record.
    """
    now = digest_files({name: files[name] for name in decode if name in files})
    found = []
    for path in files:
        if not re.fullmatch(rf"{DIRECTORY}/[^/]+/[^/]+\.json", path):
            continue
        try:
            record = _Record.model_validate(json.loads(files[path]))
        except (ValueError, RecursionError, ValidationError) as error:
            raise UserError(f"{path} is no record of the performance grid: {str(error).splitlines()[0]}",
                            "restore it from git, or run the cell again: `fasttrack grid run`") from error  # fmt: skip
        outcome = record.outcome
        changed = stale.get(path) or ("decode" if record.subject.decode != now else "")
        if changed and isinstance(outcome, Measured):
            outcome = Unmeasured(kind="not_run", reason=f"what is kept is about other sources ({changed})")
        elif changed and outcome.kind == "failed":
            outcome = Unmeasured(kind="failed", reason=f"{outcome.reason}; that was with other sources ({changed})")
        found.append(
            Layer(source=path, spec=record.spec, hardware=record.hardware, scope=record.scope, outcome=outcome,
                  machine=record.machine)
        )  # fmt: skip
    return tuple(sorted(found, key=lambda one: (
        one.hardware, one.spec.kind, one.spec.tp, one.spec.context or 0, one.spec.width, one.spec.rows)))  # fmt: skip
