"""The gate's answer as text for a terminal, as JSON, and as annotations on a pull request's lines."""

from fasttrack_validation.records import canonical_json

from ..gate import GateResult
from ..stages import Reason, StageResult, StageStatus

VERDICTS = {0: "pass", 1: "fail", 3: "a required stage did not run", 4: "nothing to check"}
"""Exit code -> in words"""


def render_text(result: GateResult) -> str:
    """The result for a terminal: one line a stage, its reasons below, each with what to do."""
    lines = [f"gate {result.model}: {result.head[:12]} into {result.base[:12]}, policy from the {result.policy}"]
    for stage in result.stages:
        note = "" if stage.required else " (not required)"
        lines.append(f"  {stage.status.replace('_', ' '):8} {stage.stage:12} {printable(stage.summary)}{note}")
        for reason in stage.reasons:
            if reason.id != "evidence.untouched":  # the stage's own line counts them; there may be dozens
                lines += _lines(reason)
    if result.draft_only:
        lines.append("  stays a draft:")
        for reason in result.draft_only:
            lines += _lines(reason)
    return "\n".join([*lines, VERDICTS[result.exit_code]]) + "\n"


def _lines(reason: Reason) -> list[str]:
    place = ":".join(str(part) for part in (reason.path, reason.line) if part)
    return [f"    {printable(place) + ': ' if place else ''}{printable(reason.message)} [{reason.id}]",
            f"      {printable(reason.remedy)}"]  # fmt: skip


def printable(text: str) -> str:
    """`text` on one line without control characters: messages may quote the head's files."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def render_json(result: GateResult) -> str:
    """The result as JSON, exit code included."""
    return canonical_json(result.model_dump(mode="json") | {"exit_code": result.exit_code}) + "\n"


def render_annotations(result: GateResult) -> str:
    """GitHub workflow commands: errors for what decides, warnings for what keeps it a draft, notices for the rest.

    In this order: a step shows ten annotations of a kind.
    """
    rows = [(_level(reason, stage), reason) for stage in result.stages for reason in stage.reasons]
    rows += [("warning", reason) for reason in result.draft_only]
    rows.sort(key=lambda row: ("error", "warning", "notice").index(row[0]))
    lines = []
    for level, reason in rows:
        place = {"file": reason.path, "line": reason.line, "title": reason.id}
        properties = ",".join(f"{key}={_escape(str(value), ':,')}" for key, value in place.items() if value)
        lines.append(f"::{level} {properties}::{_escape(f'{printable(reason.message)}. {printable(reason.remedy)}')}")
    return "".join(f"{line}\n" for line in lines)


def _level(reason: Reason, stage: StageResult) -> str:
    if reason.status is StageStatus.PASS:
        return "notice"
    return "error" if stage.required and reason.status is StageStatus.FAIL else "warning"


def _escape(text: str, more: str = "") -> str:
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
