"""Rules about what of a system, a request or a grid a claim speaks of: P6, P7, P8, P20."""

from collections.abc import Iterator

from ..claim import Claim, Headline, Pair
from ..conditions import WINDOW, conditions, stated, undeclared
from ..findings import Effect, Finding
from ..measurement import Measurement, Phase, Scope
from .common import of_arms, of_differences

# What a row end to end may have of its own.
_OF_THE_WINDOW = ("timed.", "result.", "workload.seeds", "workload.warmup_requests")


def not_end_to_end(claim: Claim) -> Iterator[Finding]:
    """P6. A server's phase needs its share and an end-to-end row; a shard or an op has neither and says so."""

    def why(arm: Measurement) -> str | None:
        phase = arm.timed.phase
        return None if phase in (None, Phase.END_TO_END) else f"times {phase.replace('_', ' ')} only"

    complete = claim.pairs[0].candidate.scope is not Scope.SERVER or not _without_end_to_end(claim)
    for finding in of_arms(claim, "P6", Effect.QUALIFIED if complete else Effect.INCOMPLETE, why):
        lacking = "" if complete else f"; no end-to-end row for {', '.join(_without_end_to_end(claim))}"
        yield finding.model_copy(update={"message": finding.message + lacking})


def single_stream(claim: Claim) -> Iterator[Finding]:
    """P7."""
    if all(arm.workload.concurrency == 1 for pair in claim.pairs for arm in (pair.candidate, pair.baseline)):
        yield Finding(
            rule="P7", effect=Effect.INCOMPLETE, cells=tuple(pair.cell for pair in claim.pairs),
            message="batch 1 only: single stream, without the low, middle and high cells of the grid beside it",
        )  # fmt: skip


def best_cell(claim: Claim) -> Iterator[Finding]:
    """P8."""
    shown = {pair.cell for pair in claim.pairs}
    absent = [cell for cell in claim.cells if cell not in shown]
    if absent:
        yield Finding(
            rule="P8", effect=Effect.INCOMPLETE, cells=tuple(absent),
            message=f"about {len(claim.cells)} cells, of which {', '.join(absent)} not shown",
        )  # fmt: skip
    if claim.headline is not Headline.ALL and len(shown | set(claim.cells)) > 1:
        yield Finding(
            rule="P8", effect=Effect.INCOMPLETE,
            message=f"leads with the {claim.headline} of its cells, without worst, geometric mean and best together",
        )  # fmt: skip


def prefill_overlap(claim: Claim) -> Iterator[Finding]:
    """P20. Prefill that one arm's window leaves out is time that it does not count."""
    ttfts = {pair.cell: _ttfts(pair) for pair in claim.pairs}
    for finding in of_differences("P20", undeclared(claim, WINDOW)):
        shown = "; ".join(f"TTFT of {cell}: {ttfts[cell]}" for cell in finding.cells)
        yield finding.model_copy(update={"message": f"{finding.message}; {shown}"})


def _ttfts(pair: Pair) -> str:
    given = [arm.result.ttft for arm in (pair.candidate, pair.baseline)]
    return " against ".join("unknown" if one is None else f"{one.base * 1e3:.1f} ms" for one in given)


def _without_end_to_end(claim: Claim) -> list[str]:
    """Cells that have no end-to-end row under their own conditions."""
    rows = {row.cell: row for row in claim.end_to_end}
    return [pair.cell for pair in claim.pairs if not (pair.cell in rows and _same_cell(pair, rows[pair.cell]))]


def _same_cell(pair: Pair, row: Pair) -> bool:
    arms = ((pair.candidate, row.candidate), (pair.baseline, row.baseline))
    return all(
        whole.timed.phase is Phase.END_TO_END
        and all(
            stated(part, path) == stated(whole, path) for path in conditions() if not path.startswith(_OF_THE_WINDOW)
        )
        for part, whole in arms
    )
