"""What the gate makes of a manifest: whose it is, which exam it names, and the dispatch tables that it leads to."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from fasttrack_validation.contracts.subgraph import SEPARATOR
from fasttrack_validation.errors import UserError

from . import dispatch, faster
from .confinement.names import MANIFEST
from .stages import Reason, StageResult, StageStatus

Files = Mapping[str, bytes]


def read(files: Files, directory: str, model: str, parse: Callable[[str, str], Any]) -> tuple[Any, StageResult]:
    """The manifest, and the gate's stage about it; None where it does not hold."""
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
    if manifest.model.contract != model:
        # Whoever proposes does not choose the exam: another model's may be an easier one.
        return fail("manifest.contract", f"{path} names the contract {manifest.model.contract!r}",
                    f"a model is examined by the contract of its own name: {model!r}")  # fmt: skip
    count = len(manifest.ops)
    return manifest, StageResult(stage="manifest", status=StageStatus.PASS, summary=f"{count} op{'s' * (count != 1)}")


def tables(manifest: Any, files: Files, directory: str, untouched: Collection[str]) -> StageResult:
    """The gate's stage of dispatch tables: each covers what the manifest claims, with kernels that its op names.

    A kernel that only a table names is one that nobody judged. `untouched`: ops that the change leaves as they were.
    """
    reasons = [
        _left_alone(reason) if op in untouched else reason
        for op in manifest.ops for reason in _faults(op, manifest, files, directory)
    ]  # fmt: skip
    reasons += _faster_faults(manifest, files, directory)
    bad = sum(reason.status is StageStatus.FAIL for reason in reasons)
    count = len(manifest.ops)
    summary = f"{bad} of {count} tables may not stand" if bad else f"{count} table{'s' * (count != 1)}: every place has a judged kernel"
    return StageResult(stage="dispatch", status=StageStatus.FAIL if bad else StageStatus.PASS, summary=summary,
                       reasons=tuple(reasons))  # fmt: skip


def widened(manifest: Any, old: Any, directory: str) -> Iterator[Reason]:
    """What a manifest claims beyond the base's, which takes the contract's code to check: a person looks, or --recheck.

    Nothing of a model that is new: there people review the contract, and the envelope with it.
    """
    if old is None:
        return
    before = {(one.hardware, one.tp): one for one in old.envelope}
    for one in manifest.envelope:
        then = before.get((one.hardware, one.tp))
        same = then is not None and then.rows[0] <= one.rows[0] and one.rows[1] <= then.rows[1]
        if same and one.verify_width <= then.verify_width and set(one.dtypes) <= set(then.dtypes):
            continue
        yield Reason(
            id="manifest.widened", message=f"the envelope claims more than the base's for {one.hardware} tp={one.tp}",
            remedy="`fasttrack gate --recheck` holds it against the contract", status=StageStatus.PASS,
            path=f"{directory}/{MANIFEST}",
        )  # fmt: skip


def _faults(op: str, manifest: Any, files: Files, directory: str) -> Iterator[Reason]:
    entry = manifest.ops[op]

    def reason(id: str, message: str, remedy: str) -> Reason:
        return Reason(id=id, message=f"{op}: {message}", remedy=remedy, path=f"{directory}/{entry.dispatch}", op=op)

    if entry.dispatch not in files:
        yield reason("dispatch.missing", f"{entry.dispatch} is not there", "`fasttrack propose` writes it; or correct the manifest")
        return
    try:
        table = dispatch.parse(files[entry.dispatch].decode("utf-8"), Path(entry.dispatch))
        check = dispatch.check_within if SEPARATOR in op else dispatch.check_cover
        check(table, [(one.hardware, one.tp, one.rows) for one in manifest.envelope], Path(entry.dispatch))
    except UnicodeDecodeError:
        yield reason("dispatch.invalid", f"{entry.dispatch} is not UTF-8", "write it as UTF-8 text")
        return
    except UserError as error:
        yield reason("dispatch.invalid", error.what, error.how)
        return
    for kernel in sorted({row.kernel for row in table.entry} - set(entry.kernels)):
        yield reason("dispatch.kernel", f"the table names {kernel}, which is not among the op's kernels",
                     "list it in the manifest, and have it judged")  # fmt: skip


def _faster_faults(manifest: Any, files: Files, directory: str) -> Iterator[Reason]:
    """The table of steps that were measured to be faster: whether it holds, not whether records bear it out."""
    name = manifest.decode and manifest.decode.faster
    if not name:
        return

    def reason(message: str, remedy: str) -> Reason:
        return Reason(id="dispatch.faster", message=message, remedy=remedy, path=f"{directory}/{name}")

    if name not in files:
        yield reason(f"{name} is not there", "`fasttrack grid decide --write` draws it; or correct the manifest")
        return
    try:
        table = faster.parse(files[name].decode("utf-8"), Path(name))
        claimed = [(one.hardware, one.tp, one.rows, one.verify_width) for one in manifest.envelope]
        faster.check_within(table, claimed, Path(name))
    except UnicodeDecodeError:
        yield reason(f"{name} is not UTF-8", "write it as UTF-8 text")
    except UserError as error:
        yield reason(error.what, error.how)


def _left_alone(reason: Reason) -> Reason:
    message = f"{reason.message} (as at the base: the change does not touch this op)"
    return reason.model_copy(update={"message": message, "status": StageStatus.PASS})
