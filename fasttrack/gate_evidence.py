"""What the gate makes of evidence: statements read from a head's files, each held against sources, contract and judge."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fasttrack_validation.digests import judge_digest
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import Outcome, Status, rule
from fasttrack_validation.records import sha256

from . import attestation, evidence
from .git import display
from .signatures import SUFFIX
from .stages import Reason, StageResult, StageStatus

Files = Mapping[str, bytes]
ContractDigest = Callable[[str, str, Files], str]
_PROPOSE = "run `fasttrack propose` for the op on this branch, and commit the evidence it writes"


def read_statements(files: Files, directory: str) -> tuple[dict[str, evidence.Statement], list[Reason]]:
    """The statements of a model directory by path (relative to it), and what is wrong with the others."""
    found, reasons = {}, []
    for path in sorted(files):
        if not path.startswith(f"{evidence.STATEMENTS}/") or path.endswith(SUFFIX):
            continue
        where = f"{directory}/{display(path)}"
        try:
            statement = evidence.parse(files[path], where)
        except UserError as error:
            reasons.append(Reason(id="evidence.malformed", message=error.what, remedy=error.how, path=where))
            continue
        if evidence.file_name(statement) != path:
            message = f"{where} holds the statement that belongs in {evidence.file_name(statement)}"
            reasons.append(Reason(id="evidence.misplaced", message=message, remedy="move it there", path=where))
            continue
        found[path] = statement
    return found, reasons


def against_op(
    op: str,
    entry: Any,
    found: Mapping[str, evidence.Statement],
    files: Files,
    directory: str,
    model: str,
    policy: Files,
    contract_of: ContractDigest,
) -> Iterator[Reason]:
    """Reasons against one op: its judge's statement must be there, fresh, about these kernels, and accepted."""
    path = judged_path(op)

    def reason(id: str, message: str, remedy: str = _PROPOSE, status: StageStatus = StageStatus.FAIL) -> Reason:
        return Reason(
            id=id, message=f"{op}: {message}", remedy=remedy, status=status, path=f"{directory}/{path}", op=op
        )

    if path not in found and not any(name.startswith(f"contracts/{model}/") for name in policy):
        yield reason(
            "evidence.no_contract",
            f"the base has no validation/contracts/{model}/, so nothing examines it",
            "a new model's contract comes first: a change of its own, by ordinary review (`fasttrack new-model --help`)",
        )
        return
    if path not in found:
        if path not in files:
            yield reason("evidence.missing", "no statement of the judge")
        return
    statement = found[path]
    predicate, verdict = statement.predicate, statement.predicate.verdict
    if (predicate.model, predicate.op) != (model, op):
        yield reason("evidence.other_op", f"the statement is about {predicate.model}/{predicate.op}")
    if set(predicate.kernels) != set(entry.kernels):
        yield reason(
            "evidence.other_kernels",
            f"the manifest names {sorted(entry.kernels)}, the statement {sorted(predicate.kernels)}",
        )
    try:
        fresh = evidence.freshness(statement, files, contract_of(model, op, policy), judge_digest(policy))
    except UserError as error:
        yield reason("evidence.unresolved", error.what, error.how)
        return
    if isinstance(fresh, evidence.Stale):
        yield reason("evidence.stale", f"stale: {fresh}")
    for raw in predicate.raw:
        if raw.path not in files or sha256(files[raw.path]) != raw.sha256:
            yield reason("evidence.raw", f"{raw.path} is not the file the statement was made from")
    yield from _ruling(verdict, reason)


def judged_path(op: str) -> str:
    """Where the judge's statement about an op lies, relative to the model directory."""
    return f"{evidence.STATEMENTS}/{op}.{evidence.Stage.JUDGE}.json"


def _ruling(verdict: Any, reason: Callable[..., Reason]) -> Iterator[Reason]:
    if verdict.status in (Status.REJECTED, Status.INVALID):
        yield reason(f"evidence.{verdict.status}", f"{verdict.reason}: {verdict.message}", "propose another candidate")
    elif verdict.status is not Status.ACCEPTED:
        yield reason(f"evidence.{verdict.status}", f"{verdict.reason}: {verdict.message}", status=StageStatus.NOT_RUN)
    elif rule(verdict.checks, ())[0] is not Status.ACCEPTED or not any(
        check.outcome is Outcome.PASS for check in verdict.checks
    ):
        yield reason("evidence.inconsistent", "says accepted, and its own checks do not")


def is_untouched(op: str, manifest: Any, old: Any, files: Files, before: Files) -> bool:
    """Whether a change leaves an op as it was at the base: its claims, its sources with all they import, its evidence.

    What such an op lacks it lacked before, so that it is no reason against the change.
    """
    if old is None or op not in old.ops or (old.ops[op], old.envelope) != (manifest.ops[op], manifest.envelope):
        return False
    entry = manifest.ops[op]
    own = [name for name in (entry.dispatch, entry.space) if name]
    own += [path for path in {*files, *before} if path.startswith(f"{evidence.STATEMENTS}/{op}.")]
    try:
        same = evidence.kernel_closure(entry.kernels, files) == evidence.kernel_closure(entry.kernels, before)
    except UserError:
        return False
    return same and all(files.get(path) == before.get(path) for path in own)


def left_alone(reason: Reason) -> Reason:
    message = f"{reason.message} (as at the base: the change does not touch this op)"
    return reason.model_copy(update={"id": "evidence.untouched", "message": message, "status": StageStatus.PASS})


def evidence_stage(manifest: Any, reasons: list[Reason], attested: tuple[attestation.Attestation, ...]) -> StageResult:
    statuses = {reason.status for reason in reasons}
    if not manifest.ops:
        return StageResult(stage="evidence", status=StageStatus.NOT_RUN, summary="the manifest names no op")
    status = next((s for s in (StageStatus.FAIL, StageStatus.NOT_RUN) if s in statuses), StageStatus.PASS)
    bad = {reason.op for reason in reasons if reason.op}
    left = {reason.op for reason in reasons if reason.id == "evidence.untouched"}
    grades = {one.path: one.grade for one in attested}
    good = [grades.get(judged_path(op)) for op in manifest.ops if op not in bad]
    told = ", ".join(f"{good.count(grade)} {grade}" for grade in reversed(attestation.Grade))
    summary = f"{len(good)} of {len(manifest.ops)} ops have fresh, accepted evidence ({told})"
    if left:
        summary += f"; {len(left)} that the change does not touch have none, as before"
    return StageResult(stage="evidence", status=status, summary=summary, reasons=tuple(reasons))
