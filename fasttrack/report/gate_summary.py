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
        lines.append(f"| {stage.stage} | {_SIGNS[stage.status]} | {_text(stage.summary)}{note} |")
    lines += _list("Reasons", [reason for stage in result.stages for reason in stage.reasons])
    lines += _list("Why it stays a draft", list(result.draft_only))
    return "\n".join(lines) + "\n\n"


def _list(title: str, reasons: list[Reason]) -> list[str]:
    if not reasons:
        return []
    lines = ["", f"### {title}", ""]
    for reason in reasons[:MAX_REASONS]:
        place = ":".join(str(part) for part in (reason.path, reason.line) if part)
        where = f"<code>{_text(place)}</code>: " if place else ""
        lines.append(f"- {where}{_text(reason.message)} (<code>{_text(reason.id)}</code>). {_text(reason.remedy)}")
    if len(reasons) > MAX_REASONS:
        lines.append(f"- and {len(reasons) - MAX_REASONS} more: `fasttrack gate --format json` prints all")
    return lines


def _text(text: str) -> str:
    """Text as one line of plain characters: no markup, link, mention or cell border of the head's becomes one here."""
    return "".join(c if c.isalnum() or c in " .,;/" else f"&#{ord(c)};" for c in printable(text)[:2000])
