"""Words of people and agents: figures are rendered from evidence, and prose that types one is refused."""

import re
from typing import Annotated

from pydantic import AfterValidator

_FIGURE = re.compile(
    r"(?<![A-Za-z0-9_])\d+([.,]\d+)*\s*(x\b|×|%|percent\b|-?fold\b|times\b|[µu]s\b|ms\b|ns\b|seconds?\b|tok|[KMGT]i?B\b|[GTP]FLOP)",
    re.IGNORECASE,
)


def figure(text: str) -> str | None:
    """The first figure with a unit that `text` types."""
    found = _FIGURE.search(text)
    return found[0] if found else None


def _without_figures(text: str) -> str:
    if found := figure(text):
        raise ValueError(f"{found!r} is typed: figures are rendered from evidence")
    return text


Prose = Annotated[str, AfterValidator(_without_figures)]
