"""From a finished run to the record that the design report and the pull request are rendered from."""

import inspect
import json
from collections.abc import Iterable, Iterator

from fasttrack_validation.claims.cells import Modelled
from fasttrack_validation.coverage import Stage as CoverageStage
from fasttrack_validation.coverage import coverage, load_plan
from fasttrack_validation.judge.verdict import KernelAudit, Outcome

from .. import evidence
from ..confinement.check import ChangedFile
from ..package import Bundle, Document
from ..selection import times
from .data import (
    Attempt,
    Decision,
    Exam,
    Grid,
    Maintenance,
    OpReport,
    Prediction,
    Provenance,
    ReportData,
    Risk,
)
from .risks import risky_mechanisms

OWNER_PARAGRAPH = "report/owner.md"

# What no run without a GPU can show, whatever it says of everything else.
UNSEEN_BY_INTERPRETATION = (
    ("races between the threads of a block, between programs and between streams",
     "interpreted programs run one after another; a sanitizer on a GPU shows them"),
)  # fmt: skip


def archive_document(bundle: Bundle) -> Document:
    """Every candidate of the run with its verdict, as the raw file behind "alternatives tried"."""
    picked = {pick.candidate.digest() for pick in bundle.picks}
    rows = [
        {
            "round": number,
            "candidate": evaluation.proposal.candidate.digest(),
            "note": evaluation.proposal.note,
            "config": evaluation.proposal.candidate.config,
            "status": evaluation.verdict.status,
            "reason": evaluation.verdict.reason,
            "message": evaluation.verdict.message,
            "picked": evaluation.proposal.candidate.digest() in picked,
            "modelled_microseconds": {
                f"{hardware}/{workload}": time.microseconds
                for (hardware, workload), time in times(evaluation.verdict).items()
                if not time.measured
            },
            "seconds": evaluation.verdict.seconds,
            **({"parents": list(evaluation.proposal.parents)} if evaluation.proposal.parents else {}),
        }
        for number, evaluation in enumerate(bundle.evaluations)
    ]
    value = {
        "run": bundle.request.run, "op": bundle.request.op, "agent": bundle.request.agent, "seed": bundle.request.seed,
        "stopped": bundle.stopped, "dropped": list(bundle.dropped), "candidates": rows,
    }  # fmt: skip
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return Document(f"evidence/archive/{bundle.request.op}.json", text)


def report_data(bundle: Bundle, statement: evidence.Statement, written: Iterable[Document]) -> ReportData:
    """The report's record. `written` are the files that the run changes, report pages left out."""
    request, manifest = bundle.request, bundle.directory.manifest
    contract = bundle.contract.op(request.op)
    source = evidence.file_name(statement)
    archive = archive_document(bundle).path
    verdicts = [verdict for pick in bundle.picks for verdict in pick.confirmations]
    rows = coverage(load_plan(bundle.contract.model), verdicts, frozenset())
    picked = {pick.candidate.digest() for pick in bundle.picks}
    cells = statement.predicate.performance
    plan = verdicts[0].plan
    files = {name: text.encode() for name, text in bundle.picks[0].candidate.files.items()}
    author, fallback = bundle.author
    return ReportData(
        model=request.model,
        directory=f"models/{request.model}",
        problem=f"{request.op}: {inspect.getdoc(type(contract)).splitlines()[0]}",
        ops=(
            OpReport(
                statement=statement, source=source, plan=plan, plan_source=source if plan else None,
                predictions=_predictions(bundle, contract, source), rationale="",
            ),
        ),
        manifest_ops=tuple(manifest.ops),
        envelope={
            f"{entry.hardware}, TP{entry.tp}": f"rows {entry.rows[0]} to {entry.rows[1]}, {', '.join(entry.dtypes)}"
            for entry in manifest.envelope
        },
        switch_off="nothing serves these kernels yet: an engine that adopts them keeps its stock path and its own switch",
        files=tuple(_changed(bundle, document) for document in written),
        attempts=tuple(
            Attempt(
                candidate=evaluation.proposal.candidate.digest()[:12], op=request.op, round=number,
                status=evaluation.verdict.status, reason=evaluation.verdict.reason,
                message=_told(evaluation),
                picked=evaluation.proposal.candidate.digest() in picked, source=archive,
            )
            for number, evaluation in enumerate(bundle.evaluations)
        ),
        exams=tuple(
            Exam(name=row.title, reason=row.reason)
            for row in rows
            if row.stage is CoverageStage.ACCURACY and row.outcome is Outcome.NOT_RUN
        ),
        grid=Grid(
            hardware=tuple(dict.fromkeys(cell.hardware for cell in cells)),
            tp=tuple(dict.fromkeys(cell.tp for cell in cells)),
            buckets=tuple(dict.fromkeys(cell.bucket for cell in cells)),
        ),
        risks=risky_mechanisms(files, [plan] if plan else []) + tuple(_audited(statement.predicate.verdict.audits)),
        provenance=Provenance(
            agent=request.agent, seed=request.seed, rounds=len(bundle.evaluations), base_commit=request.base,
            author=author, fallback_identity=fallback, source=archive, agent_model=bundle.agent_model,
            **({"cost": bundle.bill} if bundle.bill else {}),
        ),
        owner_paragraph=_owner_paragraph(bundle),
        maintenance=Maintenance(
            owner=manifest.model.owner, review=str(manifest.model.review_by), removal=str(manifest.model.remove_by)
        ),
        decisions=_decisions(bundle, source, archive, rows),
        not_run=tuple(
            (row.title, row.reason)
            for row in rows
            if row.stage is CoverageStage.NUMERICS and row.outcome is not Outcome.PASS
        )
        + UNSEEN_BY_INTERPRETATION,
    )  # fmt: skip


