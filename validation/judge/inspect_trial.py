"""What one trial shows: pure functions from a finished trial (and its oracle) to findings.

A finding names what is wrong, where, and by how much. It carries the check of the judging rules that caught it and a
stable reason id; the order of `findings` is the order in which causes should be named (a kernel that never ran has
wrong numbers too, but that is not what is wrong with it).
"""

from collections.abc import Mapping

import torch

from ..contracts.base import OpContract, TensorRole
from ..numerics.calibrate import Measurement, measure
from ..numerics.errors import same_bits
from ..records import Frozen
from .replay import faults
from .trials import Trial

EXECUTION_REASONS = {
    "violation": "execution.out_of_bounds",
    "false_hint": "execution.false_hint",
    "failed_assertion": "execution.failed_assertion",
    "undefined_shift": "execution.undefined_shift",
    "unsupported": "execution.unsupported",
    "error": "execution.error",
    "timeout": "execution.timeout",
    "killed": "execution.crash",
    "out_of_memory": "execution.out_of_memory",
    "output_limit": "execution.output_limit",
    **faults.REASONS,
}


# What the interpreter's access log may say, and the check that it fails.
CONFLICTS = {
    "poison.read": "C4",
    "scratch.uninitialised_read": "C4",
    "gap.written": "C4",
    "state.foreign_page": "C4",
    "race.between_programs": "C14",
    "race.between_lanes": "C14",
    "race.between_streams": "C14",
    "race.dependent_launch": "C14",
}


class Finding(Frozen):
    """One thing that is wrong with a candidate."""

    check: str
    reason: str
    message: str
    figures: dict[str, float | int | str] = {}


def execution_finding(trial: Trial) -> Finding | None:
    """A launch that did not finish, or touched memory that it does not own."""
    if trial.status == "ok":
        return None
    reason = EXECUTION_REASONS.get(trial.status, "execution.error")
    check = faults.CHECKS.get(reason.partition(".")[0], "C4" if trial.status == "violation" else "execution")
    return Finding(check=check, reason=reason, message=trial.message or trial.status)


def conflict_findings(trial: Trial) -> list[Finding]:
    """The first access that nothing orders, that reads what no one wrote, or that writes what no live row owns."""
    reason = str(trial.conflict.get("reason")) if trial.conflict else None
    if reason not in CONFLICTS:
        return []
    return [Finding(check=CONFLICTS[reason], reason=reason, message=str(trial.conflict.get("message"))[:600])]


def stray_findings(trial: Trial, contract: OpContract) -> list[Finding]:
    """Bytes changed outside the write-set: guard bands, page gaps, inputs and weights."""
    roles = {spec.name: spec.role for spec in contract.tensors(trial.spec.workload)}
    found = []
    for stray in trial.stray:
        role = roles.get(stray.region)
        if role in (TensorRole.INPUT, TensorRole.STATIC):
            check, reason, what = "C5", "input.modified", f"{role} tensor {stray.region} was modified"
        elif stray.region == "guard band":
            check, reason, what = "C4", "guard.overrun", f"wrote {stray.where}"
        elif role is None:
            check, reason, what = "C4", "guard.overrun", f"prepared buffer {stray.region} was modified"
        else:
            check, reason, what = "C4", "gap.written", f"wrote into {stray.where} of {stray.region}"
        message = f"{what}: {stray.count} bytes, the first at byte {stray.first_byte}"
        found.append(Finding(check=check, reason=reason, message=message, figures={"bytes": stray.count}))
    return found


def poison_findings(trial: Trial, contract: OpContract) -> list[Finding]:
    """Output elements that still hold what the judge put there before the launch."""
    found = []
    for name, poison in trial.poison.items():
        produced = trial.produced[name]
        left = same_bits(produced, poison)
        # A plausible poison value may be hit by chance; one whole row may not.
        rows = left.reshape(left.shape[0], -1).float().mean(1) if left.numel() else torch.zeros(0)
        skipped = (rows > 0.05).nonzero().flatten().tolist()
        if skipped:
            share = rows[skipped].mean().item()
            last = "the last row" if skipped == [left.shape[0] - 1] else f"rows {_listing(skipped)}"
            found.append(Finding(
                check="C4", reason="poison.left",
                message=f"{name}: {share:.0%} of {last} of {left.shape[0]} was never written (poison left in place)",
                figures={"rows": len(skipped), "elements": int(left.sum())},
            ))  # fmt: skip
    return found


