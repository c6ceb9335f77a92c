"""Whether the pages of a head are what its evidence gives: rendered again, from bytes alone, and compared."""

from collections.abc import Iterable, Mapping
from typing import Any

from fasttrack_validation.coverage import Stage as Planned
from fasttrack_validation.coverage import coverage, load_plan
from fasttrack_validation.errors import UserError

from ..decision import RECORD
from ..evidence import STATEMENTS, Stage
from ..git import display
from ..signatures import SUFFIX
from ..stages import Reason, StageResult, StageStatus
from .data import NOBODY, Decision, Exam, Provenance
from .page import report_data
from .record import DESIGN, MARKDOWN, PAGE, DesignRecord, RecordedOp, read
from .render import render

_OWN = (DESIGN, MARKDOWN, PAGE, "report/owner.md", RECORD, f"{RECORD}{SUFFIX}")
_AGAIN = "render it again and commit it: `fasttrack report MODEL --write --base BASE`; nothing on it is edited by hand"


def told(paths: Iterable[str]) -> set[str]:
    """Those of `paths` that a report lists as touched: not its own pages, nor signatures over what it shows."""
    return {path for path in paths if not path.startswith("report/") and not path.endswith(".sig")}


def record_of(files: Mapping[str, bytes], manifest: Any, author: tuple[str, str]) -> DesignRecord:
    """The record that is there, or a first one for a directory whose evidence no run of the lane wrote.

    `author`: name and address, and the commit that is looked at.
    """
    if DESIGN in files:
        return read(files[DESIGN], DESIGN)
    rows = coverage(load_plan(manifest.model.contract), (), frozenset())
    stated = [op for op in manifest.ops if f"{STATEMENTS}/{op}.{Stage.JUDGE}.json" in files]
    first = "fasttrack.toml"
    return DesignRecord(
        model=manifest.model.name,
        problem=f"The decode path of {manifest.model.title}, as the evidence in its directory shows it.",
        switch_off="an engine that adopts these kernels keeps its stock path and its own switch",
        ops=tuple(RecordedOp(op=op) for op in stated),
        exams=tuple(Exam(name=row.title, reason=row.reason) for row in rows if row.stage is Planned.ACCURACY),
        not_run=tuple((row.title, row.reason) for row in rows if row.stage is Planned.NUMERICS),
        provenance=Provenance(
            agent=NOBODY, seed=0, rounds=0, cost="not recorded", base_commit=author[1],
            author=author[0] or "nobody is configured", fallback_identity=not author[0], source=first,
        ),
        decisions=(Decision(question="Should this design live in the model directory?", source=first),),
    )  # fmt: skip


def stage(
    files: Mapping[str, bytes], manifest: Any, directory: str, changed: Iterable[str] | None = None,
    before: Mapping[str, bytes] | None = None,
) -> StageResult:  # fmt: skip
    """The gate's stage: the pages, byte for byte. `changed`: paths of the change, relative to the model directory.

    A head without a report fails nothing here; one that drops the base's report does.
    """
    def reason(id: str, message: str, path: str, line: int | None = None, remedy: str = _AGAIN) -> Reason:
        return Reason(id=id, message=message, remedy=remedy, path=f"{directory}/{path}", line=line)

    def answer(status: StageStatus, summary: str, *reasons: Reason, required: bool = True) -> StageResult:
        return StageResult(stage="report", status=status, summary=summary, reasons=reasons, required=required)

    pages = (DESIGN, MARKDOWN, PAGE)
    more = sorted(name for name in files if name.startswith("report/") and name not in _OWN
                  and files[name] != (before or {}).get(name))  # fmt: skip
    if more:
        how = f"delete it: report/ holds {', '.join(name.removeprefix('report/') for name in _OWN)}, and no page besides"
        there = [reason("report.other", "no evidence gives this file, and it lies where the report does", display(name), remedy=how)
                 for name in more]  # fmt: skip
        return answer(StageStatus.FAIL, f"{len(more)} files in report/ that are not of the report", *there)
    if not any(name in files for name in pages):
        if before and any(name in before for name in pages):
            dropped = reason("report.dropped", "the report of the base is deleted", MARKDOWN)
            return answer(StageStatus.FAIL, dropped.message, dropped)
        return answer(StageStatus.NOT_RUN, "there is no report", required=False)
    try:
        record = read(files[DESIGN], DESIGN) if DESIGN in files else None
        if record is None:
            raise UserError(f"there is no {DESIGN}", _AGAIN)
        rendered = dict(zip((MARKDOWN, PAGE), render(report_data(files, manifest, record)), strict=True))
    except UserError as error:
        unread = reason("report.unreadable", error.what, DESIGN, remedy=error.how)
        return answer(StageStatus.FAIL, error.what, unread)
    reasons = []
    for name, text in rendered.items():
        if files.get(name) == text.encode():
            continue
        line, message = _difference(files.get(name), text)
        reasons.append(reason("report.edited", message, name, line))
    if changed is not None:
        listed, there = {one.path for one in record.touched}, told(changed)
        if listed != there:
            example = sorted(listed ^ there)[0]
            what = f"{'lists' if example in listed else 'leaves out'} {example}"
            reasons.append(reason("report.touched", f"its list of touched files is another change's: it {what}", DESIGN))
    if reasons:
        return answer(StageStatus.FAIL, f"{len(reasons)} differences from what evidence gives", *reasons)
    return answer(StageStatus.PASS, "both pages are what evidence gives, byte for byte")


def _difference(have: bytes | None, want: str) -> tuple[int | None, str]:
    """The first line that is another, and both readings of it."""
    if have is None:
        return None, "the page is missing"
    mine, theirs = have.decode("utf-8", "replace").split("\n"), want.split("\n")
    at = next((n for n, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), min(len(mine), len(theirs)))
    shown = mine[at][:160] if at < len(mine) else ""
    return at + 1, f"line {at + 1} is not what evidence gives: {ascii(shown)}"