def _audited(audits: Iterable[KernelAudit]) -> Iterator[Risk]:
    """What the machine code shows: the edge of the register file, sums whose lanes disagree."""
    for audit in audits:
        spilled = audit.spill_store_bytes + audit.spill_load_bytes
        if spilled or audit.registers >= 255:
            what = f"{audit.kernel} for {audit.target}: {audit.registers} registers, {spilled} bytes spilled"
            yield Risk(mechanism="register pressure", where=what, ask="does the next compiler still fit it?")
        if audit.uneven_sums:
            what = f"{audit.kernel} for {audit.target}: {audit.uneven_sums} sums"
            yield Risk(mechanism="sum with another last bit in each lane", where=what, ask="which lane's bits are stored?")


def _decisions(bundle: Bundle, source: str, archive: str, rows) -> tuple[Decision, ...]:
    decisions = [Decision(question="Should this design live in the model directory?", source=source)]
    if any(not time.measured for pick in bundle.picks for time in pick.times.values()):
        question = "No cell is backed by a measurement: may modelled picks stand in the dispatch table until a GPU decides?"
        decisions.append(Decision(question=question, source=archive))
    if any(row.outcome is Outcome.NOT_RUN and row.stage is not CoverageStage.PERFORMANCE for row in rows):
        question = "Which of the stages that were not run must run before this leaves draft?"
        decisions.append(Decision(question=question, source=source))
    return tuple(decisions)


def _told(evaluation) -> str:
    """The configuration, and what came of it or where it came from."""
    config = " ".join(f"{key}={value}" for key, value in sorted(evaluation.proposal.candidate.config.items()))
    return f"{config or 'no configuration'}: {evaluation.verdict.message or evaluation.proposal.note}"


def _predictions(bundle: Bundle, contract, source: str) -> tuple[Prediction, ...]:
    """One row for each workload, with the floor on every card."""
    rows: dict[str, list] = {}
    for baseline in bundle.baselines:
        rows.setdefault(baseline.bucket.workload, []).append(baseline)
    return tuple(
        Prediction(
            workload=name, bytes=baselines[0].bytes, flops=contract.cost(_workload(contract, name)).flops,
            floors=tuple(floor for baseline in baselines if (floor := _floor(baseline))), source=source,
        )
        for name, baselines in rows.items()
    )  # fmt: skip


def _floor(baseline) -> Modelled | None:
    if baseline.floor_microseconds is None:
        return None
    return Modelled(
        microseconds=baseline.floor_microseconds, model="bytes at datasheet bandwidth",
        hardware=baseline.bucket.hardware, bound="bytes",
    )  # fmt: skip


def _workload(contract, name: str):
    return next(workload for workload in contract.workloads() if workload.name == name)


def _changed(bundle: Bundle, document: Document) -> ChangedFile:
    known = document.path in bundle.base_files
    return ChangedFile(
        path=f"models/{bundle.request.model}/{document.path}", status="M" if known else "A",
        old_mode="100644" if known else "000000", new_mode="100644", bytes=len(document.text.encode()),
    )  # fmt: skip


def _owner_paragraph(bundle: Bundle) -> str:
    path = bundle.directory.path / OWNER_PARAGRAPH
    return path.read_text("utf-8") if path.is_file() else ""
