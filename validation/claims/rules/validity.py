"""Rules about whether the system works and the harness can be believed: P9 to P12, P15 to P18."""

from collections.abc import Iterator

from ..claim import Claim, Pair
from ..derive import MIN_REPETITIONS, figure, floor_seconds, paired, ratio
from ..findings import Effect, Finding
from ..measurement import Measurement, Metric, Scope
from .common import of_arms, of_pairs
from .shown import shown_metric

EQUAL_HIT_RATE = 0.01
LENGTH_CORRIDOR = (0.9, 1.1)
"""Mean output length against the asked one, and between the arms (MLPerf Inference)"""
EQUAL_PROMPTS = 0.01
REPEATED = 0.5
"""Half of all 8-grams seen before in the same output: no text that people write comes near it"""
SWAP_BIAS = 0.01


def cache_hits_differ(claim: Claim) -> Iterator[Finding]:
    """P9."""

    def why(pair: Pair) -> str | None:
        rates = [arm.engine.prefix_cache_hit_rate for arm in (pair.candidate, pair.baseline)]
        rates = [0.0 if arm.engine.prefix_cache is False else rate
                 for rate, arm in zip(rates, (pair.candidate, pair.baseline), strict=True)]  # fmt: skip
        if None in rates or abs(rates[0] - rates[1]) <= EQUAL_HIT_RATE:
            return None
        return f"prefix cache hits {rates[0]:.1%} against {rates[1]:.1%} of prompt tokens"

    yield from of_pairs(claim, "P9", Effect.INVALID, why)


def failures_or_length(claim: Claim) -> Iterator[Finding]:
    """P10."""
    yield from of_arms(claim, "P10", Effect.INVALID, failed)

    def why(pair: Pair) -> str | None:
        said = []
        mine, other = pair.candidate.workload, pair.baseline.workload
        if None not in (mine.osl_achieved, other.osl_achieved) and not _within(mine.osl_achieved / other.osl_achieved):
            said.append(f"outputs of {mine.osl_achieved:g} against {other.osl_achieved:g} tokens")
        if None not in (mine.isl_achieved, other.isl_achieved):
            if abs(mine.isl_achieved / other.isl_achieved - 1) > EQUAL_PROMPTS:
                said.append(f"prompts of {mine.isl_achieved:g} against {other.isl_achieved:g} tokens")
        return ", ".join(said) or None

    yield from of_pairs(claim, "P10", Effect.INVALID, why)


def failed(arm: Measurement) -> str | None:
    """Failed requests, none at all, or outputs that are not as long as asked."""
    said = ["no request was completed"] if arm.result.completed == 0 else []
    if arm.result.failed:
        said.append(f"{arm.result.failed} requests failed")
    asked, achieved = arm.workload.osl_asked, arm.workload.osl_achieved
    # Without ignore_eos an output may end early; the arms are then held against each other only.
    if arm.workload.ignore_eos and None not in (asked, achieved) and not _within(achieved / asked):
        said.append(f"outputs of {achieved:g} tokens where {asked} were asked")
    return ", ".join(said) or None


def degenerate_output(claim: Claim) -> Iterator[Finding]:
    """P11."""
    yield from of_arms(claim, "P11", Effect.INVALID, degenerate)


def degenerate(arm: Measurement) -> str | None:
    """Outputs that repeat themselves, or that failed their check."""
    repeated = arm.validity.repeated_ngrams
    if repeated is not None and repeated > REPEATED:
        return f"{repeated:.0%} of 8-grams repeat within an output"
    return "outputs failed their sanity check" if arm.validity.sane is False else None


def no_accuracy(claim: Claim) -> Iterator[Finding]:
    """P12. Shards and ops have no exams: they do not generate text."""
    if claim.pairs[0].candidate.scope is not Scope.SERVER:
        return

    def provisional(pair: Pair) -> str | None:
        bundle, commit = pair.candidate.validity.accuracy, pair.candidate.identity.commit
        if bundle is None:
            return "no accuracy bundle"
        return (
            f"the accuracy bundle is of {bundle.commit}, the candidate is {commit}" if bundle.commit != commit else None
        )

    def lost(pair: Pair) -> str | None:
        bundle = pair.candidate.validity.accuracy
        return "the candidate's exams did not pass" if bundle is not None and not bundle.passed else None

    yield from of_pairs(claim, "P12", Effect.INVALID, lost)
    yield from of_pairs(claim, "P12", Effect.PROVISIONAL, provisional)


def no_change(claim: Claim) -> Iterator[Finding]:
    """P15, of the figure that is shown. In a grid a cell without a measurable change is one of its results; the claim
    has none where no cell has."""

    def lacking(pair: Pair) -> str | None:
        known = None not in (pair.candidate.result.repetitions, pair.baseline.result.repetitions)  # else P1
        return (
            f"fewer than {MIN_REPETITIONS} repetitions of both arms that took turns"
            if known and not paired(pair)
            else None
        )

    even = unchanged(claim)
    everywhere = len(even) == len(claim.pairs)
    yield from of_pairs(claim, "P15", Effect.NO_CHANGE, lacking)
    yield from of_pairs(
        claim, "P15", Effect.NO_CHANGE if everywhere else Effect.QUALIFIED,
        lambda pair: "the interval of the ratio holds 1" if pair.cell in even else None,
    )  # fmt: skip


def unchanged(claim: Claim) -> frozenset[str]:
    """Cells whose interval holds 1."""
    metric = shown_metric(claim)
    ratios = {pair.cell: ratio(pair, metric) for pair in claim.pairs}
    return frozenset(cell for cell, found in ratios.items() if found is not None and found.low <= 1 <= found.high)


def swap_bias(claim: Claim) -> Iterator[Finding]:
    """P16."""

    def why(pair: Pair) -> str | None:
        if pair.swap is None or pair.swap.bias <= SWAP_BIAS:
            return None
        return f"the same arm differs by {pair.swap.bias:.1%} between first and second place"

    yield from of_pairs(claim, "P16", Effect.INVALID, why)


def below_floor(claim: Claim) -> Iterator[Finding]:
    """P17."""
    yield from of_arms(claim, "P17", Effect.INVALID, impossible)


def impossible(arm: Measurement) -> str | None:
    """A step, or an op, that is faster than the card's data sheet allows."""
    least = floor_seconds(arm)
    if least is None:
        return None
    for metric in (Metric.OP_TIME, Metric.STEP_TIME):
        taken = figure(arm, metric)
        if taken is not None and taken < least:
            return f"{metric} of {taken * 1e6:.2f} us where the card needs {least * 1e6:.2f} us"
    return None


def seed_reused(claim: Claim) -> Iterator[Finding]:
    """P18."""
    yield from of_arms(claim, "P18", Effect.INVALID, warmed)


def warmed(arm: Measurement) -> str | None:
    """Prompts that a server had seen in an earlier repetition."""
    seeds, repeated = arm.workload.seeds, arm.result.repetitions
    if seeds is None or not arm.workload.warm_between_repetitions:
        return None
    needed = max(len(seeds), len(repeated.series.values) if repeated else 0)
    if len(set(seeds)) >= needed:
        return None
    return f"{len(set(seeds))} seed{'' if len(set(seeds)) == 1 else 's'} for {needed} repetitions on a warm server"


def _within(share: float) -> bool:
    return LENGTH_CORRIDOR[0] <= share <= LENGTH_CORRIDOR[1]
