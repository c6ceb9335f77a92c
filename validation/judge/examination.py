"""What a finished group of trials shows. Pure and slow (it computes oracles): meant for a thread of its own."""

import hashlib
from dataclasses import dataclass, field

import torch

from ..contracts.base import OpContract, TensorRole
from ..numerics.calibrate import Measurement
from . import inspect_trial
from .diagnose import diagnose
from .inspect_trial import Finding
from .ruling import Ruling
from .trials import Trial


_WEIGHT_BYTES = 1 << 20


@dataclass
class Examined:
    """One group: what is wrong with single trials, what differs between them, and how large the errors are."""

    trials: list[Trial]
    ended: tuple[Finding, Trial] | None = None
    """A trial that did not run to its end."""
    findings: list[tuple[Finding, Trial, str | None]] = field(default_factory=list)
    differences: list[tuple[Finding, Trial]] = field(default_factory=list)
    measured: list[tuple[Trial, dict[str, Measurement], dict]] = field(default_factory=list)


def examine(contract: OpContract, trials: list[Trial]) -> Examined:
    """Holds a group against the oracle and its members against each other; the first trial is the base."""
    found = Examined(trials)
    for trial in trials:
        trial.fingerprint = fingerprint(trial, contract)
        if finding := inspect_trial.execution_finding(trial):
            found.ended = finding, trial
            return found
        for finding in (
            *inspect_trial.stray_findings(trial, contract),
            *inspect_trial.foreign_page_findings(trial, contract),
            *inspect_trial.poison_findings(trial, contract),
            *inspect_trial.persistent_findings(trial, contract),
        ):
            oracle = contract.oracle(trial.inputs, trial.spec.workload)
            found.findings.append((finding, trial, diagnose(trial, contract, oracle)))
        found.findings += [(finding, trial, None) for finding in inspect_trial.conflict_findings(trial)]
        if found.findings:
            return found  # in another order of launches or programs the same fault may have another name
    if not trials:
        return found
    base, *others = trials
    for other in others:
        row = other.spec.perturbed_row
        for finding in inspect_trial.difference_findings(base, other, contract, skip_row=row):
            found.differences.append((finding, other))
    for trial in trials:
        if trial is base or trial.spec.perturbed_row is not None:
            oracle = contract.oracle(trial.inputs, trial.spec.workload)
            plain = contract.plain(trial.inputs, trial.spec.workload)
            measured = inspect_trial.measurements(trial, contract, oracle, plain)
            found.measured.append((trial, measured, oracle))
    return found


def fingerprint(trial: Trial, contract: OpContract) -> str:
    """Digest of what a trial drew: inputs and states, and the beginning of each weight. Empty where nothing was drawn.

    Inputs alone may recur by right: those of a batch that is all padding, say.
    """
    digest = hashlib.sha256()
    for spec in contract.tensors(trial.spec.workload) if trial.inputs else ():
        if spec.role is not TensorRole.OUTPUT:
            flat = trial.inputs[spec.name].contiguous().flatten().view(torch.uint8)
            digest.update((flat[:_WEIGHT_BYTES] if spec.role is TensorRole.STATIC else flat).numpy())
    return digest.hexdigest() if trial.inputs else ""


def settle(found: Examined, contract: OpContract, ruling: Ruling) -> None:
    """Takes an examination into the verdict."""
    for finding, trial, cause in found.findings:
        ruling.fail(finding, trial, cause)
    if found.ended:
        finding, trial = found.ended
        if trial.status == "device_lost":
            # Not the candidate's doing as far as anyone can tell: it has not been judged.
            ruling.skip_stage("execution", finding.reason, finding.message)
        else:
            ruling.fail(finding, trial)
    if ruling.rejected:
        return
    for finding, trial in found.differences:
        ruling.fail(finding, trial)
    for trial, measured, oracle in found.measured:
        ruling.hold(trial, contract, measured, lambda t=trial, o=oracle: diagnose(t, contract, o))
