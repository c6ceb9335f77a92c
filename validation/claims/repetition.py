"""How much an output repeats itself: what a broken kernel, or a benchmark without meaning, looks like."""

from collections.abc import Iterable

WORDS = 8


def repeated_ngrams(texts: Iterable[str]) -> float | None:
    """Mean over outputs of the share of 8-grams of words that were seen before in the same output, 0 to 1.

    Outputs of fewer than nine words say nothing and are left out; None where none is left. Text without spaces is
    taken by characters, so that other scripts count as well.
    """
    shares = [share for text in texts if (share := _share(text)) is not None]
    return sum(shares) / len(shares) if shares else None


def _share(text: str) -> float | None:
    words = text.split()
    if len(words) < 2 and len(text) > WORDS:
        words = list(text)
    grams = [tuple(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else None
