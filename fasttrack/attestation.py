"""Who vouches for evidence. Everything is self-reported until somebody whom the base trusts has signed its bytes.

A statement, a record of the performance grid or a verdict of the numerics ladder is attested by an SSH signature beside it:
`<file>.sig`, or by a GitHub artifact attestation (bundles.py). Who may sign stands in `.github/allowed_signers`, whose workflows may attest in
`.github/attesters.toml`, both of the base revision. What a GPU ruled or measured cannot be repeated by a gate
without one, so that it counts only when attested; self-reported figures are shown as such.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum

from pydantic import field_serializer

from fasttrack_validation.claims.cells import Measured
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, sha256

from . import bundles, evidence, ladder_evidence, signatures
from .git import Repository, display
from .signatures import SUFFIX
from .stages import Reason, StageResult, StageStatus

ALLOWED_SIGNERS = ".github/allowed_signers"
GRID = "evidence/grid"
SEALS = re.compile(r"evidence/kits/[^/]+/seal\.json")
"""What a kit's owner signed: digests of all that was measured there"""
_RECORDS = re.compile(rf"{GRID}/.*\.json|{ladder_evidence.VERDICTS.pattern}", re.DOTALL)
_SIGN = "have a machine that the base trusts repeat it and sign: `fasttrack evidence sign FILE --key KEY`"
_UNCHECKED = "unchecked"


class Grade(StrEnum):
    """How much stands behind a result: the word of whoever sent it, or a signature."""

    SELF_REPORTED = "self-reported"
    ATTESTED = "attested"


class Kind(StrEnum):
    """What is signed as evidence."""

    STATEMENT = "statement"
    GRID = "grid"
    NUMERICS = "numerics"


class Attestation(Frozen):
    """The grade of one file of evidence, and what a GPU is said to have done there."""

    path: str
    """Relative to the model directory"""
    grade: Grade
    signer: str | None = None
    """A principal of the base's allowed signers"""
    fault: str | None = None
    """Why a signature that is there does not count, as an id: `signature.<reason>`"""
    message: str = "nobody signed it"
    measurements: int = 0
    """Cells that hold a measurement"""
    ruled_on_gpu: bool = False
    changed: bool = True
    """The change brings this file or its signature"""

    @field_serializer("path", when_used="json")
    def _printable(self, value: str) -> str:
        """A head chooses its names; here they stay as git has them, and what is written down can be printed."""
        return display(value)


def allowed_signers(objects: Repository, base: str) -> bytes | None:
    """Who may sign, as the base has it; None where it names nobody. The head is never asked."""
    folder, name = ALLOWED_SIGNERS.split("/")
    return objects.files(base, folder).get(name)


def trusted_workflows(objects: Repository, base: str, files: Mapping[str, bytes]) -> bundles.Bundles:
    """The bundles among `files` of the head, with whom the base trusts to attest. The head is never asked."""
    folder = bundles.ATTESTERS.split("/")[0]
    there = objects.files(base, folder)
    return bundles.Bundles(files, *(there.get(name.split("/")[1]) for name in (bundles.ATTESTERS, bundles.ROOT)))


def attest(
    files: Mapping[str, bytes], before: Mapping[str, bytes], statements: Mapping[str, evidence.Statement],
    allowed: bytes | None, workflows: bundles.Bundles | None = None,
) -> tuple[Attestation, ...]:  # fmt: skip
    """The grade of every statement, record of the grid and verdict of the ladder in `files`; paths are relative to the model directory.

    `before`: the base's files. Where ssh-keygen is missing, signatures are `signature.unchecked`. A record of the grid
    without a signature of its own is attested by a kit's seal that names its digest and is signed.
    """
    found = [
        _attestation(path, files, before, statements.get(path), allowed, workflows)
        for path in sorted(files)
        if path in statements or SEALS.fullmatch(path) or _RECORDS.fullmatch(path)
    ]
    sealed = {
        digest: one for one in found if one.grade is Grade.ATTESTED and SEALS.fullmatch(one.path)
        for digest in _sealed(files[one.path])
    }  # fmt: skip
    return tuple(_by_seal(one, sealed.get(sha256(files[one.path]))) for one in found)


def _sealed(data: bytes) -> Iterator[str]:
    """Digests of the files that a kit's seal names; none of one that cannot be read."""
    try:
        yield from (entry["sha256"] for entry in json.loads(data)["files"].values())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return


def _by_seal(one: "Attestation", seal: "Attestation | None") -> "Attestation":
    """A record of the grid that nobody signed by itself, with the grade of the seal that names its bytes."""
    if seal is None or one.grade is Grade.ATTESTED or one.fault or not one.path.startswith(f"{GRID}/"):
        return one
    message = f"sealed in {seal.path}, signed by {seal.signer}"
    return one.model_copy(update={"grade": Grade.ATTESTED, "signer": seal.signer, "message": message})


