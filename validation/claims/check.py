"""A claim against all rules, and what it may say: the only place where a multiplier comes from."""

from collections.abc import Callable

from ..records import Frozen
from . import derive
from .claim import Claim, Pair
from .derive import Ratio
from .findings import BLOCKING, Effect, Finding, Status, status
from .measurement import Measurement, Metric, Phase, Scope
from .rules import findings
from .rules.scope import not_end_to_end
from .rules.shown import shown_metric
from .rules.speculation import implausible, step_time_ratio
from .rules.validity import degenerate, failed, impossible, unchanged, warmed

# What the rows end to end are not asked again: the claim they stand beside was.
ONE_RANK = "one rank, exchange bytes local, no communication"
_OF_THE_CLAIM = frozenset({"P6", "P7", "P8", "P12", "P14"})

Ratios = Callable[[Pair, Metric], Ratio | None]


class Row(Frozen):
    """Both arms' figures of one cell in one metric, in seconds or tok/s; the ratio where it may be shown. `counted` is
    what a summary counts: the ratio, and for a cell without a measurable change 1, or less where it looks slower."""

    cell: str
    candidate: float | None
    baseline: float | None
    ratio: Ratio | None = None
    counted: float | None = None


class Summary(Frozen):
    """What a set of ratios may say: never one without the others."""

    worst: float
    geometric_mean: float
    best: float
    losing: tuple[str, ...]


class Split(Frozen):
    """tok/s/user = acceptance length / step time, as ratios of the two arms."""

    cell: str
    step_time: float
    acceptance: float


class Checked(Frozen):
    """A claim, judged. `metric` is the one that may be shown, which is not always the one asked for: then `absolutes`
    has what was asked for without ratios, and `suppressed` what they would be, for tools and never for a text."""

    claim: Claim
    status: Status
    findings: tuple[Finding, ...]
    metric: Metric
    rows: tuple[Row, ...]
    absolutes: tuple[Row, ...] = ()
    summary: Summary | None = None
    splits: tuple[Split, ...] = ()
    suppressed: tuple[Row, ...] = ()
    implied: tuple[Row, ...] = ()
    whole: "Checked | None" = None

    @property
    def qualifiers(self) -> tuple[str, ...]:
        """What the title has to carry."""
        rules = {finding.rule: finding.effect for finding in self.findings}
        said = []
        arms = [arm for pair in self.claim.pairs for arm in (pair.candidate, pair.baseline)]
        if arms[0].scope is Scope.RANK_SHARD:
            ran = sorted(
                {name for arm in arms for name in (("unknown",) if arm.collectives is None else arm.collectives)}
            )
            said.append(f"one rank, collectives: {', '.join(ran)}" if ran else ONE_RANK)
        for phase in dict.fromkeys(arm.timed.phase for arm in arms):
            if phase not in (None, Phase.END_TO_END):
                said.append("one op" if phase is Phase.OP else f"{phase} only")
        if "P7" in rules:
            said.append("single stream")
        if any(arm.speculation.forced for arm in arms):
            said.append("acceptance forced")
        if rules.get("P12") is Effect.PROVISIONAL:
            said.append("provisional")
        return tuple(said)


def check(claim: Claim) -> Checked:
    """Every rule, and the figures that what they found leaves standing. Pure."""
    found = findings(claim)
    whole = claim.whole()
    checked_whole = check(whole) if whole is not None else None
    if checked_whole is not None:
        found += tuple(
            one.model_copy(update={"message": f"end-to-end row: {one.message}"})
            for one in checked_whole.findings if one.rule not in _OF_THE_CLAIM
        )  # fmt: skip
    metric = shown_metric(claim)
    blocked = any(one.effect in BLOCKING for one in found)
    ratios: Ratios = (lambda pair, metric: None) if blocked else derive.ratio
    even = unchanged(claim)
    rows = tuple(_row(pair, metric, ratios, even) for pair in claim.pairs)
    asked = () if metric is claim.metric else claim.pairs
    return Checked(
        claim=claim, status=status(found), findings=found, metric=metric, rows=rows,
        absolutes=tuple(_row(pair, claim.metric, lambda *_: None) for pair in asked),
        suppressed=() if blocked else tuple(_row(pair, claim.metric, ratios, even) for pair in asked),
        summary=_summary(rows), splits=() if blocked else _splits(claim, found),
        implied=_implied(claim, rows), whole=checked_whole,
    )  # fmt: skip


def check_measurement(measurement: Measurement) -> tuple[Finding, ...]:
    """The rules that one arm can break alone."""
    alone = {
        "P4": (implausible, Effect.ERROR), "P10": (failed, Effect.INVALID), "P11": (degenerate, Effect.INVALID),
        "P17": (impossible, Effect.INVALID), "P18": (warmed, Effect.INVALID),
    }  # fmt: skip
    return tuple(
        Finding(rule=rule, effect=effect, message=said)
        for rule, (why, effect) in alone.items() if (said := why(measurement))
    )  # fmt: skip


def _row(pair: Pair, metric: Metric, ratios: Ratios, even: frozenset[str] = frozenset()) -> Row:
    found = ratios(pair, metric)
    unchanged = found is not None and pair.cell in even
    return Row(
        cell=pair.cell, candidate=derive.figure(pair.candidate, metric), baseline=derive.figure(pair.baseline, metric),
        ratio=None if unchanged else found,
        counted=None if found is None else min(found.value, 1.0) if unchanged else found.value,
    )  # fmt: skip


def _summary(rows: tuple[Row, ...]) -> Summary | None:
    counted = [row.counted for row in rows]
    if None in counted:
        return None
    return Summary(
        worst=min(counted), geometric_mean=derive.geometric_mean(counted), best=max(counted),
        losing=tuple(row.cell for row in rows if row.ratio is not None and row.ratio.value < 1),
    )  # fmt: skip


def _splits(claim: Claim, found: tuple[Finding, ...]) -> tuple[Split, ...]:
    cells = {cell for one in found if one.rule == "P5" for cell in one.cells}
    return tuple(
        Split(
            cell=pair.cell, step_time=step_time_ratio(pair),
            acceptance=derive.acceptance(pair.candidate) / derive.acceptance(pair.baseline),
        )
        for pair in claim.pairs if pair.cell in cells
    )  # fmt: skip


def _implied(claim: Claim, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """What a phase's ratio comes to end to end at its measured share of the baseline; nothing where that is unknown."""
    if claim.pairs[0].candidate.scope is not Scope.SERVER or not any(not_end_to_end(claim)):
        return ()
    implied = []
    for pair, row in zip(claim.pairs, rows, strict=True):
        share = pair.baseline.timed.share
        if row.ratio is not None and share is not None:
            low, value, high = (
                derive.end_to_end(one, share) for one in (row.ratio.low, row.ratio.value, row.ratio.high)
            )
            ratio = Ratio(value=value, low=low, high=high, repetitions=row.ratio.repetitions)
            implied.append(Row(cell=pair.cell, candidate=None, baseline=None, ratio=ratio))
    return tuple(implied)
