"""What a rule says of a claim, and what that does to the claim."""

from collections.abc import Iterable
from enum import StrEnum

from ..records import Frozen


class Effect(StrEnum):
    """What a finding does to the multiplier and to the claim, worst first."""

    INVALID = "invalid"
    """The measurement is not one: no number."""
    SUPPRESSED = "suppressed"
    """No multiplier: both absolute values and what differs."""
    NO_CHANGE = "no_change"
    """No measurable change."""
    REPLACED = "replaced"
    """The multiplier asked for may not be shown; another one may."""
    ERROR = "error"
    """Something stated cannot be."""
    INCOMPLETE = "incomplete"
    """May not stand alone: what has to stand beside it is not there."""
    WITHHELD = "withheld"
    """No multiplier while something is unknown."""
    PROVISIONAL = "provisional"
    """Shown as provisional."""
    QUALIFIED = "qualified"
    """Shown with words that say what it is about."""
    NOTE = "note"
    """Shown beside it."""


BLOCKING = frozenset({Effect.INVALID, Effect.SUPPRESSED, Effect.NO_CHANGE, Effect.WITHHELD})
FAILING = frozenset({
    Effect.INVALID, Effect.SUPPRESSED, Effect.NO_CHANGE, Effect.REPLACED, Effect.ERROR, Effect.INCOMPLETE,
})  # fmt: skip
OPEN = frozenset({Effect.WITHHELD, Effect.PROVISIONAL})


class Status(StrEnum):
    """What became of a claim."""

    PASSES = "passes"
    FAILS = "fails"
    WITHHELD = "withheld"


class Finding(Frozen):
    """One rule about one claim. `cells` are those that it is about; none where it is about the claim as a whole."""

    rule: str
    effect: Effect
    message: str
    cells: tuple[str, ...] = ()


def status(findings: Iterable[Finding]) -> Status:
    """What findings make of a claim."""
    effects = {finding.effect for finding in findings}
    if effects & FAILING:
        return Status.FAILS
    return Status.WITHHELD if effects & OPEN else Status.PASSES
