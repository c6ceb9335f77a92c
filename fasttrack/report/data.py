"""What a design report is rendered from. Figures are read from evidence; prose that types figures is refused."""

from pydantic import Field, model_validator

from fasttrack_validation.claims.cells import Measured, Modelled, NotMeasured
from fasttrack_validation.judge.pack import KernelPack
from fasttrack_validation.judge.verdict import Outcome, Status, TensorError, Verdict
from fasttrack_validation.records import Frozen, canonical_json, sha256

from ..confinement.check import ChangedFile
from ..evidence import Name, OpName, PerformanceCell, Stage, Statement
from .exchange import Exchange, findings
from .kernels import Kernel
from .layers import Layer
from .model_level import ExamResult, RungResult, ServersResult
from .prose import Prose
from .token_records import Traced


class Prediction(Frozen):
    """What was expected of an op at a workload before anything ran: the least it can move, and the floor's model."""

    workload: str
    bytes: int = Field(ge=0, description="bytes that the op cannot do without")
    flops: int = Field(ge=0)
    floors: tuple[Modelled, ...] = Field(default=(), description="one for each card")
    source: str = Field(description="file, relative to the model directory")


class OpReport(Frozen):
    """One op: the statement of its judge, and the plan that the verdict is about."""

    statement: Statement
    source: str = Field(description="the statement's file, relative to the model directory")
    plan: KernelPack | None = None
    plan_source: str | None = None
    predictions: tuple[Prediction, ...] = ()
    rationale: Prose = Field(default="", description="the agent's own words; shown fenced as generated text")

    @property
    def op(self) -> str:
        """The op's name."""
        return self.verdict.op

    @property
    def verdict(self) -> Verdict:
        """The judge's ruling."""
        return self.statement.predicate.verdict

    @property
    def worst_errors(self) -> tuple[tuple[str, TensorError], ...]:
        """(workload, error) of the workload where each tensor's p99.9 error stands worst against the plain path's."""
        worst: dict[str, tuple[str, TensorError]] = {}
        for workload in self.verdict.workloads:
            for error in workload.errors:
                held = worst.get(error.tensor)
                if held is None or _excess(error) > _excess(held[1]):
                    worst[error.tensor] = (workload.workload, error)
        return tuple(worst.values())


def _excess(error: TensorError) -> tuple[float, float]:
    ratio = error.p999 / error.plain_p999 if error.plain_p999 else (float("inf") if error.p999 else 0.0)
    return ratio, error.p999


class Attempt(Frozen):
    """One candidate of the archive and what became of it."""

    candidate: str = Field(description="short id or digest")
    op: str
    round: int = Field(ge=0)
    status: Status
    reason: str | None = None
    message: str = ""
    picked: bool = False
    source: str = Field(description="its record, relative to the model directory")


class Exam(Frozen):
    """One exam that did not run, and why. Results come with their paired statistics, in evidence of their own."""

    name: str
    reason: str = Field(min_length=1)


class Grid(Frozen):
    """The cells that the contract asks for: every combination is shown, whatever was measured."""

    hardware: tuple[str, ...] = Field(min_length=1)
    tp: tuple[int, ...] = Field(min_length=1)
    buckets: tuple[str, ...] = Field(min_length=1)


class Place(Frozen):
    """One hardware and TP of the manifest's envelope."""

    hardware: str
    tp: int
    rows: tuple[int, int] = Field(description="inclusive")
    verify_width: int = 1
    dtypes: tuple[str, ...] = ()


class Standing(Frozen):
    """An op of the manifest that the change is not about."""

    op: OpName
    status: Status | None = Field(description="of the judge's statement; None where there is none")
    source: str | None = None


class Risk(Frozen):
    """A mechanism that deserves a reviewer's eye, found by reading the sources and the plan."""

    mechanism: str
    where: str
    ask: str = Field(description="what the reviewer should ask")


NOBODY = "no run of the lane is recorded"
"""The agent of kernels that came another way"""


class Provenance(Frozen):
    """Who and what made the change."""

    agent: str
    agent_model: str | None = None
    seed: int
    rounds: int = Field(ge=0)
    cost: str = Field(default="no paid requests", description="as the budget's ledger prints it")
    base_commit: str
    author: str = Field(description="name and address on the commit")
    fallback_identity: bool = Field(description="no person was configured when the commit was made")
    source: str = Field(description="the archive's summary, relative to the model directory")


