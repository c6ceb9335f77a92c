"""The gate on a change: confinement, manifest, dates, arrows, evidence, who attests to it, figures, claims, report.

It reads git objects and runs nothing of the head, but for the re-check, where one is asked for: the judge, in its sandbox.

Policy (contracts, judge) comes from the base's tree where it holds them, else from the installed package: never from
the head. Every stage says pass, fail or not run, with reasons; not run is never a pass.
"""

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from fasttrack_validation.contracts import contract_digest
from fasttrack_validation.digests import package_files
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from . import arrows, attestation, decision, evidence, figures, gate_manifest, lifetime, recheck
from .confinement.check import Confinement, Finding, examine, model_directory
from .confinement.contents import Limits
from .gate_evidence import ContractDigest, Files, against_op, evidence_stage, is_untouched, judged_path, left_alone, read_statements
from .git import Repository
from .report import fresh
from .stages import Reason, StageResult, StageStatus

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
    body: str | None = None,
    again: recheck.Recheck | None = None,
) -> GateResult:
    """Decides about merging `head` into `base`, for one model, from any directory and without a checkout.

    `contract_of` is the digest of an op's contract, given the files of `validation/`; `today` is what dates are held
    against; `body` is the pull request's text, whose figures are held against claims; with `again` touched ops are judged
    once more. UserError for wrong usage (unknown revision, no repository).
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
        workflows = attestation.trusted_workflows(objects, base, files)
    attested: tuple[attestation.Attestation, ...] = ()
    stages = [_confinement(confinement)]
    draft = [_finding(finding, StageStatus.PASS) for finding in confinement.notices]
    if confinement.outcome is None:
        stages += [
            StageResult(stage=stage, status=StageStatus.NOT_RUN, summary="there is no merge result to read")
            for stage in ("manifest", "evidence")
        ]
    else:
        manifest, stage = gate_manifest.read(files, directory, model, parse_manifest)
        stages.append(stage)
        if manifest is None:
            stages.append(StageResult(stage="evidence", status=StageStatus.NOT_RUN, summary="needs a valid manifest"))
        else:
            found, reasons = read_statements(files, directory)
            attested = attestation.attest(files, before, found, allowed, workflows)
            old = gate_manifest.read(before, directory, model, parse_manifest)[0]
            holding, touched, left = set(), [], []
            for op, entry in manifest.ops.items():
                against = list(against_op(op, entry, found, files, directory, model, policy, contract_of))
                if not against:
                    holding.add(judged_path(op))
                untouched = is_untouched(op, manifest, old, files, before)
                (left if untouched else touched).append(op)
                untouched = against and untouched
                reasons += map(left_alone, against) if untouched else against
            dates, soon = lifetime.stage(manifest, old, today or datetime.date.today(), directory)
            stages += [dates, gate_manifest.tables(manifest, files, directory, left)]
            stages += [arrows.stage(files, before, directory), evidence_stage(manifest, reasons, attested)]
            stages += [attestation.stage(attested, files, directory, before), attestation.performance(attested, holding)]
            stages += [figures.stage(files, directory, body), _report(files, before, manifest, directory, confinement)]
            stages.append(decision.stage(model, files, before, allowed, directory))
            vouched = {one.path for one in attested if one.grade is attestation.Grade.ATTESTED and one.ruled_on_gpu}
            vouched = [op for op in touched if judged_path(op) in vouched & holding]
            if again is not None and confinement.passed:
                stages += (judged := recheck.stages(again, manifest, touched, files, policy, directory, vouched))
                draft += recheck.draft_reasons(judged[1], vouched)
            else:
                draft += gate_manifest.widened(manifest, old, directory)
            draft += [*soon, *attestation.draft_reasons(attested, directory), *_uncovered(manifest, files, confinement)]
    if not any(stage.stage == "recheck" for stage in stages):
        stages.append(_not_rechecked(again is not None))
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


def _not_rechecked(asked: bool) -> StageResult:
    why = "nothing of a head that is not confined, or has no manifest, runs" if asked else (
        "not asked for: no code of the head was run; `fasttrack gate --recheck` judges touched ops again in the sandbox"
    )  # fmt: skip
    return StageResult(stage="recheck", status=StageStatus.NOT_RUN, required=asked, summary=why)


def _report(files: Files, before: Files, manifest: Any, directory: str, confinement: Confinement) -> StageResult:
    changed = [one.path.removeprefix(f"{directory}/") for one in confinement.files]
    return fresh.stage(files, manifest, directory, changed, before)


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
