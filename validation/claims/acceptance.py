"""Published acceptance lengths: what a forced value is held against. Data in acceptance.toml."""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from .. import strict
from ..records import Frozen

_FILE = "acceptance.toml"


class Curve(Frozen):
    """Acceptance lengths of one source by number of draft tokens."""

    model: str
    source: str
    by_draft_tokens: dict[int, float]


class Published(Frozen):
    """The file."""

    highest: float
    highest_source: str
    measured: tuple[Curve, ...]


class Limit(NamedTuple):
    """The highest acceptance length that is published, and where."""

    value: float
    source: str


@cache
def published() -> Published:
    """What acceptance.toml holds."""
    return strict.parse((files(__package__) / _FILE).read_text("utf-8"), Published, _FILE)


def limit(model: str | None, draft_tokens: int | None) -> Limit:
    """The highest value published for `model` with at most `draft_tokens` drafts; over all models for one without.

    Without K all of them count. A model is recognised by the last part of its name, whatever its case.
    """
    name = (model or "").rsplit("/", 1)[-1].lower()
    found = [
        Limit(value, curve.source)
        for curve in published().measured if name == curve.model
        for k, value in curve.by_draft_tokens.items() if draft_tokens is None or k <= draft_tokens
    ]  # fmt: skip
    return max(found, default=Limit(published().highest, published().highest_source))
