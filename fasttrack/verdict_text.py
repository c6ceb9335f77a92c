"""A verdict as a person reads it, and as a shell does."""

from fasttrack_validation.judge.verdict import Outcome, Status, TimedCell, Verdict

STATUS_CODE = {Status.ACCEPTED: 0, Status.REJECTED: 1, Status.INCONCLUSIVE: 3, Status.INVALID: 3, Status.NOT_RUN: 3}


def verdict_lines(verdict: Verdict) -> list[str]:
    """A verdict as text: status and reason, then what was and was not checked."""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    lines = [f"{verdict.status}{reason}: {verdict.op}, candidate {verdict.candidate_digest[:12]}"]
    if verdict.message:
        lines.append(verdict.message)
    lines += [
        f"  {check.check} {check.title}: {check.outcome}{f': {check.message}' if check.message else ''}"
        for check in verdict.checks
        if check.outcome is not Outcome.PASS
    ]
    passed = sum(check.outcome is Outcome.PASS for check in verdict.checks)
    lines.append(f"  {passed} of {len(verdict.checks)} checks passed; {verdict.executor}; {verdict.sandbox}")
    ran = sorted({result.axes["rows"] for result in verdict.workloads if "rows" in result.axes})
    if verdict.status is Status.ACCEPTED:
        lines.append(f"  screened with {', '.join(map(str, ran))} rows; `submit` confirms every batch bucket and runs the gate")
    if verdict.notes:
        lines.append("  notes for a reader of the files; they decide nothing:")
        lines += [f"    {note.file}:{note.line} {note.what}: {note.text!r}" for note in verdict.notes]
    for reason, cells in _by_reason(verdict).items():
        lines.append(f"  {len(cells)} cells {reason}")
        lines += [f"    {name}: {time}" for name, time in cells if time]
    return lines


def _measured(timed: TimedCell) -> str:
    """A measured cell in a line: time with its interval, the stock path's beside it, and both floors."""
    cell, timing = timed.cell, timed.timing
    text = f"{cell.microseconds:.2f} us [{cell.low:.2f}, {cell.high:.2f}]"
    if timing is None:
        return text
    found = timing.comparison
    return (
        f"{text}, {timing.launches} launches; stock {timing.stock.microseconds:.2f} us, {timing.stock_launches}; ratio "
        f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}], {found.standing}; floors: target "
        f"{timing.target_floor_us:.2f}, physical {timing.physical_floor_us:.2f} us"
    )


def _by_reason(verdict: Verdict) -> dict[str, list[tuple[str, str]]]:
    """What the cells say, said once; (place, estimate or measurement) of each."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for timed in verdict.cells:
        cell, place = timed.cell, f"{timed.hardware}/{timed.workload}"
        if cell.kind == "measured":
            groups.setdefault("measured", []).append((place, _measured(timed)))
        else:
            estimate = f"modelled, not measured: {cell.modelled.microseconds:.2f} us" if cell.modelled else ""
            groups.setdefault(f"not measured: {cell.reason}", []).append((place, estimate))
    return groups
