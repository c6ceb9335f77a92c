"""From a finished run to what the design report says beside evidence, and to the archive behind it."""

import inspect
import json
from collections.abc import Iterable

from fasttrack_validation.coverage import Stage as CoverageStage
from fasttrack_validation.coverage import coverage, load_plan
from fasttrack_validation.judge.verdict import Outcome

from .. import evidence
from ..package import Bundle, Document
from ..selection import times
from .data import Decision, Exam, Prediction, Provenance
from .page import ARCHIVE, floor
from .record import DesignRecord, RecordedOp, Touched

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
            **{
                f"{basis}_microseconds": {
                    f"{hardware}/{workload}": time.microseconds
                    for (hardware, workload), time in times(evaluation.verdict).items()
                    if time.basis == basis
                }
                for basis in ("measured", "modelled")
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
    return Document(f"{ARCHIVE}/{bundle.request.op}.json", text)


def record_of(bundle: Bundle, statement: evidence.Statement, written: Iterable[Document]) -> DesignRecord:
    """What the report says beside evidence. `written` are the files that the run changes, report pages left out."""
    request = bundle.request
    contract = bundle.contract.op(request.op)
    source = evidence.file_name(statement)
    archive = archive_document(bundle).path
    verdicts = [verdict for pick in bundle.picks for verdict in pick.confirmations]
    rows = coverage(load_plan(bundle.contract.model), verdicts, frozenset())
    author, fallback = bundle.author
    return DesignRecord(
        model=request.model,
        problem=f"{request.op}: {inspect.getdoc(type(contract)).splitlines()[0]}",
        switch_off="nothing serves these kernels yet: an engine that adopts them keeps its stock path and its own switch",
        ops=(RecordedOp(op=request.op, predictions=_predictions(bundle, contract, source)),),
        touched=tuple(
            Touched(path=document.path, status="M" if document.path in bundle.base_files else "A") for document in written
        ),
        exams=tuple(
            Exam(name=row.title, reason=row.reason)
            for row in rows
            if row.stage is CoverageStage.ACCURACY and row.outcome is Outcome.NOT_RUN
        ),
        provenance=Provenance(
            agent=request.agent, seed=request.seed, rounds=len(bundle.evaluations), base_commit=request.base,
            author=author, fallback_identity=fallback, source=archive, agent_model=bundle.agent_model,
            **({"cost": bundle.bill} if bundle.bill else {}),
        ),
        decisions=_decisions(bundle, source, archive, rows),
        not_run=tuple(
            (row.title, row.reason)
            for row in rows
            if row.stage is CoverageStage.NUMERICS and row.outcome is not Outcome.PASS
        )
        + (UNSEEN_BY_INTERPRETATION if any(verdict.executor.startswith("interpreter") for verdict in verdicts) else ()),
    )  # fmt: skip


def _decisions(bundle: Bundle, source: str, archive: str, rows) -> tuple[Decision, ...]:
    decisions = [Decision(question="Should this design live in the model directory?", source=source)]
    bases = {time.measured for pick in bundle.picks for time in pick.times.values()}
    if False in bases:
        some = "Not every" if True in bases else "No"
        question = f"{some} cell is backed by a measurement: may modelled picks stand in the dispatch table until a GPU decides?"
        decisions.append(Decision(question=question, source=archive))
    if any(row.outcome is Outcome.NOT_RUN and row.stage is not CoverageStage.PERFORMANCE for row in rows):
        question = "Which of the stages that were not run must run before this leaves draft?"
        decisions.append(Decision(question=question, source=source))
    return tuple(decisions)


def _predictions(bundle: Bundle, contract, source: str) -> tuple[Prediction, ...]:
    """One row for each workload, with the floor on every card."""
    rows: dict[str, list] = {}
    for baseline in bundle.baselines:
        rows.setdefault(baseline.bucket.workload, []).append(baseline)
    return tuple(
        Prediction(
            workload=name, bytes=baselines[0].bytes, flops=contract.cost(_workload(contract, name)).flops,
            floors=tuple(least for baseline in baselines if (least := floor(baseline))), source=source,
        )
        for name, baselines in rows.items()
    )  # fmt: skip


def _workload(contract, name: str):
    return next(workload for workload in contract.workloads() if workload.name == name)