def _attestation(
    path: str, files: Mapping[str, bytes], before: Mapping[str, bytes], statement: evidence.Statement | None,
    allowed: bytes | None, workflows: bundles.Bundles | None = None,
) -> Attestation:  # fmt: skip
    mark, bundle = f"{path}{SUFFIX}", bundles.place(files[path])
    facts = {
        "path": path, "changed": any(files.get(name) != before.get(name) for name in (path, mark, bundle)),
        "measurements": _measured(statement) if statement else int(path.startswith(f"{GRID}/") and _measured_record(files[path])),
        "ruled_on_gpu": not statement.predicate.verdict.executor.startswith("interpreter") if statement
        else bool(ladder_evidence.VERDICTS.fullmatch(path)) and ladder_evidence.on_gpu(files[path]),
    }  # fmt: skip
    if mark not in files:
        answer = workflows.check(files[path]) if workflows else None
        if answer is None:
            return Attestation(grade=Grade.SELF_REPORTED, **facts)
        if isinstance(answer, signatures.Signed):
            told = f"attested by {answer.signer}"
            return Attestation(grade=Grade.ATTESTED, signer=answer.signer, message=told, **facts)
        message = f"its attestation does not count: {answer.message}"
        return Attestation(grade=Grade.SELF_REPORTED, fault=f"bundle.{answer.reason}", message=message, **facts)
    if allowed is None:
        answer = signatures.Refused(reason="no_signers", message=f"the base has no {ALLOWED_SIGNERS}: it trusts nobody")
    elif not signatures.installed():
        answer = signatures.Refused(reason=_UNCHECKED, message="ssh-keygen is not installed here, so nobody checked it")
    else:
        answer = signatures.verify(files[path], files[mark], allowed)
    if isinstance(answer, signatures.Signed):
        return Attestation(grade=Grade.ATTESTED, signer=answer.signer, message=f"signed by {answer.signer}", **facts)
    message = f"its signature does not count: {answer.message}"
    return Attestation(grade=Grade.SELF_REPORTED, fault=f"signature.{answer.reason}", message=message, **facts)


def _measured(statement: evidence.Statement) -> int:
    """How many cells of a statement hold a measurement."""
    predicate = statement.predicate
    cells = [cell for pair in predicate.performance for cell in (pair.candidate, pair.stock)]
    cells += [timed.cell for timed in predicate.verdict.cells]
    return sum(isinstance(cell, Measured) for cell in cells)


def _measured_record(data: bytes) -> bool:
    """Whether a record of the grid claims a measurement. One that cannot be read may claim anything."""
    try:
        return json.loads(data)["outcome"]["kind"] == "measured"
    except (ValueError, RecursionError, KeyError, TypeError):
        return True


def stage(
    attested: Iterable[Attestation], files: Mapping[str, bytes], directory: str, before: Mapping[str, bytes] | None = None
) -> StageResult:
    """The gate's stage: a signature that the change brings has to be good, and the ladder's verdicts have to be about the records beside
    them. Without signatures it is not run. `before`: the base's files."""
    attested = tuple(attested)
    reasons = [_fault(one, directory) for one in attested if one.fault]
    reasons += ladder_evidence.reasons(files, directory, before)
    marked = {f"{one.path}{SUFFIX}" for one in attested}
    for path in sorted(n for n in files if n.startswith("evidence/") and n.endswith(SUFFIX) and n not in marked):
        reasons.append(Reason(
            id="signature.orphan", message=f"{display(path)} signs nothing: there is no such statement, record of the grid or verdict",
            remedy="delete it, or sign again: `fasttrack evidence sign FILE --key KEY`",
            path=f"{directory}/{display(path)}",
        ))  # fmt: skip
    about = {one.path: files[one.path] for one in attested}
    for path in bundles.Bundles(files, None, None).orphans(about):
        reasons.append(Reason(
            id="bundle.orphan", message=f"{display(path)} is over none of the files of evidence",
            remedy="delete it, or name it by the SHA-256 of the file that it is over", path=f"{directory}/{display(path)}",
        ))  # fmt: skip
    good = [one for one in attested if one.grade is Grade.ATTESTED]
    summary = f"{len(good)} of {len(attested)} files of evidence are attested"
    if good:
        summary += f", by {', '.join(sorted({one.signer for one in good}))}"
    statuses = {reason.status for reason in reasons}
    status = next((s for s in (StageStatus.FAIL, StageStatus.NOT_RUN) if s in statuses), None)
    status = status or (StageStatus.PASS if good else StageStatus.NOT_RUN)
    decides = bool(statuses & {StageStatus.FAIL, StageStatus.NOT_RUN})
    return StageResult(
        stage="attestation", status=status, required=decides, summary=summary, reasons=tuple(reasons)
    )