class Maintenance(Frozen):
    """Who answers for the kernels and until when; from the manifest."""

    owner: str
    review: str = Field(description="ISO date")
    removal: str = Field(description="ISO date")
    obsolete_when: Prose = ""


class Decision(Frozen):
    """One question to the reviewer, tied to the evidence that answers it."""

    question: Prose
    source: str


class ReportData(Frozen):
    """Everything on the page."""

    model: Name
    title: str = Field(default="", description="the model's name for people")
    directory: str = Field(pattern="^[A-Za-z0-9_]+(/[A-Za-z0-9_]+)+$")
    problem: Prose
    ops: tuple[OpReport, ...]
    manifest_ops: tuple[OpName, ...]
    envelope: dict[str, str] = Field(description="what the path is validated for; outside it the stock path runs")
    switch_off: str = Field(description="how an operator turns the path off")
    files: tuple[ChangedFile, ...]
    attempts: tuple[Attempt, ...]
    exams: tuple[Exam, ...]
    grid: Grid
    risks: tuple[Risk, ...]
    provenance: Provenance
    owner_paragraph: str = Field(description="a person's own words; empty means that nothing leaves draft")
    maintenance: Maintenance
    decisions: tuple[Decision, ...]
    layers: tuple[Layer, ...] = Field(default=(), description="cells of the model's own grid")
    exchanges: tuple[Exchange, ...] = Field(default=(), description="records of several ranks, communication included")
    kernels: tuple[Kernel, ...] = Field(default=(), description="entry files that layers call or the change touches")
    places: tuple[Place, ...] = Field(default=(), description="the envelope, place by place")
    standings: tuple[Standing, ...] = ()
    sat: tuple[ExamResult, ...] = Field(default=(), description="exams with their results")
    rungs: tuple[RungResult, ...] = Field(default=(), description="of the numerics ladder, with their results")
    traced: tuple[Traced, ...] = Field(default=(), description="token by token, from the records beside each kept verdict")
    servers: tuple[ServersResult, ...] = Field(default=(), description="compared token by token on hardware of others")
    not_run: tuple[tuple[str, str], ...] = Field(default=(), description="(what, why) of other stages that did not run")

    @model_validator(mode="after")
    def _about_one_model(self) -> "ReportData":
        for op in self.ops:
            if op.statement.predicate.model != self.model or op.statement.predicate.stage is not Stage.JUDGE:
                raise ValueError(f"{op.source} is not a judge's statement about {self.model}")
            if op.plan is not None and (op.plan.op != op.op or op.plan_source is None):
                raise ValueError(f"the plan of {op.op} is for {op.plan.op}, or names no file")
        if len({op.op for op in self.ops}) != len(self.ops):
            raise ValueError("an op is reported twice")
        return self

    @property
    def evidence_digest(self) -> str:
        """SHA-256 over the statements and the grid's cells: what a decision or a pull request refers to."""
        digests = {op.op: sha256(op.statement.canonical_json().encode()) for op in self.ops}
        digests |= {layer.source: sha256(layer.canonical_json().encode()) for layer in self.layers}
        digests |= {one.source: sha256(one.canonical_json().encode()) for one in self.exchanges}
        for one in (*self.sat, *self.rungs, *self.servers):
            digests[f"{one.source} {getattr(one, 'exam', '')}{getattr(one, 'rung', '')}{getattr(one, 'tp', '')}"] = sha256(
                one.canonical_json().encode()
            )
        for one in self.traced:
            digests |= {f"{one.source} {name}": digest for name, digest in one.records.items()}
        return sha256(canonical_json(digests).encode())

    @property
    def accepted(self) -> int:
        """How many of the manifest's ops have an accepted verdict."""
        told = sum(op.verdict.status is Status.ACCEPTED and op.op in self.manifest_ops for op in self.ops)
        return told + sum(one.status is Status.ACCEPTED for one in self.standings)

    @property
    def not_sat(self) -> tuple[Exam, ...]:
        """Exams without a result."""
        return tuple(one for one in self.exams if one.name not in {result.exam for result in self.sat})

    @property
    def exam_standing(self) -> str:
        """For one glance: what came of the exams."""
        if not self.sat:
            return "not run"
        verdicts = [one.verdict for one in self.sat]
        return ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts))

    @property
    def recorded(self) -> bool:
        """Whether a run of the lane wrote the change."""
        return self.provenance.agent != NOBODY

    @property
    def radius(self) -> tuple[tuple[str, int, str, int], ...]:
        """(directory, files, what happened to them, bytes) of the files that differ, by directory."""
        groups: dict[str, list[ChangedFile]] = {}
        for file in self.files:
            groups.setdefault(file.path.rpartition("/")[0], []).append(file)
        words = {"A": "added", "M": "modified", "D": "deleted", "T": "type changed"}
        return tuple(
            (name, len(held), ", ".join(f"{n} {words[s]}" for s in words if (n := sum(f.status == s for f in held))),
             sum(f.bytes for f in held))
            for name, held in sorted(groups.items())
        )  # fmt: skip

    @property
    def measured_layers(self) -> tuple[Layer, ...]:
        """The cells of the model's grid that hold figures."""
        return tuple(layer for layer in self.layers if layer.measured)

    def cell(self, op: OpReport, hardware: str, tp: int, bucket: str) -> PerformanceCell:
        """The cell of an op; one that no evidence speaks about is not measured, for that reason."""
        for cell in op.statement.predicate.performance:
            if (cell.hardware, cell.tp, cell.bucket) == (hardware, tp, bucket):
                return cell
        absent = NotMeasured(reason="no evidence speaks about it")
        return PerformanceCell(hardware=hardware, tp=tp, bucket=bucket, candidate=absent, stock=absent)

    def cells(self, op: OpReport) -> tuple[PerformanceCell, ...]:
        """Every cell of the grid for an op."""
        return tuple(self.cell(op, hardware, tp, bucket) for hardware in self.grid.hardware for tp in self.grid.tp
                     for bucket in self.grid.buckets)  # fmt: skip

    @property
    def measured(self) -> int:
        """How many cells hold a measurement of the candidate."""
        return sum(isinstance(cell.candidate, Measured) for op in self.ops for cell in self.cells(op))

    @property
    def cell_count(self) -> int:
        """How many cells the grid asks for, over the manifest's ops."""
        grid = self.grid
        return len(self.manifest_ops) * len(grid.hardware) * len(grid.tp) * len(grid.buckets)

    @property
    def untested(self) -> tuple[tuple[str, str], ...]:
        """(what, why) for all that the grid, the exams, the manifest and the judge's checks ask for and did not get."""
        rows: list[tuple[str, str]] = []
        for op in self.ops:
            reasons: dict[str, int] = {}
            for cell in self.cells(op):
                if isinstance(cell.candidate, NotMeasured):
                    reasons[cell.candidate.reason] = reasons.get(cell.candidate.reason, 0) + 1
            rows += [
                (f"{op.op}: speed in {count} of {len(self.cells(op))} cells", why) for why, count in reasons.items()
            ]
            rows += [(f"{op.op}: {check.check}, {check.title}", check.message or "the check did not run")
                     for check in op.verdict.checks if check.outcome is Outcome.NOT_RUN]  # fmt: skip
        told = {op.op for op in self.ops} | {one.op for one in self.standings if one.status is not None}
        if silent := [op for op in self.manifest_ops if op not in told]:
            names = ", ".join(silent) if len(silent) <= 4 else f"{len(silent)} ops"
            rows.append((f"{names}: everything", "no statement of the judge"))
        rows += [(f"{'failed: ' * (one.outcome.kind == 'failed')}{one.hardware}: {one.name}", one.outcome.reason)
                 for one in self.layers if not one.measured]  # fmt: skip
        rows += [(f"{one.what} between GPUs, {' '.join(one.details[0])}", one.reason)
                 for one, _ in findings(self.exchanges) if one.outcome == "not_run"]  # fmt: skip
        return (*rows, *self.not_run, *((f"exam {exam.name}", exam.reason) for exam in self.not_sat))
