"""The twenty rules: pure functions from a claim to findings, with stable ids and a page for each.

A page (pages/p01.md ...) has a title, why the rule is there, the remedy, and an example. It is part of the package."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ..claim import Claim
from ..findings import Finding
from . import arms, missing, scope, speculation, validity

Check = Callable[[Claim], Iterator[Finding]]


class Page(NamedTuple):
    """What a person reads about a rule."""

    id: str
    title: str
    text: str

    def section(self, name: str) -> str:
        """The text below one of its headings."""
        return re.search(rf"^## {name}\n+(.*?)(?=^## |\Z)", self.text, re.MULTILINE | re.DOTALL)[1].strip()

    @property
    def remedy(self) -> str:
        """What to do, in one paragraph."""
        return " ".join(self.section("Remedy").split())


RULES: dict[str, Check] = {
    "P1": missing.missing_condition,
    "P2": arms.gpu_counts,
    "P3": speculation.forced_acceptance,
    "P4": speculation.implausible_acceptance,
    "P5": speculation.acceptance_differs,
    "P6": scope.not_end_to_end,
    "P7": scope.single_stream,
    "P8": scope.best_cell,
    "P9": validity.cache_hits_differ,
    "P10": validity.failures_or_length,
    "P11": validity.degenerate_output,
    "P12": validity.no_accuracy,
    "P13": arms.tuned_differently,
    "P14": arms.baseline_old,
    "P15": validity.no_change,
    "P16": validity.swap_bias,
    "P17": validity.below_floor,
    "P18": validity.seed_reused,
    "P19": arms.clocks_differ,
    "P20": scope.prefill_overlap,
}


@cache
def page(rule: str) -> Page:
    """The page of a rule, by its id."""
    text = (files(__package__.rpartition(".")[0]) / "pages" / f"p{int(rule[1:]):02}.md").read_text("utf-8")
    heading = re.match(rf"# {rule} (.+)\n", text)
    return Page(id=rule, title=heading[1], text=text)


def findings(claim: Claim) -> tuple[Finding, ...]:
    """What every rule says of a claim, in their order."""
    return tuple(finding for check in RULES.values() for finding in check(claim))
