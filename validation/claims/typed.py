"""Figures that somebody typed: multipliers in whatever way they are written, and tokens a second."""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Typed(NamedTuple):
    """One figure of a line. `value` is None for one in words; a rate is in tok/s, a percentage as written."""

    kind: str
    text: str
    value: float | None
    digits: int
    up_to: bool


_NUMBER = r"(?P<n>\d[\d,]*(?:\.\d+)?)"
# A count of cards, "8x H200", and a shape, "16 x 128", are no multipliers.
_CARDS = r"(?!\s*(?:GPUs?|nodes?|ranks?|cards?|NVIDIA|AMD|RTX|[AHBL]\d{2,3}|GB?\d{3}|GH\d{3}|MI\d{3})\b)"
_BETTER = (
    r"(?:faster|slower|quicker|higher|lower|better|more|less|fewer|as fast|as many|as much|the speed|the throughput)"
)
_MULTIPLIERS = [
    rf"(?<![\w.])(?P<m>\d+(?:\.\d+)?)\s?[xX×]?\s?(?:-|–|—|to)\s?{_NUMBER}\s?[xX×](?![\w×])(?!\s*\d){_CARDS}",
    rf"(?<![\w.×]){_NUMBER}\s?[xX×](?![\w×])(?!\s*\d){_CARDS}",
    r"(?<![\w.])[x×](?P<n>\d+\.\d+)\b",
    rf"(?<![\w.]){_NUMBER}\s?-?\s?fold\b",
    rf"(?<![\w.]){_NUMBER}\s+times\s+{_BETTER}\b",
    rf"(?i:\bspeed-?ups?(?:\s+(?:of|is|was)|\s*[:=])\s*){_NUMBER}(?!\s?[x×%])",
]
_PERCENT = [
    rf"(?<![\w.]){_NUMBER}\s?(?:%|percent)\s+(?:faster|slower|quicker|higher throughput|more tok|more throughput|"
    r"lower latency|less latency|speed-?up|improvement)",
    rf"\b(?:faster|slower|speed-?up|latency|throughput|tok/s)\b[^.\n]{{0,20}}\bby\s+{_NUMBER}\s?(?:%|percent)",
]
_WORDS = re.compile(
    r"\b(?:twice|thrice|(?:two|three|four|five|six|seven|eight|nine|ten)\s+times)\s+"
    r"(?:as\s+(?:fast|many|much|quick)|faster|the\s+(?:speed|throughput|rate))"
    r"|\b(?:doubl|tripl|quadrupl|halv)(?:e|es|ed|ing)\s+(?:the\s+|its\s+)?(?:speed|throughput|latency|rate|time|tok|decod)\w*"
    r"|\b(?:two|three|four|five|ten)-?fold\b|\borders? of magnitude\s+(?:faster|more|less|lower|higher)",
    re.IGNORECASE,
)
_UNIT = r"(?:tok(?:en)?s?\s?/\s?s(?:ec(?:ond)?)?\b|tok(?:en)?s?\s+(?:per|a)\s+second|tps\b)"
_RATES = [
    rf"(?i:(?<![\w.])(?P<m>\d[\d,]*(?:\.\d+)?)\s?(?:-|–|—|to|against|vs\.?|and|or|from|over)\s?{_NUMBER}\s?{_UNIT})",
    rf"(?i:(?<![\w.]){_NUMBER}\s?(?P<k>k)?\s?(?:output\s+)?{_UNIT})",
    rf"(?i:{_UNIT}(?:/(?:user|gpu))?[)\]]?\s*[:=]\s*{_NUMBER})",
]


def typed(line: str) -> Iterator[Typed]:
    """Every figure of a line. Addresses and comments are no text."""
    line = re.sub(r"<!--.*?-->|https?://\S+|\]\([^)]*\)", lambda found: " " * len(found[0]), line)
    taken: list[tuple[int, int]] = []

    def free(found: re.Match[str]) -> bool:
        if any(found.start() < end and start < found.end() for start, end in taken):
            return False
        taken.append(found.span())
        return True

    for kind, patterns in (("rate", _RATES), ("percent", _PERCENT), ("ratio", _MULTIPLIERS)):
        for pattern in patterns:
            for found in re.finditer(pattern, line):
                if free(found):
                    up_to = bool(re.search(r"\bup to\s*$", line[: found.start()], re.IGNORECASE))
                    if found.groupdict().get("m"):
                        yield figure(kind, found["m"], found[0].strip(), False, 1)
                    factor = 1000 if found.groupdict().get("k") else 1
                    yield figure(kind, found["n"], found[0].strip(), up_to, factor)
    for found in _WORDS.finditer(line):
        if free(found):
            yield Typed("words", found[0], None, 0, False)


def figure(kind: str, number: str, text: str, up_to: bool, factor: int) -> Typed:
    """A figure from its digits; `factor` is 1000 where a k stands behind them."""
    number = number.replace(",", "").rstrip(".")
    digits = len(number.partition(".")[2]) - (3 if factor == 1000 else 0)
    return Typed(kind, text, float(number) * factor, digits, up_to)
