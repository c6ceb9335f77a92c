"""The commands under `fasttrack claims`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from fasttrack_validation.claims import compare as matching
from fasttrack_validation.claims import documents, readers, render, review, rules, sarif
from fasttrack_validation.claims.check import check as check_claim
from fasttrack_validation.claims.claim import Claim, Subject, UnderTest
from fasttrack_validation.claims.findings import Status
from fasttrack_validation.claims.measurement import Measurement, Metric
from fasttrack_validation.errors import UserError

_CODE = {Status.PASSES: 0, Status.FAILS: 1, Status.WITHHELD: 3}
_WORST = [0, 3, 1]
_SIGN = {Status.PASSES: "ok  ", Status.FAILS: "FAIL", Status.WITHHELD: "held"}


def check(paths: Sequence[Path], *, as_json: bool, as_sarif: bool) -> NoReturn:
    """Claims, records and texts against the rules."""
    if as_json and as_sarif:
        raise UserError("--json and --sarif exclude each other", "choose one")
    found = review.review(paths)
    if as_sarif:
        print(json.dumps(sarif.document(found.located), indent=2))
    elif as_json:
        print(json.dumps(_as_data(found), indent=2))
    else:
        print("\n".join(_lines(found)) or "nothing to check: no claim, no record, no text")
    raise typer.Exit(found.code)


def show(paths: Sequence[Path], ids: Sequence[str]) -> NoReturn:
    """Claims as Markdown. 1 where one of them does not pass, 3 where one is withheld: the text says so itself."""
    claims = [item.value for path in paths for item in documents.read(path)[1] if isinstance(item.value, Claim)]
    absent = set(ids) - {claim.id for claim in claims}
    if absent:
        raise UserError(f"no claim {sorted(absent)[0]!r} in these files", "`fasttrack claims check` lists them")
    checked = [check_claim(claim) for claim in claims if not ids or claim.id in ids]
    print("\n".join(render.markdown(one) for one in checked), end="")
    statuses = {one.status for one in checked}
    raise typer.Exit(max((_CODE[one] for one in statuses), key=_WORST.index, default=4))


def compare(
    baseline: Path, candidate: Path, *, claim_id: str, title: str, metric: str, under_test: str, options: Sequence[str],
    twins: Path | None, out: Path | None, as_json: bool,
) -> NoReturn:  # fmt: skip
    """Two sets of records as a claim, its findings, and what got slower."""
    try:
        figure, subject = Metric(metric), UnderTest(subject=under_test, options=tuple(options))
    except ValueError as error:
        known = f"metrics: {', '.join(Metric)}; under test: {', '.join(Subject)}"
        raise UserError(f"--metric {metric}, --under-test {under_test}: not both are known", known) from error
    before, after = _records(baseline), _records(candidate)
    found = matching.match(claim_id, title, before, after, figure, subject, _records(twins) if twins else ())
    checked = check_claim(found.claim)
    slower = matching.regressions(checked)
    if out is not None:
        out.write_text(found.claim.model_dump_json(exclude_none=True) + "\n", "utf-8")
    if as_json:
        told = {"status": checked.status, "regressions": slower, "unmatched": found.unmatched}
        print(json.dumps({**told, "rows": [row.model_dump(mode="json") for row in checked.rows]}, indent=2))
    else:
        print(render.markdown(checked))
        print(f"Slower: {', '.join(slower) or 'no cell'}.")
        print("\n".join(f"In one set only: {name}." for name in found.unmatched), end="\n" if found.unmatched else "")
    raise typer.Exit(1 if slower else _CODE[checked.status])


def import_(path: Path, format: str, conditions: Path | None, out: Path | None) -> None:
    """A tool's result file as measurement records, one a line."""
    records = readers.read(path, format, conditions)
    text = "".join(record.model_dump_json(exclude_unset=True, exclude_none=True) + "\n" for record in records)
    if out is None:
        print(text, end="")
    else:
        out.write_text(text, "utf-8")


def explain(rule: str | None) -> None:
    """The page of a rule, or the list of them."""
    if rule is None:
        print("\n".join(f"{name:4} {rules.page(name).title}" for name in rules.RULES))
    elif rule.upper() in rules.RULES:
        print(rules.page(rule.upper()).text, end="")
    else:
        raise UserError(f"no rule {rule!r}", f"known: {', '.join(rules.RULES)}")


def plot(paths: Sequence[Path], out: Path) -> None:
    """Drawings of claims and records, as SVG files in a directory."""
    from fasttrack_validation.claims import plots

    items = [item.value for path in paths for item in documents.read(path)[1]]
    print(
        "\n".join(map(str, plots.write(items, out)))
        or "nothing to draw: no claim with a multiplier, no record with rates"
    )


def _records(path: Path) -> list[Measurement]:
    items = [item.value for item in documents.read(path)[1]]
    if not all(isinstance(one, Measurement) for one in items):
        raise UserError(f"{path}: holds a claim", "give measurement records: `fasttrack claims import` writes them")
    return items


def _lines(found: review.Review) -> list[str]:
    lines = []
    for item in found.items:
        lines.append(f"{_SIGN[item.status]} {item.path}:{item.line}: {item.kind} {item.name}: {item.status}")
        for one in item.findings:
            lines.append(f"     {one.rule} {one.effect.replace('_', ' ')}: {one.message}")
            lines.append(f"        {rules.page(one.rule).remedy}")
        if item.unknown:
            lines.append(f"     unknown: {', '.join(item.unknown)}")
    for one in found.located:
        if one.effect is None:
            lines += [f"FAIL {one.path}:{one.line}: {one.rule}: {one.message}", f"        {one.remedy}"]
    if not lines and found.texts:
        lines.append("ok   no figure without a claim")
    return lines


def _as_data(found: review.Review) -> dict:
    claims = []
    for item in found.items:
        entry = {
            "kind": item.kind, "name": item.name, "file": item.path, "line": item.line, "status": item.status,
            "findings": [
                {**one.model_dump(mode="json"), "remedy": rules.page(one.rule).remedy} for one in item.findings
            ],
        }  # fmt: skip
        if item.checked is None:
            entry["unknown"] = item.unknown
        else:
            entry["title"] = render.title(item.checked)
            entry |= item.checked.model_dump(
                mode="json", exclude={"claim": True, "findings": True, "status": True, "whole": {"claim"}}
            )
        claims.append(entry)
    prose = [
        {"rule": one.rule, "file": one.path, "line": one.line, "message": one.message, "remedy": one.remedy}
        for one in found.located if one.effect is None
    ]  # fmt: skip
    return {"items": claims, "prose": prose, "exit_code": found.code}
