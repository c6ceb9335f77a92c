"""A checked claim as Markdown. The block says what it is, so that `fasttrack claims check` sees if it was edited."""

from .check import Checked, Row
from .derive import acceptance, figure
from .findings import BLOCKING, Effect, Finding, Status
from .measurement import Metric, Scope
from .rules import page

OPENING, CLOSING = "<!-- claim: {} -->", "<!-- end of claim -->"
_NAME = {
    Metric.OP_TIME: "time of the op", Metric.STEP_TIME: "time of a step", Metric.TTFT: "TTFT", Metric.TPOT: "TPOT",
    Metric.ITL: "ITL", Metric.REQUEST_LATENCY: "request latency", Metric.TOK_S_USER: "tok/s/user",
    Metric.TOK_S_SYSTEM: "tok/s", Metric.TOK_S_GPU: "tok/s/GPU",
}  # fmt: skip
_STATUS = {Status.PASSES: "passes", Status.FAILS: "does not pass", Status.WITHHELD: "withheld"}


def name(metric: Metric) -> str:
    """What a metric is called in a text."""
    return _NAME[metric]


def times(value: float) -> str:
    """A multiplier: 1.73x."""
    return f"{value:.2f}x"


def amount(value: float | None, metric: Metric) -> str:
    """A figure with its unit, from seconds or tok/s."""
    if value is None:
        return "unknown"
    if not metric.is_time:
        return f"{value:.1f} {_NAME[metric]}"
    return f"{value * 1e3:.2f} ms" if value >= 1e-4 else f"{value * 1e6:.2f} us"


def title(checked: Checked) -> str:
    """The claim's title with all that it has to carry."""
    said = checked.qualifiers
    return f"{checked.claim.title} ({'; '.join(said)})" if said else checked.claim.title


def markdown(checked: Checked) -> str:
    """The claim as a block of Markdown. A multiplier is in it only where the rules left one standing."""
    blocks = [
        [OPENING.format(checked.claim.id), f"**{title(checked)}**: {_STATUS[checked.status]}."],
        _table(checked), _summary(checked), [*_absolutes(checked), *_identities(checked), *_parts(checked)],
    ]  # fmt: skip
    if checked.whole is not None:
        blocks += [[f"End to end, {name(checked.whole.metric)}:"], _table(checked.whole)]
    blocks += [[_finding(one) for one in checked.findings], [CLOSING]]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def figures(checked: Checked) -> tuple[tuple[str, float], ...]:
    """(kind, value) of every figure that a text may quote from the claim: "ratio", or "rate" in tok/s."""
    found = [("ratio", row.ratio.value) for row in (*checked.rows, *checked.implied) if row.ratio is not None]
    if checked.summary is not None:
        summary = checked.summary
        found += [("ratio", value) for value in (summary.worst, summary.geometric_mean, summary.best)]
    found += [("ratio", value) for one in checked.splits for value in (one.step_time, one.acceptance)]
    if checked.whole is not None:
        found += [one for one in figures(checked.whole)]
    if any(one.effect is Effect.INVALID for one in checked.findings):
        return tuple(found)
    for rows, metric in ((checked.rows, checked.metric), (checked.absolutes, checked.claim.metric)):
        if not metric.is_time:
            found += [("rate", value) for row in rows for value in (row.candidate, row.baseline) if value is not None]
    return tuple(found)


def _table(checked: Checked) -> list[str]:
    lines = [f"| cell | {name(checked.metric)}, candidate | baseline | |", "| --- | --- | --- | --- |"]
    for row in checked.rows:
        arms = f"{amount(row.candidate, checked.metric)} | {amount(row.baseline, checked.metric)}"
        lines.append(f"| {row.cell} | {arms} | {_ratio(row, checked)} |")
    return lines


def _ratio(row: Row, checked: Checked) -> str:
    if row.ratio is not None:
        return f"{times(row.ratio.value)} ({row.ratio.low:.2f} to {row.ratio.high:.2f})"
    blocking = [one for one in checked.findings if one.effect in BLOCKING]
    if {one.effect for one in blocking} <= {Effect.NO_CHANGE}:
        return "no measurable change"
    return f"no multiplier ({', '.join(dict.fromkeys(one.rule for one in blocking))})"


def _summary(checked: Checked) -> list[str]:
    found = checked.summary
    if found is None or len(checked.rows) < 2:
        return []
    even = [row.cell for row in checked.rows if row.ratio is None]
    notes = [f"slower in {', '.join(found.losing)}"] if found.losing else []
    notes += [f"no measurable change in {', '.join(even)}"] if even else []
    three = f"Worst {times(found.worst)}, geometric mean {times(found.geometric_mean)}, best {times(found.best)}"
    return ["; ".join([three, *notes]) + "."]


def _absolutes(checked: Checked) -> list[str]:
    metric = checked.claim.metric
    return [
        f"- {row.cell}: {amount(row.candidate, metric)} against {amount(row.baseline, metric)}, without a multiplier."
        for row in checked.absolutes
    ]


def _identities(checked: Checked) -> list[str]:
    """tok/s/user = acceptance length / step time, where a server speculates."""
    lines = []
    for pair in checked.claim.pairs:
        arm = pair.candidate
        if arm.scope is not Scope.SERVER or arm.speculation.method in (None, "off"):
            continue
        parts = acceptance(arm), figure(arm, Metric.STEP_TIME), figure(arm, Metric.TOK_S_USER)
        if None in parts:
            lines.append(f"- {pair.cell}: tok/s/user = acceptance length / step time, of which not all are known.")
            continue
        how = {True: "forced", False: "natural", None: "forced or natural, unknown"}[arm.speculation.forced]
        tokens, step, rate = parts
        lines.append(
            f"- {pair.cell}: {rate:.1f} tok/s/user = acceptance length {tokens:g} ({how}) / {step * 1e3:.2f} ms a step."
        )
    return lines


def _parts(checked: Checked) -> list[str]:
    lines = [
        f"- {one.cell}: {times(one.step_time)} in step time, {times(one.acceptance)} in acceptance."
        for one in checked.splits
    ]
    if checked.implied:
        found = [row.ratio.value for row in checked.implied]
        low, high = times(min(found)), times(max(found))
        shares = sorted({pair.baseline.timed.share for pair in checked.claim.pairs})
        lines.append(
            f"- End to end that comes to {low if low == high else f'{low} to {high}'}, derived from a phase that takes "
            f"{', '.join(f'{share:.0%}' for share in shares)} of the time."
        )
    return lines


def _finding(one: Finding) -> str:
    return f"- {one.rule} ({one.effect.replace('_', ' ')}), {page(one.rule).title}: {one.message}."
