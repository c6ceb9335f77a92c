"""Rules about speculative decoding: P3, P4, P5."""

from collections.abc import Iterator

from ..acceptance import limit
from ..claim import Claim, Pair
from ..derive import acceptance, figure
from ..findings import Effect, Finding
from ..measurement import Measurement, Metric
from .common import of_arms, of_pairs

# Figures that an acceptance length enters. Two runs of one build differ by less than this.
OF_ACCEPTANCE = frozenset({
    Metric.TOK_S_USER, Metric.TOK_S_SYSTEM, Metric.TOK_S_GPU, Metric.TPOT, Metric.ITL, Metric.REQUEST_LATENCY,
})  # fmt: skip
EQUAL_ACCEPTANCE = 0.01


def forced_acceptance(claim: Claim) -> Iterator[Finding]:
    """P3."""
    if claim.metric not in OF_ACCEPTANCE:
        return

    def why(arm: Measurement) -> str | None:
        return (
            f"acceptance forced to {arm.speculation.acceptance_length or 'an unknown length'}"
            if arm.speculation.forced
            else None
        )

    yield from of_arms(claim, "P3", Effect.REPLACED, why)


def implausible_acceptance(claim: Claim) -> Iterator[Finding]:
    """P4."""
    yield from of_arms(claim, "P4", Effect.ERROR, implausible)


def implausible(arm: Measurement) -> str | None:
    """Why an arm's acceptance cannot be: above K + 1 whether forced or not, or forced above all that is published."""
    spec, length = arm.speculation, arm.speculation.acceptance_length
    if length is None:
        return None
    if spec.draft_tokens is not None and length > spec.draft_tokens + 1:
        return f"acceptance {length:g} of {spec.draft_tokens} drafts; at most {spec.draft_tokens + 1} can be accepted"
    highest = limit(arm.identity.model, spec.draft_tokens)
    if spec.forced and length > highest.value:
        return f"acceptance forced to {length:g}; the highest published is {highest.value:g} ({highest.source})"
    return None


def acceptance_differs(claim: Claim) -> Iterator[Finding]:
    """P5. A difference that cannot be split, for want of a step's time, cannot be shown."""
    if claim.metric not in OF_ACCEPTANCE:
        return

    def why(pair: Pair) -> str | None:
        mine, other = acceptance(pair.candidate), acceptance(pair.baseline)
        if None in (mine, other) or abs(mine / other - 1) <= EQUAL_ACCEPTANCE:
            return None
        return f"acceptance {mine:g} against {other:g}"

    def splits(pair: Pair) -> str | None:
        return why(pair) if step_time_ratio(pair) is not None else None

    def cannot(pair: Pair) -> str | None:
        said = why(pair) if step_time_ratio(pair) is None else None
        return f"{said}, and no step time to tell them apart by" if said else None

    yield from of_pairs(claim, "P5", Effect.SUPPRESSED, cannot)
    yield from of_pairs(claim, "P5", Effect.QUALIFIED, splits)


def step_time_ratio(pair: Pair) -> float | None:
    """How many times shorter the candidate's step is; None where a step's time is not known in both arms."""
    mine, other = figure(pair.candidate, Metric.STEP_TIME), figure(pair.baseline, Metric.STEP_TIME)
    return None if mine is None or other is None else other / mine
