"""The gate's answer as SARIF 2.1.0, which code hosts show on the lines of a change.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import json
from typing import Any
from urllib.parse import quote

from ..confinement.rules import RULES
from ..gate import GateResult
from ..stages import Reason, StageResult, StageStatus
from .gate import VERDICTS, printable


def render_sarif(result: GateResult) -> str:
    """One run: a rule for each id, a result for each reason, and the exit code that the process really has.

    What decides is an `error`, what keeps the change a draft or a stage open a `warning`, what was left as it was,
    or is nothing to check, a `note`.
    """
    rows = [(_level(reason, stage), reason) for stage in result.stages for reason in stage.reasons]
    rows += [("warning", reason) for reason in result.draft_only]
    names = sorted({reason.id for _, reason in rows})
    remedies = {reason.id: reason.remedy for _, reason in rows}
    run = {
        "tool": {"driver": {"name": "fasttrack gate", "rules": [_rule(name, remedies[name]) for name in names]}},
        "columnKind": "unicodeCodePoints",
        "properties": {"base": result.base, "head": result.head, "model": result.model},
        "invocations": [{
            "executionSuccessful": result.exit_code in (0, 1), "exitCode": result.exit_code,
            "exitCodeDescription": VERDICTS[result.exit_code],
        }],
        "results": [_result(level, reason, names.index(reason.id)) for level, reason in rows],
    }  # fmt: skip
    document = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=1) + "\n"


def _level(reason: Reason, stage: StageResult) -> str:
    if reason.status is StageStatus.PASS or stage.status is StageStatus.EMPTY:
        return "note"
    return "error" if stage.required and reason.status is StageStatus.FAIL else "warning"


def _rule(name: str, remedy: str) -> dict[str, Any]:
    title = RULES[name].title if name in RULES else name.replace(".", ": ").replace("_", " ")
    help = RULES[name].remedy if name in RULES else remedy
    return {"id": name, "shortDescription": {"text": title}, "help": {"text": help}}


def _result(level: str, reason: Reason, index: int) -> dict[str, Any]:
    text = f"{printable(reason.message)}. {reason.remedy}"
    result: dict[str, Any] = {"ruleId": reason.id, "ruleIndex": index, "level": level, "message": {"text": text}}
    if reason.path:
        place = {"artifactLocation": {"uri": quote(reason.path)}, "region": {"startLine": reason.line or 1}}
        result["locations"] = [{"physicalLocation": place}]
    return result
