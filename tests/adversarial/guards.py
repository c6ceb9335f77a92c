"""The judge's guards, each with the patch that switches it off: for tests that show what depends on it."""

from collections.abc import Callable

import pytest
from toy_contract import Toy

from fasttrack_validation.judge import inspect_trial, recorded, stages, trials
from fasttrack_validation.judge.ruling import Ruling
from fasttrack_validation.numerics import calibrate

LOGGED = {
    "races": ("race.between_programs", "race.between_lanes", "race.between_streams", "race.dependent_launch"),
    "uninitialised reads": ("poison.read", "scratch.uninitialised_read"),
    "foreign pages": ("state.foreign_page",),
}


def _without_conflicts(patch: pytest.MonkeyPatch, reasons: tuple[str, ...]) -> None:
    found = inspect_trial.conflict_findings
    patch.setattr(inspect_trial, "conflict_findings", lambda trial: [f for f in found(trial) if f.reason not in reasons])


def _without_differences(patch: pytest.MonkeyPatch, wanted: Callable) -> None:
    found = inspect_trial.difference_findings

    def some(*arguments, skip_row):
        return found(*arguments, skip_row=skip_row) if wanted(skip_row) else []

    patch.setattr(inspect_trial, "difference_findings", some)


def _declared_layouts_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recorded.Workloads, "unseen_of", lambda self, declared: tuple(declared))
    # The judge counts unseen layouts before it lets C13 pass; here the declared ones stand in for them.
    patch.setattr(Ruling, "settle_trials", _settled(Ruling.settle_trials))


def _settled(settle):
    def without_counting(self, contract, trials, *, complete):
        settle(self, contract, trials, complete=complete)
        if complete and not self.rejected:
            self._checks.pop("C13", None)
            self.pass_stage("C13")

    return without_counting


def _typical_values_only(patch: pytest.MonkeyPatch) -> None:
    drawn = Toy.make_inputs
    patch.setattr(Toy, "make_inputs", lambda self, workload, distribution, seed: drawn(self, workload, "typical", seed))


def _poison(patch: pytest.MonkeyPatch) -> None:
    """Outputs begin with the answer of a reference that ran before, as an allocator hands its block on."""

    def answer(tensor, spec):
        toy = Toy()
        inputs = toy.make_inputs(spec.workload, spec.distribution, spec.seed)
        if spec.perturbed_row is not None:
            inputs = toy.perturb_row(inputs, spec.workload, spec.perturbed_row, spec.seed + 1)
        return toy.plain(inputs, spec.workload)[tensor.name]

    patch.setattr(trials, "_poison", answer)
    patch.setattr(inspect_trial, "poison_findings", lambda trial, contract: [])


def _numerics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ruling, "hold", lambda self, trial, contract, measured, cause: None)


def _finite(patch: pytest.MonkeyPatch) -> None:
    """What is not finite is taken for no error, as by a comparator for which NaN equals NaN."""
    relative = calibrate.relative
    patch.setattr(calibrate, "relative", lambda *arguments: relative(*arguments).nan_to_num(posinf=0.0))


SWITCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "poison": _poison,
    "numerics": _numerics,
    "finite outputs": _finite,
    "races": lambda patch: _without_conflicts(patch, LOGGED["races"]),
    "uninitialised reads": lambda patch: _without_conflicts(patch, LOGGED["uninitialised reads"]),
    "foreign pages": lambda patch: _without_conflicts(patch, LOGGED["foreign pages"]),
    "neighbours": lambda patch: _without_differences(patch, lambda row: row is None),
    # Sums in another order may also show beside a redrawn row, as the draw will have it.
    "program order": lambda patch: _without_differences(patch, lambda row: False),
    "plan rules": lambda patch: patch.setattr(stages.plan, "validate", lambda *arguments: ()),
    "unseen layouts": _declared_layouts_only,
    "distributions": _typical_values_only,
}
"""guard -> what switches it off in this process."""
