"""What rules share."""

from collections.abc import Callable, Iterable, Iterator

from ..claim import Claim, Pair
from ..conditions import Difference
from ..findings import Effect, Finding
from ..measurement import Measurement


def arms(pair: Pair) -> tuple[tuple[str, Measurement], ...]:
    """Both arms of a pair with their names."""
    return ("candidate", pair.candidate), ("baseline", pair.baseline)


def of_arms(claim: Claim, rule: str, effect: Effect, why: Callable[[Measurement], str | None]) -> Iterator[Finding]:
    """One finding with every arm for which `why` has something to say."""
    found = [
        (pair.cell, f"{name} of {pair.cell}: {said}")
        for pair in claim.pairs for name, arm in arms(pair) if (said := why(arm))
    ]  # fmt: skip
    yield from _one(rule, effect, found)


def of_pairs(claim: Claim, rule: str, effect: Effect, why: Callable[[Pair], str | None]) -> Iterator[Finding]:
    """One finding with every pair for which `why` has something to say."""
    found = [(pair.cell, f"{pair.cell}: {said}") for pair in claim.pairs if (said := why(pair))]
    yield from _one(rule, effect, found)


def of_differences(rule: str, found: Iterable[tuple[str, Difference]]) -> Iterator[Finding]:
    """One suppressing finding that lists differing conditions by cell."""
    by_cell: dict[str, list[str]] = {}
    for cell, difference in found:
        by_cell.setdefault(cell, []).append(str(difference))
    said = [(cell, f"{cell}: {', '.join(differing)}") for cell, differing in by_cell.items()]
    yield from _one(rule, Effect.SUPPRESSED, said)


def _one(rule: str, effect: Effect, found: list[tuple[str, str]]) -> Iterator[Finding]:
    if found:
        cells = tuple(dict.fromkeys(cell for cell, _ in found))
        yield Finding(rule=rule, effect=effect, message="; ".join(text for _, text in found), cells=cells)
