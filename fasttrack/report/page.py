"""The report's data from the files of a model directory: evidence, sources, manifest, and the record of the change.

A pure function of bytes, so that a gate can render the pages of a head again, from git objects, and compare.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fasttrack_validation.claims.cells import Modelled
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import KernelAudit, Status

from .. import evidence
from ..confinement.check import ChangedFile
from . import exchange, layers, model_level, token_records
from .data import Attempt, Grid, Maintenance, OpReport, Place, ReportData, Risk, Standing
from .kernels import kernels
from .record import DESIGN, DesignRecord, read
from .risks import risky_mechanisms

OWNER_PARAGRAPH = "report/owner.md"
ARCHIVE = "evidence/archive"
SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp")


def report_data(files: Mapping[str, bytes], manifest: Any, record: DesignRecord | None = None) -> ReportData:
    """Everything on the page. `files`: the model directory's, by path relative to it; `record`: by default theirs.

    UserError where a file is missing or is not what it should be.
    """
    record = record or _record(files)
    model = manifest.model
    if record.model != model.name:
        raise UserError(f"{DESIGN} is about model {record.model!r}, not {model.name!r}", "write it again")
    ops = tuple(_op(entry, files) for entry in record.ops)
    told = {entry.op for entry in record.ops}
    plans = [op.plan for op in ops if op.plan]
    read_for_risks = [one.path for one in record.touched if one.path.endswith(SOURCES)] or [
        name for op in manifest.ops.values() for name in op.kernels]  # fmt: skip
    sources = {name: files[name] for name in read_for_risks if name in files}
    places = tuple(
        Place(hardware=e.hardware, tp=e.tp, rows=e.rows, verify_width=e.verify_width, dtypes=tuple(map(str, e.dtypes)))
        for e in manifest.envelope
    )
    cells = layers.layers(files, manifest.decode.sources if manifest.decode else (), dict(record.stale))
    return ReportData(
        model=model.name,
        title=model.title,
        directory=f"models/{model.name}",
        problem=record.problem,
        ops=ops,
        manifest_ops=tuple(manifest.ops),
        envelope={
            f"{one.hardware}, TP{one.tp}": f"rows {one.rows[0]} to {one.rows[1]}, {', '.join(one.dtypes)}" for one in places
        },
        switch_off=record.switch_off,
        files=tuple(_touched(record, files)),
        attempts=tuple(attempt for entry in record.ops for attempt in _attempts(entry.op, files)),
        exams=record.exams,
        grid=_grid(ops, places),
        risks=risky_mechanisms(sources, plans) + tuple(r for op in ops for r in _audited(op.verdict.audits)),
        provenance=record.provenance,
        owner_paragraph=_text(files, OWNER_PARAGRAPH),
        maintenance=Maintenance(
            owner=model.owner, review=str(model.review_by), removal=str(model.remove_by),
            obsolete_when=record.obsolete_when,
        ),
        decisions=record.decisions,
        layers=cells,
        exchanges=exchange.exchanges(files, f"models/{model.name}"),
        kernels=kernels(
            files, {name: op.kernels for name, op in manifest.ops.items()}, cells, (one.path for one in record.touched)
        ),
        places=places,
        sat=model_level.exam_results(files),
        rungs=model_level.rung_results(files),
        traced=token_records.traced(files),
        servers=model_level.servers_results(files),
        standings=tuple(_standing(op, files) for op in manifest.ops if op not in told),
        not_run=record.not_run,
    )  # fmt: skip


def _record(files: Mapping[str, bytes]) -> DesignRecord:
    if DESIGN not in files:
        raise UserError(f"there is no {DESIGN}", "write the report: `fasttrack report MODEL --write`")
    return read(files[DESIGN], DESIGN)


def _op(entry: Any, files: Mapping[str, bytes]) -> OpReport:
    source = f"{evidence.STATEMENTS}/{entry.op}.{evidence.Stage.JUDGE}.json"
    if source not in files:
        raise UserError(f"{DESIGN} is about op {entry.op}, and {source} is not there", "run `fasttrack propose` for it")
    statement = evidence.parse(files[source], source)
    plan = statement.predicate.verdict.plan
    return OpReport(
        statement=statement, source=source, plan=plan, plan_source=source if plan else None,
        predictions=entry.predictions, rationale=entry.rationale,
    )  # fmt: skip


def _standing(op: str, files: Mapping[str, bytes]) -> Standing:
    source = f"{evidence.STATEMENTS}/{op}.{evidence.Stage.JUDGE}.json"
    if source not in files:
        return Standing(op=op, status=None)
    return Standing(op=op, status=evidence.parse(files[source], source).predicate.verdict.status, source=source)


def _grid(ops: tuple[OpReport, ...], places: tuple[Place, ...]) -> Grid:
    cells = [cell for op in ops for cell in op.statement.predicate.performance]
    if cells:
        return Grid(
            hardware=tuple(dict.fromkeys(cell.hardware for cell in cells)),
            tp=tuple(dict.fromkeys(cell.tp for cell in cells)),
            buckets=tuple(dict.fromkeys(cell.bucket for cell in cells)),
        )
    return Grid(
        hardware=tuple(dict.fromkeys(place.hardware for place in places)),
        tp=tuple(dict.fromkeys(place.tp for place in places)),
        buckets=tuple(dict.fromkeys(f"{place.rows[0]}-{place.rows[1]}" for place in places)),
    )


def _touched(record: DesignRecord, files: Mapping[str, bytes]) -> Iterator[ChangedFile]:
    for one in record.touched:
        there = one.path in files
        yield ChangedFile(
            path=f"models/{record.model}/{one.path}", status=one.status, old_mode="000000" if one.status == "A" else "100644",
            new_mode="100644" if there else "000000", bytes=len(files.get(one.path, b"")),
        )  # fmt: skip


def _attempts(op: str, files: Mapping[str, bytes]) -> Iterator[Attempt]:
    """The candidates of an op's archive, as it was written."""
    source = f"{ARCHIVE}/{op}.json"
    if source not in files:
        return
    try:
        for row in json.loads(files[source])["candidates"]:
            config = " ".join(f"{key}={value}" for key, value in sorted(row["config"].items()))
            yield Attempt(
                candidate=row["candidate"][:12], op=op, round=row["round"], status=Status(row["status"]),
                reason=row["reason"], message=f"{config or 'no configuration'}: {row['message'] or row['note']}",
                picked=row["picked"], source=source,
            )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{source} is no archive of candidates: {error!r}", "restore it from git") from error


def _audited(audits: tuple[KernelAudit, ...]) -> Iterator[Risk]:
    """What the machine code shows: the edge of the register file, sums whose lanes disagree."""
    for audit in audits:
        spilled = audit.spill_store_bytes + audit.spill_load_bytes
        if spilled or audit.registers >= 255:
            what = f"{audit.kernel} for {audit.target}: {audit.registers} registers, {spilled} bytes spilled"
            yield Risk(mechanism="register pressure", where=what, ask="does the next compiler still fit it?")
        if audit.uneven_sums:
            what = f"{audit.kernel} for {audit.target}: {audit.uneven_sums} sums"
            yield Risk(mechanism="sum with another last bit in each lane", where=what, ask="which lane's bits are stored?")


def _text(files: Mapping[str, bytes], name: str) -> str:
    try:
        return files.get(name, b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8", "write it as UTF-8 text") from error


def floor(baseline: Any) -> Modelled | None:
    """The least time that a place allows, where the card is known."""
    if baseline.floor_microseconds is None:
        return None
    return Modelled(
        microseconds=baseline.floor_microseconds, model="bytes at datasheet bandwidth",
        hardware=baseline.bucket.hardware, bound="bytes",
    )  # fmt: skip
