"""The gate on a change: confinement, manifest, dates, evidence, who attests to it, measured figures.

It reads git objects and runs nothing of the head.

Policy (contracts, judge) comes from the base's tree where it holds them, else from the installed package: never from
the head. Every stage says pass, fail or not run, with reasons; not run is never a pass.
"""

import datetime
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from fasttrack_validation.contracts import contract_digest
from fasttrack_validation.digests import judge_digest, package_files
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.verdict import Outcome, Status, rule
from fasttrack_validation.records import Frozen, sha256

from . import attestation, decision, evidence, lifetime
from .confinement.check import Confinement, Finding, examine, model_directory
from .confinement.contents import Limits
from .confinement.names import MANIFEST
from .git import Repository
from .signatures import SUFFIX
from .stages import Reason, StageResult, StageStatus

Files = Mapping[str, bytes]
ContractDigest = Callable[[str, str, Files], str]

_PROPOSE = "run `fasttrack propose` for the op on this branch, and commit the evidence it writes"
_SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp")


class GateResult(Frozen):
    """The gate's answer for one base and one head; a push or a merge queue needs a new one."""

    schema_version: int = 1
    model: str
    base: str
    head: str
    policy: str = Field(description="where contracts and judge were read from")
    stages: tuple[StageResult, ...]
    draft_only: tuple[Reason, ...] = Field(description="why the change cannot leave draft although nothing failed")
    attestations: tuple[attestation.Attestation, ...] = Field(default=(), description="grade of each file of evidence")
    confinement: Confinement

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 a required stage did not run, 4 nothing to check."""
        statuses = {stage.status for stage in self.stages if stage.required}
        if StageStatus.EMPTY in statuses:
            return 4
        return 1 if StageStatus.FAIL in statuses else 3 if StageStatus.NOT_RUN in statuses else 0


def policy_files(objects: Repository, base: str) -> tuple[str, Files]:
    """Where policy comes from, and the files of `validation/` there, relative to it."""
    files = objects.files(base, "validation")
    if any(name.startswith("judge/") for name in files):
        return "base tree", files
    return "installed package", package_files()


def run_gate(
    repo: Path,
    base: str,
    head: str,
    model: str,
    *,
    root: str = "models",
    limits: Limits | None = None,
    contract_of: ContractDigest = contract_digest,
    parse_manifest: Callable[[str, str], Any] | None = None,
    today: datetime.date | None = None,
) -> GateResult:
    """Decides about merging `head` into `base`, for one model, from any directory and without a checkout.

    `contract_of` is the digest of an op's contract, given the files of `validation/`; `today` is what dates are held
    against. UserError for wrong usage (unknown revision, no repository).
    """
    if parse_manifest is None:
        from .model_dir import parse_manifest
    directory = model_directory(model, root)
    repository = Repository.open(repo)
    base, head = repository.resolve(base), repository.resolve(head)
    with repository.quarantine() as objects:
        confinement = examine(objects, base, head, model, directory, limits or Limits())
        source, policy = policy_files(objects, base)
        files = objects.files(confinement.outcome, directory) if confinement.outcome else {}
        before = objects.files(base, directory)
        allowed = attestation.allowed_signers(objects, base)
    attested: tuple[attestation.Attestation, ...] = ()
    stages = [_confinement(confinement)]
    draft = [_finding(finding, StageStatus.PASS) for finding in confinement.notices]
    if confinement.outcome is None:
        stages += [
            StageResult(stage=stage, status=StageStatus.NOT_RUN, summary="there is no merge result to read")
            for stage in ("manifest", "evidence")
        ]
    else:
        manifest, stage = _manifest(files, directory, model, parse_manifest)
        stages.append(stage)
        if manifest is None:
            stages.append(StageResult(stage="evidence", status=StageStatus.NOT_RUN, summary="needs a valid manifest"))
        else:
            found, reasons = read_statements(files, directory)
            attested = attestation.attest(files, before, found, allowed)
            old = _manifest(before, directory, model, parse_manifest)[0]
            holding = set()
            for op, entry in manifest.ops.items():
                against = list(_op(op, entry, found, files, directory, model, policy, contract_of))
                if not against:
                    holding.add(_judged(op))
                untouched = against and _untouched(op, manifest, old, files, before)
                reasons += map(_left_alone, against) if untouched else against
            dates, soon = lifetime.stage(manifest, old, today or datetime.date.today(), directory)
            stages += [dates, _evidence(manifest, reasons, attested)]
            stages += [attestation.stage(attested, files, directory), attestation.performance(attested, holding)]
            stages.append(decision.stage(model, files, before, allowed, directory))
            draft += [*soon, *attestation.draft_reasons(attested, directory), *_uncovered(manifest, files, confinement)]
    stages.append(
        StageResult(
            stage="rejudge",
            status=StageStatus.NOT_RUN,
            required=False,
            summary="this gate runs no code of the head; the judge runs in its own sandboxed job",
        )
    )
    return GateResult(
        model=model,
        base=base,
        head=head,
        policy=source,
        stages=tuple(stages),
        draft_only=tuple(draft),
        attestations=attested,
        confinement=confinement,
    )


def _finding(finding: Finding, status: StageStatus = StageStatus.FAIL) -> Reason:
    return Reason(
        id=finding.rule,
        message=f"{finding.title}: {finding.message}",
        remedy=finding.remedy,
        status=status,
        path=finding.path,
        line=finding.line,
    )


def _confinement(confinement: Confinement) -> StageResult:
    status = StageStatus.PASS if confinement.passed else StageStatus.EMPTY if confinement.empty else StageStatus.FAIL
    count = len(confinement.files)
    summary = (
        f"{count} file{'s' * (count != 1)} differ, all below {confinement.directory}/"
        if confinement.passed
        else (f"{len(confinement.findings)} findings")
    )
    reasons = tuple(_finding(finding) for finding in confinement.findings)
    return StageResult(
        stage="confinement",
        status=status,
        reasons=reasons,
        summary=f"{summary} (proved: {', '.join(confinement.proved)})",
    )


def _manifest(files: Files, directory: str, model: str, parse: Callable[[str, str], Any]) -> tuple[Any, StageResult]:
    path = f"{directory}/{MANIFEST}"

    def fail(id: str, message: str, remedy: str) -> tuple[None, StageResult]:
        reason = Reason(id=id, message=message, remedy=remedy, path=path)
        return None, StageResult(stage="manifest", status=StageStatus.FAIL, summary=message, reasons=(reason,))

    if MANIFEST not in files:
        return fail(
            "manifest.missing", f"{path} does not exist", "add the manifest: it names the model's ops and files"
        )
    try:
        manifest = parse(files[MANIFEST].decode("utf-8"), path)
    except UnicodeDecodeError:
        return fail("manifest.invalid", f"{path} is not UTF-8", "write it as UTF-8 text")
    except UserError as error:
        return fail("manifest.invalid", error.what, error.how)
    if manifest.model.name != model:
        return fail("manifest.model", f"{path} is for model {manifest.model.name!r}", f"name the model {model!r}")
    count = len(manifest.ops)
    return manifest, StageResult(stage="manifest", status=StageStatus.PASS, summary=f"{count} op{'s' * (count != 1)}")


def read_statements(files: Files, directory: str) -> tuple[dict[str, evidence.Statement], list[Reason]]:
    """The statements of a model directory by path (relative to it), and what is wrong with the others."""
    found, reasons = {}, []
    for path in sorted(files):
        if not path.startswith(f"{evidence.STATEMENTS}/") or path.endswith(SUFFIX):
            continue
        where = f"{directory}/{path}"
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


def _op(
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
    path = _judged(op)

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


def _judged(op: str) -> str:
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


def _untouched(op: str, manifest: Any, old: Any, files: Files, before: Files) -> bool:
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


def _left_alone(reason: Reason) -> Reason:
    message = f"{reason.message} (as at the base: the change does not touch this op)"
    return reason.model_copy(update={"id": "evidence.untouched", "message": message, "status": StageStatus.PASS})


def _evidence(manifest: Any, reasons: list[Reason], attested: tuple[attestation.Attestation, ...]) -> StageResult:
    statuses = {reason.status for reason in reasons}
    if not manifest.ops:
        return StageResult(stage="evidence", status=StageStatus.NOT_RUN, summary="the manifest names no op")
    status = next((s for s in (StageStatus.FAIL, StageStatus.NOT_RUN) if s in statuses), StageStatus.PASS)
    bad = {reason.op for reason in reasons if reason.op}
    left = {reason.op for reason in reasons if reason.id == "evidence.untouched"}
    grades = {one.path: one.grade for one in attested}
    good = [grades.get(_judged(op)) for op in manifest.ops if op not in bad]
    told = ", ".join(f"{good.count(grade)} {grade}" for grade in reversed(attestation.Grade))
    summary = f"{len(good)} of {len(manifest.ops)} ops have fresh, accepted evidence ({told})"
    if left:
        summary += f"; {len(left)} that the change does not touch have none, as before"
    return StageResult(stage="evidence", status=status, summary=summary, reasons=tuple(reasons))


def _uncovered(manifest: Any, files: Files, confinement: Confinement) -> Iterator[Reason]:
    """Sources that changed and that no op's evidence exercises: a person reads those."""
    covered: set[str] = set()
    for entry in manifest.ops.values():
        try:
            covered |= set(evidence.kernel_closure(entry.kernels, files))
        except UserError:
            continue  # reported by the op's own stage as evidence.unresolved or evidence.missing
    for file in confinement.files:
        name = file.path.removeprefix(f"{confinement.directory}/")
        if file.status != "D" and name in files and name not in covered and name.endswith(_SOURCES):
            yield Reason(
                id="evidence.uncovered",
                message=f"{name} changed, and no op's evidence exercises it",
                remedy="a person reads it, or an op covers it",
                status=StageStatus.PASS,
                path=file.path,
            )
