"""The arrows of a model directory, read from its sources: it imports what kernels need and itself, and nothing else.

Every source of the outcome is read, whether the change touches it or not; none is imported.
"""

from collections.abc import Mapping

from fasttrack_validation.errors import UserError

from .confinement.python_source import check_python
from .evidence import kernel_closure
from .git import display
from .stages import Reason, StageResult, StageStatus

_RULES = {"content.import": "arrows.import", "content.relative_import": "arrows.import", "content.syntax": "arrows.syntax"}
_SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp")
_HOW = "a model directory imports torch, triton, cuda and itself, relatively: then it can be lifted into any tree as it stands"


def stage(files: Mapping[str, bytes], before: Mapping[str, bytes], directory: str) -> StageResult:
    """The gate's stage. What stood at the base already is told, and is no reason against the change."""
    reasons: list[Reason] = []
    sources = sorted(name for name in files if name.endswith(_SOURCES))
    for name in sources:
        for id, line, message in _faults(name, files):
            old = files[name] == before.get(name) and (id, line, message) in set(_faults(name, before))
            said = f"{display(name)}: {message}" + " (as at the base: the change does not touch it)" * old
            reasons.append(Reason(id=id, message=said, remedy=_HOW, path=f"{directory}/{display(name)}", line=line or None,
                                  status=StageStatus.PASS if old else StageStatus.FAIL))  # fmt: skip
    bad = sum(reason.status is StageStatus.FAIL for reason in reasons)
    summary = f"{len(sources)} sources import what they may" if not bad else f"{bad} imports that lead elsewhere"
    status = StageStatus.FAIL if bad else StageStatus.PASS
    return StageResult(stage="arrows", status=status, summary=summary, reasons=tuple(reasons))


def _faults(name: str, files: Mapping[str, bytes]) -> list[tuple[str, int, str]]:
    """(id, line or 0, message) of what is wrong with one source's imports."""
    found = []
    if name.endswith(".py"):
        try:
            text = files[name].decode("utf-8")
        except UnicodeDecodeError:
            return [("arrows.syntax", 0, "not UTF-8")]
        for one in check_python(name, text):
            if one.rule in _RULES:
                found.append((_RULES[one.rule], one.line, one.message))
    if not found:
        try:
            kernel_closure([name], files)
        except UserError as error:
            found.append(("arrows.unresolved", 0, display(error.what)))
    return found
