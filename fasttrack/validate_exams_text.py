"""What an accuracy stage found, in lines for a terminal and as a section of a report. No answer is quoted."""

from collections.abc import Mapping

from fasttrack_validation.accuracy.campaign import Cost, ExamRecord, Outcome
from fasttrack_validation.accuracy.result import lines as result_lines

Prices = tuple[float, float] | None
"""USD per million tokens, in and out."""


def lines(found: Outcome, missing: Mapping[str, str], prices: Prices) -> list[str]:
    """For a terminal."""
    out = []
    for record in found.exams:
        out += result_lines(record.result, record.plan)
        out += [f"  {name}: {took(cost, prices)}" for name, cost in _costs(record)]
    out += [f"together ({family.rule}): {verdict}" for family, verdict in found.families]
    out += [f"{name}: not run: no plan was given for {title}" for name, title in missing.items()]
    return [*out, f"accuracy: {found.verdict}"]


def section(found: Outcome, missing: Mapping[str, str], prices: Prices) -> str:
    """A section of a report, in Markdown."""
    rows = ["## Exams", "", f"Verdict: **{found.verdict}**.", ""]
    rows += [f"Together, by the rule `{family.rule}`: {verdict}." for family, verdict in found.families]
    rows += ["", "| exam | verdict | d | SE (paired) | d/SE | lower bound | margin | detectable loss | items x repeats |"]
    rows += ["| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    rows += [_row(record) for record in found.exams]
    rows += [f"| {name} | not run: no plan was given for {title} | | | | | | | |" for name, title in missing.items()]
    for record in found.exams:
        rows += ["", f"### {record.plan.exam}", ""]
        rows += [f"- {line.strip()}" for line in result_lines(record.result, record.plan)[1:]]
        rows += [f"- {name}: {took(cost, prices)}" for name, cost in _costs(record)]
        rows += [f"- plan `{record.plan.digest()}`, exam `{record.plan.exam_sha256}`"]
        rows += [f"- `{arm.file}`, sha256 `{arm.sha256}`" for arm in (record.baseline, record.candidate)]
    return "\n".join(rows) + "\n"


def took(cost: Cost, prices: Prices) -> str:
    """Answers, tokens, time and, where prices are known, money."""
    text = f"{cost.answers} answers in {cost.attempts} requests, {_count(cost.prompt_tokens)} tokens in, "
    text += f"{_count(cost.output_tokens)} out, {cost.seconds:.0f} s added up over answers"
    if prices is None or cost.prompt_tokens is None or cost.output_tokens is None:
        return text
    return f"{text}, {(cost.prompt_tokens * prices[0] + cost.output_tokens * prices[1]) / 1e6:.2f} USD"


def _row(record: ExamRecord) -> str:
    result, decision, paired = record.result, record.result.decision, record.result.paired
    if decision is None or paired is None:
        reasons = ", ".join(sorted({one.reason for one in result.findings}))
        return f"| {record.plan.exam} | {result.verdict}: {reasons} | | | | | | | |"
    se = "none" if paired.se is None else f"{100 * paired.se:.2f}"
    ratio = "undefined" if paired.in_standard_errors is None else f"{paired.in_standard_errors:+.2f}"
    loss = decision.minimum_detectable_loss
    cells = (
        record.plan.exam, result.verdict, f"{100 * paired.difference:+.2f}", se, ratio, f"{100 * decision.lower:+.2f}",
        f"{record.plan.rule.margin_points:g}", "none" if loss is None else f"{100 * loss:.2f}",
        f"{paired.items} x {paired.repeats}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def _costs(record: ExamRecord) -> tuple[tuple[str, Cost], ...]:
    return ("baseline", record.baseline.cost), ("candidate", record.candidate.cost)


def _count(tokens: int | None) -> str:
    return "an unknown number of" if tokens is None else f"{tokens:,}"
