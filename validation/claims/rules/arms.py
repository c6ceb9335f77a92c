"""Rules about what the two arms have in common: P2, P13, P14, P19."""

from collections.abc import Iterator

from ..claim import MAY_DIFFER, Claim, Pair
from ..conditions import CLOCKS, GPU_COUNTS, WINDOW, differences, undeclared
from ..findings import Effect, Finding
from ..measurement import Metric
from .common import of_differences, of_pairs

OLD_DAYS = 90


def gpu_counts(claim: Claim) -> Iterator[Finding]:
    """P2. A count that differs without being under test is no fair comparison by any figure."""
    allowed = MAY_DIFFER[claim.under_test.subject] >= GPU_COUNTS
    if not allowed:
        yield from of_differences("P2", undeclared(claim, GPU_COUNTS))
    if not allowed or claim.metric is Metric.TOK_S_GPU:
        return

    def why(pair: Pair) -> str | None:
        mine, other = pair.candidate.hardware.gpus, pair.baseline.hardware.gpus
        return f"{mine} GPUs against {other}" if None not in (mine, other) and mine != other else None

    yield from of_pairs(claim, "P2", Effect.REPLACED, why)


def tuned_differently(claim: Claim) -> Iterator[Finding]:
    """P13: every condition that differs, is not under test, and has no rule of its own."""
    of_other_rules = GPU_COUNTS | CLOCKS | WINDOW
    yield from of_differences("P13", (
        (pair.cell, found)
        for pair in claim.pairs for found in differences(pair, claim.under_test) if found.path not in of_other_rules
    ))  # fmt: skip


def baseline_old(claim: Claim) -> Iterator[Finding]:
    """P14."""

    def why(pair: Pair) -> str | None:
        released, taken = pair.baseline.identity.released, pair.candidate.taken
        days = (taken - released).days if released and taken else 0
        return (
            f"the baseline is of {released}, {days} days before the candidate was measured" if days > OLD_DAYS else None
        )

    yield from of_pairs(claim, "P14", Effect.NOTE, why)


def clocks_differ(claim: Claim) -> Iterator[Finding]:
    """P19. An arm that was throttled is not the card that the record names, even where both were."""
    yield from of_differences("P19", undeclared(claim, CLOCKS))

    def why(pair: Pair) -> str | None:
        return (
            "both arms were throttled"
            if pair.candidate.hardware.throttled and pair.baseline.hardware.throttled
            else None
        )

    yield from of_pairs(claim, "P19", Effect.SUPPRESSED, why)
