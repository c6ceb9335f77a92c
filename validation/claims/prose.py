"""Figures in a text that no claim stands behind: multipliers, and tokens a second, in whatever way they are written."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .check import Checked
from .documents import fences
from .render import CLOSING, figures, markdown, times
from .typed import Typed, figure, typed

RULES = {
    "prose.unbacked": (
        "a figure without a claim behind it",
        "name the claim in the same paragraph, as [claim:ID], or paste what `fasttrack claims render` prints",
    ),
    "prose.mismatch": (
        "a figure that its claim does not derive",
        "write the figure as `fasttrack claims render` prints it",
    ),
    "prose.unknown_claim": (
        "a claim that is not there",
        "add the claim to the text as a fenced `claim` block, or give its file to the same command",
    ),
    "prose.best_alone": (
        "the best cell alone",
        "write worst, geometric mean and best together",
    ),
    "prose.scope": (
        "a figure without the words that say what it is about",
        "write what the claim's title carries: `fasttrack claims render` prints it",
    ),
    "prose.altered": (
        "a rendered claim that was edited",
        "paste what `fasttrack claims render` prints",
    ),
}


class Remark(NamedTuple):
    """A figure, or a block, that may not stand as it does."""

    rule: str
    line: int
    message: str

    @property
    def remedy(self) -> str:
        """What to do."""
        return RULES[self.rule][1]


ROUNDING = 0.02
_HEADER = re.compile(r"tok(?:en)?s?\s?/\s?s|tokens?\s+(?:per|a)\s+second|speed-?\s?up|\bmultiplier\b", re.IGNORECASE)
_REFERENCE = re.compile(r"\[claim:([a-z0-9][a-z0-9.-]*)\]")
# Words of a title's qualifiers, and how a text may write them.
_SCOPES = [
    ("decode only", re.compile(r"\bdecod\w*[\s-]+only\b|\bonly\s+decod|\bin decode\b", re.IGNORECASE)),
    ("prefill only", re.compile(r"\bprefill[\s-]+only\b|\bonly\s+prefill|\bin prefill\b", re.IGNORECASE)),
    ("one rank", re.compile(r"\bone rank\b|\brank shard\b|\bsingle rank\b", re.IGNORECASE)),
    ("single stream", re.compile(r"\bsingle[\s-]stream\b", re.IGNORECASE)),
    ("acceptance forced", re.compile(r"\bforced\b", re.IGNORECASE)),
    ("provisional", re.compile(r"\bprovisional", re.IGNORECASE)),
]
_OPENING = re.compile(r"\s*<!-- claim: (\S+) -->\s*")
# What a program printed is a text like any other; source code is not.
_SHOWN = frozenset({"", "text", "txt", "console", "log", "output", "plain", "markdown", "md"})


def remarks(text: str, claims: Mapping[str, Checked]) -> tuple[Remark, ...]:
    """Everything in a Markdown text that may not stand there, given the claims that may be named, by line."""
    lines = text.splitlines()
    found: list[Remark] = []
    hidden = _hide_code(text, lines)
    found += _rendered(lines, hidden, claims)
    for paragraph in _paragraphs(lines, hidden):
        found += _paragraph(paragraph, claims)
    return tuple(sorted(found, key=lambda remark: remark.line))


def _hide_code(text: str, lines: list[str]) -> set[int]:
    """Lines that are no prose: fences themselves, and what stands in a claim or in source code."""
    hidden: set[int] = set()
    for block in fences(text):
        inside = () if block.language in _SHOWN else range(block.first + 1, block.last)
        hidden |= {block.first, block.last, *inside}
    return hidden


def _rendered(lines: list[str], hidden: set[int], claims: Mapping[str, Checked]) -> Iterator[Remark]:
    """Blocks that say they were rendered are held against what is rendered now; they are hidden from the rest."""
    number = 1
    while number <= len(lines):
        opened = None if number in hidden else _OPENING.fullmatch(lines[number - 1])
        if not opened:
            number += 1
            continue
        end = next((n for n in range(number, len(lines) + 1) if lines[n - 1].strip() == CLOSING), len(lines))
        if opened[1] not in claims:
            yield Remark("prose.unknown_claim", number, f"claim {opened[1]} is not given")
        elif "\n".join(line.rstrip() for line in lines[number - 1 : end]) + "\n" != markdown(claims[opened[1]]):
            yield Remark("prose.altered", number, f"differs from what claim {opened[1]} says")
        hidden |= set(range(number, end + 1))
        number = end + 1


def _paragraphs(lines: list[str], hidden: set[int]) -> Iterator[list[tuple[int, str]]]:
    """Runs of lines without a blank one between them."""
    run: list[tuple[int, str]] = []
    for number, line in enumerate([*lines, ""], 1):
        if line.strip() and number not in hidden:
            run.append((number, line))
        elif run:
            yield run
            run = []


def _paragraph(paragraph: list[tuple[int, str]], claims: Mapping[str, Checked]) -> Iterator[Remark]:
    written = [(number, one) for number, line in paragraph for one in typed(_REFERENCE.sub("", line))]
    written += _cells(paragraph)
    named = list(dict.fromkeys(name for _, line in paragraph for name in _REFERENCE.findall(line)))
    for number, line in paragraph:
        for name in _REFERENCE.findall(line):
            if name not in claims:
                yield Remark("prose.unknown_claim", number, f"claim {name} is not given")
    known = [claims[name] for name in named if name in claims]
    allowed = [one for checked in known for one in figures(checked)]
    for number, one in written:
        if not named:
            yield Remark("prose.unbacked", number, f"{one.text!r} has no claim behind it")
        elif not known:
            continue
        elif not _matches(one, allowed):
            shown = ", ".join(dict.fromkeys(times(v) if kind == "ratio" else f"{v:.1f} tok/s" for kind, v in allowed))
            yield Remark("prose.mismatch", number, f"{one.text!r}: {', '.join(named)} derives {shown or 'no figure'}")
        elif (one.up_to or _best(one, known)) and not _balanced(known, [other for _, other in written]):
            yield Remark("prose.best_alone", number, f"{one.text!r} stands alone")
    if written and known:
        said = _REFERENCE.sub("", " ".join(line for _, line in paragraph))
        for checked in known:
            lacking = [words for words, pattern in _SCOPES if _carries(checked, words) and not pattern.search(said)]
            if lacking:
                yield Remark(
                    "prose.scope", written[0][0], f"figures of {checked.claim.id} without: {', '.join(lacking)}"
                )


def _carries(checked: Checked, words: str) -> bool:
    return any(words in qualifier for qualifier in checked.qualifiers)


def _best(one: Typed, known: list[Checked]) -> bool:
    """Whether the figure is the best of several cells, and not also their mean or worst."""
    summaries = [checked.summary for checked in known if checked.summary is not None and len(checked.rows) > 1]
    return any(
        _matches(one, [("ratio", summary.best)])
        and not _matches(one, [("ratio", summary.geometric_mean), ("ratio", summary.worst)])
        for summary in summaries
    )


def _cells(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, Typed]]:
    """Bare numbers below a table's header that names a rate or a speed-up."""
    rows = [
        (number, [cell.strip() for cell in line.strip().strip("|").split("|")])
        for number, line in paragraph
        if "|" in line
    ]
    if len(rows) < 3 or not all(re.fullmatch(r":?-+:?", cell) for cell in rows[1][1]):
        return
    for column, header in enumerate(rows[0][1]):
        if not (named := _HEADER.search(header)):
            continue
        kind = "rate" if named[0].lower().startswith("tok") else "ratio"
        for number, cells in rows[2:]:
            cell = cells[column] if column < len(cells) else ""
            if found := re.fullmatch(r"[*_`~]*(\d[\d,]*(?:\.\d+)?)[*_`]*", cell):
                yield number, figure(kind, found[1], f"{found[1]} ({header})", False, 1)


def _matches(one: Typed, allowed: list[tuple[str, float]]) -> bool:
    """Whether a claim derives the figure, to the digits that are written. Rounding a multiplier up by more than a
    fiftieth is not rounding: 1.73 may be written 1.7x, and not 2x."""
    if one.value is None:
        return False
    half = 0.5 * 10**-one.digits * (1 + 1e-9)
    if one.kind == "percent":
        ratios = [value for kind, value in allowed if kind == "ratio"]
        found = [100 * abs(value - 1) for value in ratios] + [100 * abs(1 - 1 / value) for value in ratios]
    elif one.kind == "ratio":
        found = [value for kind, value in allowed if kind == "ratio" and abs(one.value / value - 1) <= ROUNDING]
    else:
        found = [value for kind, value in allowed if kind == one.kind]
    return any(abs(value - one.value) <= half for value in found)


def _balanced(known: list[Checked], written: list[Typed]) -> bool:
    """Whether worst and geometric mean stand beside the best."""
    for checked in known:
        if checked.summary is not None:
            needed = (checked.summary.worst, checked.summary.geometric_mean)
            if all(any(_matches(one, [("ratio", value)]) for one in written) for value in needed):
                return True
    return False
