"""The gate's answer as a page for a workflow run: Markdown in which nothing that the head wrote can act."""

from ..gate import GateResult
from ..stages import Reason
from .gate import VERDICTS, printable

MAX_REASONS = 100
"""A step summary may have 1 MiB; whoever has more reasons than this reads the JSON"""
_SIGNS = {"pass": "✅ pass", "fail": "❌ fail", "not_run": "⏸ not run", "empty": "∅ empty"}


def render_summary(result: GateResult) -> str:
    """A table of the stages, then each reason with its remedy, and why the change stays a draft."""
    lines = [
        f"## Gate: {VERDICTS[result.exit_code]}", "",
        f"`{result.head[:12]}` into `{result.base[:12]}`, model `{result.model}`, policy from the {result.policy}.", "",
        "| Stage | Status | |", "| --- | --- | --- |",
    ]  # fmt: skip
    for stage in result.stages:
        note = "" if stage.required else " (not required)"
        summary = _code(stage.summary).replace("|", "\\|")
        lines.append(f"| {stage.stage} | {_SIGNS[stage.status]} | {summary}{note} |")
    lines += _list("Reasons", [reason for stage in result.stages for reason in stage.reasons])
    lines += _list("Why it stays a draft", list(result.draft_only))
    return "\n".join(lines) + "\n\n"


def _list(title: str, reasons: list[Reason]) -> list[str]:
    if not reasons:
        return []
    lines = ["", f"### {title}", ""]
    for reason in reasons[:MAX_REASONS]:
        place = ":".join(str(part) for part in (reason.path, reason.line) if part)
        where = f"{_code(place)}: " if place else ""
        lines += [f"- **{reason.id}** {where}{_code(reason.message)}", f"  - {_code(reason.remedy)}"]
    if len(reasons) > MAX_REASONS:
        lines.append(f"- and {len(reasons) - MAX_REASONS} more: `fasttrack gate --format json` prints all")
    return lines


def _code(text: str) -> str:
    """Text as a code span on one line: in there no markup, link, mention or entity of the head's is read as one."""
    plain = printable(text)[:2000].replace("`", "'")
    return f"`{plain or '-'}`"
