"""Findings as SARIF 2.1.0, which code hosts show on the lines of a change."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from . import prose
from .findings import FAILING, OPEN, Effect
from .rules import RULES, page


class Located(NamedTuple):
    """A finding with the place of what it is about. `effect` is None for prose, which always fails."""

    rule: str
    effect: Effect | None
    message: str
    path: str
    line: int
    subject: str = ""

    @property
    def remedy(self) -> str:
        """What to do."""
        return page(self.rule).remedy if self.rule in RULES else prose.RULES[self.rule][1]

    @property
    def level(self) -> str:
        """SARIF's words: what fails is an error, what is open a warning."""
        if self.effect is None or self.effect in FAILING:
            return "error"
        return "warning" if self.effect in OPEN else "note"


def document(located: Iterable[Located]) -> dict[str, Any]:
    """One run with every rule and its page, and a result for each finding."""
    rules = [_rule(name, page(name).title, page(name).remedy, page(name).text) for name in RULES]
    rules += [_rule(name, title, remedy, f"{title}: {remedy}") for name, (title, remedy) in prose.RULES.items()]
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    results = [
        {
            "ruleId": one.rule, "ruleIndex": index[one.rule], "level": one.level,
            "message": {"text": f"{one.subject}{': ' if one.subject else ''}{one.message}. {one.remedy}"},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": one.path}, "region": {"startLine": one.line},
            }}],
        }
        for one in located
    ]  # fmt: skip
    tool = {"driver": {"name": "fasttrack claims", "rules": rules}}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": tool, "results": results, "columnKind": "unicodeCodePoints"}],
    }  # fmt: skip


def _rule(name: str, title: str, remedy: str, text: str) -> dict[str, Any]:
    return {
        "id": name, "shortDescription": {"text": title}, "fullDescription": {"text": remedy},
        "help": {"text": text, "markdown": text},
    }  # fmt: skip