def _fault(one: Attestation, directory: str) -> Reason:
    status, remedy = StageStatus.FAIL, "sign these bytes again with a key that the base lets sign, or delete the signature"
    if one.fault == f"signature.{_UNCHECKED}":
        status, remedy = StageStatus.NOT_RUN, "install OpenSSH (package openssh-client) where the gate runs"
    of_bundle = one.fault.startswith("bundle.")
    if of_bundle and status is StageStatus.FAIL:
        remedy = "have a workflow that the base names attest to these bytes, or delete the bundle"
    if one.fault == f"bundle.{_UNCHECKED}":
        status, remedy = StageStatus.NOT_RUN, "pip install 'fasttrack[attest]' where the gate runs"
    message = f"{one.path}: {one.message}"
    if not one.changed and status is StageStatus.FAIL:
        # A signer's time may end without any change: that takes the grade, and is no reason against this change.
        status, message = StageStatus.PASS, f"{message} (as at the base: the change does not touch it)"
    return Reason(id=one.fault, message=message, remedy=remedy, status=status,
                  path=f"{directory}/{one.path}{'' if of_bundle else SUFFIX}")  # fmt: skip


def performance(attested: Iterable[Attestation], holding: Collection[str]) -> StageResult:
    """The gate's stage of measured figures: only attested ones count, and of those the ones in `holding`.

    `holding`: paths of the statements that are about the sources that are there. Records of the grid are told apart:
    whether they are about these sources takes the contract's code, which this gate does not run.
    """
    attested = tuple(attested)
    cells, grid = Counter(), Counter()
    for one in attested:
        if one.path.startswith(f"{GRID}/"):
            grid[one.grade] += one.measurements
        else:
            cells[one.grade if one.path in holding else "stale"] += one.measurements
    good = cells[Grade.ATTESTED]
    none = "no measurement is attested" if cells.total() + grid.total() else "no cell is measured"
    parts = [f"{good} attested measurements" if good else none]
    if told := cells[Grade.SELF_REPORTED]:
        parts.append(f"{told} self-reported, shown and not counted")
    if cells["stale"]:
        parts.append(f"{cells['stale']} that are not about these sources")
    if grid.total():
        parts.append(f"records of the grid: {grid[Grade.ATTESTED]} attested, {grid[Grade.SELF_REPORTED]} self-reported, "
                     "not held against the sources here")  # fmt: skip
    status = StageStatus.PASS if good else StageStatus.NOT_RUN
    return StageResult(stage="performance", status=status, required=False, summary="; ".join(parts))


def draft_reasons(attested: Iterable[Attestation], directory: str) -> Iterator[Reason]:
    """Why the change stays a draft: what it brings from a GPU that nobody attests to.

    Files of the grid are told in one reason: there may be hundreds.
    """
    open_ = [one for one in attested if one.grade is Grade.SELF_REPORTED and one.changed]
    grid = [one for one in open_ if one.path.startswith(f"{GRID}/") and one.measurements]
    for one in open_:
        if one in grid or not (one.measurements or one.ruled_on_gpu):
            continue
        what = [f"{one.measurements} measurements"] * bool(one.measurements) + ["a GPU's ruling"] * one.ruled_on_gpu
        yield _self_reported(one.path, f"{' and '.join(what)} that nobody attests to ({one.message})", directory)
    if grid:
        what = f"{len(grid)} measured records of the grid that nobody attests to, the first {grid[0].path}"
        yield _self_reported(grid[0].path, what, directory)


def _self_reported(path: str, what: str, directory: str) -> Reason:
    return Reason(id="performance.self_reported", message=f"{path}: {what}", remedy=_SIGN, status=StageStatus.PASS,
                  path=f"{directory}/{path}")  # fmt: skip


def check_signable(data: bytes, name: str, kind: Kind | None) -> None:
    """UserError unless the bytes are a statement, a record of the grid or a verdict of the ladder: nothing else is signed as evidence.

    `kind`: only this one.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is not JSON", "sign statements, records of the grid and verdicts of the ladder") from error
    found = _kind(value)
    if kind not in (None, found):
        raise UserError(f"{name} is a {found}, and only a {kind} is to be signed", "leave it out, or another --kind")
    if found is Kind.GRID:
        from pydantic import ValidationError

        from fasttrack_validation.load.records import Record as ServerRecord
        from fasttrack_validation.performance.records import Record

        try:
            (ServerRecord if "cell" in value else Record).model_validate_json(data)
        except ValidationError as error:
            raise UserError(f"{name} is no record of the grid: {str(error).splitlines()[0]}",
                            "run the cell again: `fasttrack grid run`") from error  # fmt: skip
        return
    if found is Kind.NUMERICS:
        from pydantic import ValidationError

        from fasttrack_validation.numerics.whole_model.verdict import StageVerdict

        try:
            StageVerdict.model_validate_json(data)
        except ValidationError as error:
            raise UserError(f"{name} is no verdict of the numerics ladder: {str(error).splitlines()[0]}",
                            "run the stage again: `fasttrack validate`") from error  # fmt: skip
        return
    evidence.parse(data, name)


def _kind(value: object) -> Kind:
    if not isinstance(value, dict) or "_type" in value:
        return Kind.STATEMENT
    return Kind.GRID if "outcome" in value else Kind.NUMERICS if "rungs" in value else Kind.STATEMENT
