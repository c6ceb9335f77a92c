"""From an answer to a score. Only the answer's own text is read, never the reasoning before it."""

import re
from difflib import SequenceMatcher

from ..records import Frozen
from .frozen import Item, Key, Scorer

_INTEGER = re.compile(
    r"(?:\\boxed\s*\{\s*|^[\s*_]*answer\s*:[\s*_$]*)(-?\d{1,12})(?![\d.,]*\d)", re.IGNORECASE | re.MULTILINE
)
_CHOICE = re.compile(r"^[\s*_]*answer\s*:[\s*_]*\(?([A-Z])\)?(?![A-Za-z])", re.IGNORECASE | re.MULTILINE)


class Scored(Frozen):
    """A score in [0, 1]. `parsed` is false where no answer was found in the text, which scores 0."""

    score: float
    parsed: bool


def score(scorer: Scorer, item: Item, key: Key, text: str) -> Scored:
    """The score of `text` as an answer to `item`."""
    if scorer is Scorer.MRCR:
        return mrcr(text, key.answer, item.prefix)
    if scorer is Scorer.LAST_LINE:
        last = text.strip().rpartition("\n")[2].strip()
        return Scored(score=float(last == key.answer), parsed=bool(last))
    found = (_INTEGER if scorer is Scorer.INTEGER else _CHOICE).findall(text)
    if not found:
        return Scored(score=0.0, parsed=False)
    if scorer is Scorer.INTEGER:
        return Scored(score=float(int(found[-1]) == int(key.answer)), parsed=True)
    letter = found[-1].upper()
    offered = ord(letter) - ord("A") < len(item.options)
    return Scored(score=float(letter == key.answer), parsed=offered)


def mrcr(text: str, answer: str, prefix: str) -> Scored:
    """The published definition (openai/mrcr): 0 unless the text starts with `prefix`, to the character; else the ratio
    of `difflib.SequenceMatcher` over what follows it in the text and in `answer`, with its default autojunk.
    """
    if not text.startswith(prefix):
        return Scored(score=0.0, parsed=False)
    ratio = SequenceMatcher(None, text.removeprefix(prefix), answer.removeprefix(prefix)).ratio()
    return Scored(score=ratio, parsed=True)
