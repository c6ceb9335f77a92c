"""One workload of a kernel through the judge's recorder, plan checks and interpreter, without compiling anything."""

from types import SimpleNamespace

from fasttrack_validation.judge import inspect_trial, stages
from fasttrack_validation.judge.executor import Interpreter
from fasttrack_validation.judge.judge import INTERPRETER_LIMITS, Judge
from fasttrack_validation.judge.trials import TrialSpec, run_trial
from fasttrack_validation.numerics.calibrate import decide


def findings(judge: Judge, candidate, workload, distributions, seed: int = 1) -> tuple[list[str], float]:
    """What is wrong with `candidate` at one workload, in words, and the seconds that interpretation took."""
    contract = judge.model.op(candidate.op)
    wrong: list[str] = []
    ruling = SimpleNamespace(
        fail=lambda finding, *rest: wrong.append(f"{finding.reason}: {finding.message}"),
        pass_stage=lambda *args, **figures: None, planned=lambda *args: None, toolchain={},
    )  # fmt: skip
    source = stages.extract_source(candidate, ruling)
    packs = source and stages.record(judge._sandboxes.recorder(), candidate, contract, (workload,), judge._hardware, ruling)
    if not packs or not stages.validate_plans(packs, candidate, contract, {workload.name: workload}, source, ruling):
        return wrong, 0.0
    pack, seconds = packs[workload.name], 0.0
    executor = Interpreter(judge._sandboxes.interpreter(), source, INTERPRETER_LIMITS)
    for number, distribution in enumerate(distributions):
        spec = TrialSpec(workload, distribution, seed + number, seed + number, order=f"shuffled:{seed}")
        trial = run_trial(contract, spec, pack, judge._prepare(candidate, contract, pack, spec), executor)
        seconds += trial.seconds
        found = inspect_trial.execution_finding(trial)
        if found:
            return [*wrong, f"{distribution}: {found.reason}: {found.message}"], seconds
        for one in (
            *inspect_trial.stray_findings(trial, contract),
            *inspect_trial.foreign_page_findings(trial, contract),
            *inspect_trial.poison_findings(trial, contract),
            *inspect_trial.conflict_findings(trial),
        ):
            wrong.append(f"{distribution}: {one.reason}: {one.message}")
        oracle, plain = contract.oracle(trial.inputs, workload), contract.plain(trial.inputs, workload)
        measured = inspect_trial.measurements(trial, contract, oracle, plain)
        for comparison in contract.comparisons:
            ruled = decide(comparison, [measured[comparison.tensor]])
            if ruled.decision != "pass":
                wrong.append(f"{distribution}: {ruled.message}")
    return wrong, seconds
