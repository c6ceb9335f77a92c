"""P1: what has to be known, and is not."""

from collections.abc import Iterator

from ..claim import Claim, Pair
from ..conditions import unknown
from ..derive import samples
from ..findings import Effect, Finding
from .common import arms, of_pairs
from .shown import shown_metric


def missing_condition(claim: Claim) -> Iterator[Finding]:
    """P1. Repetitions of another figure are none where the one that is shown does not follow from them."""
    metric = shown_metric(claim)

    def why(pair: Pair) -> str | None:
        found = list(unknown(pair, claim.metric))
        for name, arm in arms(pair):
            if arm.result.repetitions is not None and samples(arm, metric) is None:
                found.append(f"{name}: repetitions that give {metric}")
        return ", ".join(found) or None

    yield from of_pairs(claim, "P1", Effect.WITHHELD, why)
