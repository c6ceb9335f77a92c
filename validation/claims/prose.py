"""Figures in a text that no claim stands behind: multipliers, and tokens a second, in whatever way they are written."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .check import Checked
from .documents import fences
from .render import CLOSING, figures, markdown, times

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
    "prose.up_to": (
        "the best cell alone",
        "write worst, geometric mean and best together",
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


class _Figure(NamedTuple):
    kind: str
    text: str
    value: float | None
    digits: int
    up_to: bool


_NUMBER = r"(?P<n>\d[\d,]*(?:\.\d+)?)"
# A count of cards, "8x H200", and a shape, "16 x 128", are no multipliers.
_CARDS = r"(?!\s*(?:GPUs?|nodes?|ranks?|cards?|NVIDIA|AMD|RTX|[AHBL]\d{2,3}|GB?\d{3}|GH\d{3}|MI\d{3})\b)"
_BETTER = r"(?:faster|slower|quicker|higher|lower|better|more|less|fewer|as fast|as many|as much|the speed|the throughput)"
_MULTIPLIERS = [
    rf"(?<![\w.])(?P<m>\d+(?:\.\d+)?)\s?[x×]?\s?(?:-|–|—|to)\s?{_NUMBER}\s?[x×](?![\w×])(?!\s*\d){_CARDS}",
    rf"(?<![\w.×]){_NUMBER}\s?[x×](?![\w×])(?!\s*\d){_CARDS}",
    rf"(?<![\w.]){_NUMBER}\s?-?\s?fold\b",
    rf"(?<![\w.]){_NUMBER}\s+times\s+{_BETTER}\b",
    rf"(?i:\bspeed-?ups?\s+(?:of|is|was|:)\s*){_NUMBER}(?!\s?[x×%])",
]
_PERCENT = [
    rf"(?<![\w.]){_NUMBER}\s?(?:%|percent)\s+(?:faster|slower|quicker|higher throughput|more tok|more throughput|lower latency|"
    rf"less latency|speed-?up|improvement)",
    rf"\b(?:faster|slower|speed-?up|latency|throughput|tok/s)\b[^.\n]{{0,20}}\bby\s+{_NUMBER}\s?(?:%|percent)",
]
_WORDS = re.compile(
    r"\b(?:twice|thrice|(?:two|three|four|five|six|seven|eight|nine|ten)\s+times)\s+(?:as\s+(?:fast|many|much|quick)|faster|"
    r"the\s+(?:speed|throughput|rate))|\b(?:doubl|tripl|quadrupl|halv)(?:e|es|ed|ing)\s+(?:the\s+|its\s+)?(?:speed|throughput|"
    r"latency|rate|time|tok|decod)\w*|\b(?:two|three|four|five|ten)-?fold\b|\border(?:s)? of magnitude\s+(?:faster|more|less|"
    r"lower|higher)",
    re.IGNORECASE,
)
_RATE = re.compile(
    rf"(?<![\w.]){_NUMBER}\s?(?P<k>k)?\s?(?:output\s+)?(?:tok(?:en)?s?\s?/\s?s(?:ec(?:ond)?)?\b|tok(?:en)?s?\s+(?:per|a)\s+second|"
    r"tps\b|tok/s)", re.IGNORECASE,
)  # fmt: skip
_HEADER = re.compile(r"tok(?:en)?s?\s?/\s?s|tokens?\s+(?:per|a)\s+second|speed-?\s?up|\bmultiplier\b", re.IGNORECASE)
_REFERENCE = re.compile(r"\[claim:([a-z0-9][a-z0-9.-]*)\]")
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
    written = [(number, figure) for number, line in paragraph for figure in _figures(line)]
    written += _cells(paragraph)
    named = list(dict.fromkeys(name for _, line in paragraph for name in _REFERENCE.findall(line)))
    for number, line in paragraph:
        for name in _REFERENCE.findall(line):
            if name not in claims:
                yield Remark("prose.unknown_claim", number, f"claim {name} is not given")
    known = [claims[name] for name in named if name in claims]
    allowed = [figure for checked in known for figure in figures(checked)]
    for number, figure in written:
        if not named:
            yield Remark("prose.unbacked", number, f"{figure.text!r} has no claim behind it")
        elif known and not _matches(figure, allowed):
            shown = ", ".join(dict.fromkeys(times(v) if kind == "ratio" else f"{v:.1f} tok/s" for kind, v in allowed))
            yield Remark("prose.mismatch", number, f"{figure.text!r}: {', '.join(named)} derives {shown or 'no figure'}")
        elif known and figure.up_to and not _balanced(known, [one for _, one in written]):
            yield Remark("prose.up_to", number, f"'up to {figure.text}' stands alone")


def _figures(line: str) -> Iterator[_Figure]:
    line = re.sub(r"<!--.*?-->|https?://\S+|\]\([^)]*\)", lambda found: " " * len(found[0]), line)
    taken: list[tuple[int, int]] = []

    def free(found: re.Match[str]) -> bool:
        if any(found.start() < end and start < found.end() for start, end in taken):
            return False
        taken.append(found.span())
        return True

    for kind, patterns in (("rate", [_RATE]), ("percent", _PERCENT), ("ratio", _MULTIPLIERS)):
        for pattern in patterns:
            for found in re.finditer(pattern, line):
                if free(found):
                    up_to = bool(re.search(r"\bup to\s*$", line[: found.start()], re.IGNORECASE))
                    if found.groupdict().get("m"):
                        yield _figure(kind, found["m"], found[0].strip(), False, 1)
                    factor = 1000 if found.groupdict().get("k") else 1
                    yield _figure(kind, found["n"], found[0].strip(), up_to, factor)
    for found in _WORDS.finditer(line):
        if free(found):
            yield _Figure("words", found[0], None, 0, False)


def _figure(kind: str, number: str, text: str, up_to: bool, factor: int) -> _Figure:
    number = number.replace(",", "").rstrip(".")
    digits = len(number.partition(".")[2]) - (3 if factor == 1000 else 0)
    return _Figure(kind, text, float(number) * factor, digits, up_to)


def _cells(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, _Figure]]:
    """Bare numbers below a table's header that names a rate or a speed-up."""
    rows = [(number, [cell.strip() for cell in line.strip().strip("|").split("|")]) for number, line in paragraph if "|" in line]
    if len(rows) < 3 or not all(re.fullmatch(r":?-+:?", cell) for cell in rows[1][1]):
        return
    for column, header in enumerate(rows[0][1]):
        if not (named := _HEADER.search(header)):
            continue
        kind = "rate" if named[0].lower().startswith("tok") else "ratio"
        for number, cells in rows[2:]:
            cell = cells[column] if column < len(cells) else ""
            if found := re.fullmatch(r"[*_`~]*(\d[\d,]*(?:\.\d+)?)[*_`]*", cell):
                yield number, _figure(kind, found[1], f"{found[1]} ({header})", False, 1)


def _matches(figure: _Figure, allowed: list[tuple[str, float]]) -> bool:
    """Whether a claim derives the figure, to the digits that are written."""
    if figure.value is None:
        return False
    if figure.kind == "percent":
        ratios = [value for kind, value in allowed if kind == "ratio"]
        found = [100 * abs(value - 1) for value in ratios] + [100 * abs(1 - 1 / value) for value in ratios]
    else:
        found = [value for kind, value in allowed if kind == figure.kind]
    # As written, or as rendered and then written: 1.725 is 1.73 and never 1.72.
    return any(abs(value - figure.value) <= 0.5 * 10**-figure.digits * (1 + 1e-9) for value in found)


def _balanced(known: list[Checked], written: list[_Figure]) -> bool:
    """Whether worst and geometric mean stand beside the best."""
    for checked in known:
        if checked.summary is not None:
            needed = (checked.summary.worst, checked.summary.geometric_mean)
            if all(any(_matches(one, [("ratio", value)]) for one in written) for value in needed):
                return True
    return False