def foreign_page_findings(trial: Trial, contract: OpContract) -> list[Finding]:
    """State pages that changed although no live row owns them: the null page, padding, another request's slot."""
    found = []
    for spec in contract.tensors(trial.spec.workload):
        if spec.role is not TensorRole.STATE:
            continue
        changed = ~same_bits(trial.produced[spec.name], trial.inputs[spec.name])
        pages = changed.flatten(1).sum(1)
        owned = owners(trial, contract, spec.name)
        for page in pages.nonzero().flatten().tolist():
            if owned[page] is None:
                which = "the null page (slot 0)" if page == 0 else f"page {page}, which no live row owns,"
                found.append(Finding(
                    check="C4", reason="state.foreign_page",
                    message=f"{spec.name}: {which} was written: {int(pages[page])} elements changed",
                    figures={"page": page, "elements": int(pages[page])},
                ))  # fmt: skip
    return found


def persistent_findings(trial: Trial, contract: OpContract) -> list[Finding]:
    """Persistent buffers that a step did not put back, and results that depend on the steps before."""
    found = [
        Finding(
            check="C4", reason="persistent.not_restored",
            message=f"persistent buffer {name} is declared to be restored: {count} bytes differ after a step",
            figures={"bytes": count},
        )
        for name, count in trial.unrestored.items()
    ]  # fmt: skip
    for number, produced in enumerate(trial.later, 2):
        for name in contract.produced:
            count = int((~same_bits(trial.produced[name], produced[name])).sum())
            if count:
                message = (
                    f"{name} differs in step {number} from step 1 with the same inputs: {count} values depend on what "
                    "earlier steps left in persistent buffers"
                )
                figures = {"values": count, "step": number}
                found.append(Finding(check="C14", reason="persistent.carries_over", message=message, figures=figures))
    return found


def owners(trial: Trial, contract: OpContract, name: str) -> list[int | None]:
    """For each leading index of a produced tensor, the live row that owns it."""
    tensor = trial.produced[name]
    rest = (0,) * (tensor.dim() - 1)
    return [contract.row_of(name, (index, *rest), trial.inputs) for index in range(len(tensor))]


def measurements(trial: Trial, contract: OpContract, oracle: Mapping, plain: Mapping) -> dict[str, Measurement]:
    """Errors of every produced tensor against the oracle, beside the plain path's."""
    found = {}
    for comparison in contract.comparisons:
        name = comparison.tensor
        parts, owned = [tensors[name] for tensors in (oracle, plain, trial.produced)], owners(trial, contract, name)
        if trial.spec.perturbed_row is not None and name in contract.unheld:
            # The redrawn row is there for its neighbours. Where it follows a choice, its own may hang on a rounding.
            keep = [index for index, row in enumerate(owned) if row != trial.spec.perturbed_row]
            parts, owned = [tensor[keep] for tensor in parts], [owned[index] for index in keep]
        found[name] = measure(comparison, *parts, owned)
    return found


def difference_findings(first: Trial, second: Trial, contract: OpContract, *, skip_row: int | None) -> list[Finding]:
    """Bits that differ between two trials that must agree.

    `skip_row` None: the same inputs at other addresses, with other poison, scratch and program order (determinism).
    Otherwise the second trial redrew what that row alone reads, and every other row must not have noticed.
    """
    found = []
    for name in contract.produced:
        # Both NaN with other payloads is still a difference: the poison of the two trials differs on purpose.
        a, b = first.produced[name], second.produced[name]
        same = same_bits(a, b)
        if skip_row is not None:
            keep = [index for index, row in enumerate(owners(first, contract, name)) if row != skip_row]
            a, b, same = a[keep], b[keep], same[keep]
        if bool(same.all()):
            continue
        count = int((~same).sum())
        largest = float((a.double() - b.double()).abs().nan_to_num(nan=float("inf")).max())
        what = (
            f"changing only row {skip_row} changed other rows of {name}"
            if skip_row is not None
            else f"{name} depends on buffer addresses, scratch contents, earlier output contents or program order"
        )
        reason = "neighbour.dependence" if skip_row is not None else "determinism.not_reproducible"
        found.append(Finding(
            check="C14", reason=reason, message=f"{what}: {count} of {same.numel()} values differ, by up to {largest:.3g}",
            figures={"values": count, "largest": min(largest, 1e300)},
        ))  # fmt: skip
    return found


def _listing(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
