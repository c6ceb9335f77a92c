"""The tokens that a candidate changes most, with what stood before them. From records alone, without PyTorch."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...contracts.kimi_k3.nano.tokenizer import SYMBOLS
from ...records import Frozen
from . import table
from .tokens import CANDIDATE, NOT_JUDGED, ORACLE, Token, UnitRecords

WINDOW = 12
"""Tokens of a context, the last of which is the token itself"""


class Worst(Frozen):
    """A token with what stood before it."""

    rung: str
    unit: str
    position: int
    change: float
    """Of the log-prob of the token that follows, candidate against oracle"""
    noise: float
    """The largest of the same of the stock path and its repetitions"""
    margin: float
    context: str
    """The last tokens up to this one; where nobody watched some of them, their number in brackets"""
    follows: str
    oracle: str
    candidate: str


def worst(units: Iterable[UnitRecords], count: int = 5) -> list[Worst]:
    """Of the tokens that the candidate ran those whose log-prob it changes most, beside what the noise does there."""
    found = []
    for records in units:
        of = table.table([records])
        every = [token for step in records.steps for token in step.tokens]
        contexts = [context for token, context in zip(every, _contexts(every), strict=True) if token.ran != NOT_JUDGED]
        change = np.where([token.own for token in of.tokens], of.change(CANDIDATE), -1.0)
        # Stable, so that equal changes stand in the order of the records whatever sorts them.
        for row in np.argsort(-change, kind="stable")[: min(count, int((change >= 0).sum()))]:
            found.append(Worst(
                rung=records.header.rung, unit=records.header.unit, position=of.tokens[row].position,
                change=float(min(change[row], 1e30)), noise=float(min(max(of.change(path)[row] for path in of.noise), 1e30)),
                margin=float(of.margin[row]), context=contexts[row], follows=_symbol(of.tokens[row].target),
                oracle=_symbol(of.top[ORACLE][row]), candidate=_symbol(of.top[CANDIDATE][row]),
            ))  # fmt: skip
    return sorted(found, key=lambda one: -one.change)[:count]


def _contexts(tokens: Iterable[Token]) -> Iterator[str]:
    """One for each token, in order of action. A position that was read twice (a proposal that was refused, a request that was
    preempted) holds what was read there last, and what was read behind the token is not before it."""
    watched: dict[int, dict[int, int]] = {}
    for token in tokens:
        own = watched.setdefault(token.request, {})
        own[token.position] = token.token
        yield _context(own, token.position)


def _context(watched: Mapping[int, int], position: int) -> str:
    parts, missing = [], 0
    for place in range(max(position - WINDOW + 1, 0), position + 1):
        if place not in watched:
            missing += 1
            continue
        if missing:
            parts.append(f"[{missing} not watched]")
            missing = 0
        parts.append(_symbol(watched[place]))
    return "".join(parts)


def _symbol(number: int) -> str:
    return SYMBOLS[number] if 0 <= number < len(SYMBOLS) else f"<{number}>"
