"""C15: compute-sanitizer's four tools over an accepted plan, at one or two small workloads."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..contracts.base import OpContract, Workload
from .device_code.records import DeviceCode
from .pack import KernelPack, variant_key
from .replay import sanitizer, sanitizer_log
from .replay.device import Device
from .replay.sanitizer import Report
from .ruling import TITLES, Ruling
from .prepare import PrepareFailed
from .trials import TrialSpec, lay_out
from .verdict import CheckResult, Outcome

CHECK = "C15"
Prepare = Callable[[KernelPack, TrialSpec], Mapping[str, bytes]]


def sanitize(
    device: Device, contract: OpContract, packs: Mapping[str, KernelPack], codes: Mapping[str, DeviceCode],
    checked: Sequence[Workload], prepare: Prepare, ruling: Ruling,
) -> None:  # fmt: skip
    """Runs every tool, all at once, and takes what they say into the verdict. `codes` maps variant keys to code for the
    device. Each tool has a process and memory of its own, and spends its time starting and patching, not on the device.
    """
    program = sanitizer.find()
    workloads = chosen(contract, checked, packs) if program else ()

    def run(tool: str) -> Report:
        report = Report(tool, not_run=NOT_FOUND)
        for workload in workloads:
            report = _checked(device, contract, workload, packs[workload.name], codes, prepare, tool, program)
            if report.outcome != "pass":
                break
        return report

    with ThreadPoolExecutor(len(sanitizer.TOOLS)) as pool:
        ruling.add(settled(tuple(pool.map(run, sanitizer.TOOLS))))


NOT_FOUND = f"{sanitizer.PROGRAM} was not found"


def chosen(
    contract: OpContract, checked: Sequence[Workload], packs: Mapping[str, KernelPack]
) -> tuple[Workload, ...]:
    """The cheapest batch of several rows, and the cheapest workload with kernels that its plan lacks."""
    cheap = sorted(checked, key=lambda workload: contract.cost(workload).bytes)
    first = next((workload for workload in cheap if workload.axes["rows"] > 1), cheap[0])
    known = _kernels(packs[first.name])
    other = next((workload for workload in cheap if _kernels(packs[workload.name]) - known), None)
    return (first, other) if other else (first,)


def settled(reports: Sequence[Report]) -> CheckResult:
    """One check of the four tools: failed where one found something, passed where all of them ran and found nothing."""
    outcomes = {report.tool: report.outcome for report in reports}
    failed = [report for report in reports if report.findings]
    silent = [report for report in reports if report.not_run]
    told = [
        f"{report.tool}: {one.message} in {one.kernel}{_at(one)} ({one.count} reports)"
        for report in failed for one in report.findings[:2]
    ] + [f"{report.tool} not run: {report.not_run}" for report in silent]  # fmt: skip
    reason, outcome = None, Outcome.PASS
    if failed:
        reason, outcome = f"sanitizer.{failed[0].tool}", Outcome.FAIL
    elif silent:
        reason, outcome = "sanitizer.not_run", Outcome.NOT_RUN
    return CheckResult(
        check=CHECK, title=TITLES[CHECK], outcome=outcome, reason=reason, message="; ".join(told), figures=outcomes
    )


def _at(finding: sanitizer_log.Finding) -> str:
    """Where, if the message does not say so."""
    untold = [place for place in finding.places if place not in finding.message]
    return f", at {' and '.join(untold)}" if untold else ""


def _checked(
    device: Device, contract: OpContract, workload: Workload, pack: KernelPack, codes: Mapping[str, DeviceCode],
    prepare: Prepare, tool: str, program: str,
) -> Report:  # fmt: skip
    spec = TrialSpec(workload, next(iter(contract.distributions)), secrets.randbits(62), secrets.randbits(62))
    own = {key: codes[variant_key(variant)] for key, variant in pack.kernels.items()}
    try:
        prepared = prepare(pack, spec)
    except PrepareFailed as error:
        return Report(tool, not_run=str(error).splitlines()[0])
    inputs = contract.make_inputs(workload, spec.distribution, spec.seed)
    arena = lay_out(contract, spec, pack, prepared, inputs)
    try:
        arena.seal()
        return sanitizer.check(device, pack, own, arena, tool, program)
    finally:
        arena.close()


def _kernels(pack: KernelPack) -> set[str]:
    return {variant_key(variant) for variant in pack.kernels.values()}
