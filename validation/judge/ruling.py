"""From stage results and trial findings to a verdict: the judge's bookkeeping, with no I/O of its own."""

from collections.abc import Callable, Iterable, Mapping

from ..claims.cells import NotMeasured
from ..contracts.base import OpContract, Workload
from ..numerics.calibrate import Decision, Measurement, decide
from ..performance.hardware import profiles
from ..timing import hygiene
from ..timing.model import LaunchShape, model_plan
from ..timing.result import Timing
from ..timing.session import STOCK
from .candidate import Candidate
from .inspect_trial import Finding
from .pack import KernelPack, variant_key
from .trials import PLAUSIBLE, Trial
from .verdict import CheckResult, KernelAudit, Note, Outcome, TensorError, TimedCell, Verdict, WorkloadResult, rule

TITLES = {
    "record": "The launch plan was recorded, for declared and unseen workloads",
    "plan": "The launch plan is in order",
    "compile": "Every kernel compiles for sm_90 and sm_103",
    "execution": "Every launch ran to its end",
    "numerics": "Results agree with the float64 oracle at declared workloads",
    "C1": "Oracle, seeds and expected values live where candidate code cannot reach",
    "C2": "Fresh inputs, drawn after the plan was fixed, at fresh addresses",
    "C3": "Every timed call left what a verified run of the same inputs leaves",
    "C4": "Poison replaced, guard bands and page gaps intact, no foreign state page touched",
    "C5": "Inputs and weights unchanged",
    "C6": "Device events and the host's clock agree on every timed replay",
    "C7": "No time below the physical floor",
    "C8": "The driver counts and names the kernels of the plan in every captured graph, and nothing else",
    "C9": "Outputs complete and finite where the oracle is",
    "C11": "Several value distributions",
    "C12": "Task sanity",
    "C13": "Unseen shapes, strides and layouts",
    "C14": "Bit-equal at other addresses and program orders; rows independent of their neighbours",
    "C15": "compute-sanitizer's memcheck, racecheck, initcheck and synccheck find nothing",
    "C20": "The stock path ran with the switches of a clean process, before and after",
    "C17": "Judge, contracts, thresholds and stock path are the same files after the ruling as before",
}
TRIAL_CHECKS = ("execution", "C2", "C4", "C5", "C9", "C14", "numerics", "C11", "C13")
REQUIRED = ("C12", "C1", "record", "plan", "compile", *TRIAL_CHECKS, "C17")
# Where plans are timed; a verdict without a GPU does not list them.
TIMED = {"C3": "timing.wrong_result", "C6": "timing.clocks_disagree", "C7": "timing.impossible"}
# Of these, what says nothing of the candidate but that it had no fair rival.
OF_THE_STOCK = {"C20": hygiene.REASON}
# Where plans are launched; a verdict without a GPU does not list them.
ON_A_GPU = ("C8", "C15")
NO_GPU = "the judge ran without a GPU: kernels were interpreted, not timed"


class Ruling:
    """Collects what the stages found about one candidate and rules at the end."""

    def __init__(
        self, *, model: str, op: str, candidate: Candidate, contract_digest: str, judge_digest: str, sandbox: str,
        unsafe: bool,
    ) -> None:  # fmt: skip
        self._facts = dict(
            model=model, op=op, candidate_digest=candidate.digest(), config=candidate.config,
            contract_digest=contract_digest, judge_digest=judge_digest, sandbox=sandbox,
        )  # fmt: skip
        self.executor = "none"
        self.why_not_timed = NO_GPU
        self.seconds: dict[str, float] = {}
        self.toolchain: dict[str, str] = {}
        self.audits: tuple[KernelAudit, ...] = ()
        self.notes: tuple[Note, ...] = ()
        self._checks: dict[str, CheckResult] = {}
        self._workloads: dict[str, Workload] = {}
        self._launches: dict[str, int] = {}
        self._plan: KernelPack | None = None
        self._trials: dict[str, list[Trial]] = {}
        self._pools: dict[tuple[str, str, str], list[Measurement]] = {}
        self._errors: dict[str, dict[str, TensorError]] = {}
        self._cells: list[TimedCell] = []
        self._timings: dict[tuple[str, str], Timing] = {}
        self._untimed: dict[tuple[str, str], str] = {}
        if unsafe:
            message = "run with --unsafe-no-sandbox: candidate code shared this machine with the judge unconfined"
            self.add(_result("C1", Outcome.NOT_RUN, "sandbox.unsafe", message))
        else:
            self.add(_result("C1", Outcome.PASS))

    @property
    def rejected(self) -> bool:
        """Whether some check has failed: nothing found later can change the status."""
        return any(check.outcome is Outcome.FAIL for check in self._checks.values())

    @property
    def unmet(self) -> tuple[CheckResult, ...]:
        """What has not passed so far."""
        return tuple(check for check in self._checks.values() if check.outcome is not Outcome.PASS)

    @property
    def stopped(self) -> bool:
        """Whether nothing that could still be tried would change the status."""
        halted = self._checks.get("execution")
        return self.rejected or (halted is not None and halted.outcome is Outcome.NOT_RUN)

    def add(self, check: CheckResult) -> None:
        """Records a check; the first failure of a check is the one that is kept."""
        known = self._checks.get(check.check)
        if known is None or known.outcome is Outcome.PASS:
            self._checks[check.check] = check

    def fail(self, finding: Finding, trial: Trial | None = None, cause: str | None = None) -> None:
        """Records a finding, with where it was seen and, where a known mistake explains it, its cause."""
        message = finding.message + (f"; {cause}" if cause else "")
        if trial is not None:
            message += f" [{_where(trial)}]"
        self.add(CheckResult(
            check=finding.check, title=TITLES[finding.check], outcome=Outcome.FAIL, reason=finding.reason,
            message=message, figures=finding.figures,
        ))  # fmt: skip

    def pass_stage(self, check: str, message: str = "", figures: Mapping[str, float | int | str] | None = None) -> None:
        """Records that a stage went through."""
        self.add(_result(check, Outcome.PASS, None, message, figures))

    def skip_stage(self, check: str, reason: str, message: str) -> None:
        """Records that a stage cannot run on this machine, and why: never a pass."""
        self.add(_result(check, Outcome.NOT_RUN, reason, message))

    def planned(self, workloads: Iterable[Workload], packs: Mapping[str, KernelPack]) -> None:
        """Remembers which workloads have a valid plan."""
        self._workloads.update({w.name: w for w in workloads})
        self._launches.update({name: len(pack.launches) for name, pack in packs.items()})
        self._plan = next(iter(packs.values()))

    def hold(
        self, trial: Trial, contract: OpContract, measured: Mapping[str, Measurement], cause: Callable[[], str | None]
    ) -> None:  # fmt: skip
        """Pools one trial's errors with those of the same workload and distribution, and decides on the pool."""
        workload, distribution = trial.spec.workload.name, trial.spec.distribution
        for comparison in contract.comparisons:
            name = comparison.tensor
            pool = self._pools.setdefault((workload, distribution, name), [])
            pool.append(measured[name])
            decided = decide(comparison, pool)
            if decided.candidate is not None:
                self._keep_error(workload, name, decided)
            if decided.decision is Decision.INVALID:
                self.add(_result("numerics", Outcome.INVALID, decided.reason, decided.message))
            elif decided.decision is Decision.FAIL:
                check = "C9" if decided.reason == "numerics.not_finite" else self._numeric_check(trial)
                finding = Finding(check=check, reason=decided.reason, message=decided.message, figures=_figures(decided))
                self.fail(finding, trial, cause())

    def settle_trials(self, contract: OpContract, trials: list[Trial], *, complete: bool) -> None:
        """Closes the trial stage: what did not fail has passed if every planned trial ran."""
        for trial in trials:
            self._trials.setdefault(trial.spec.workload.name, []).append(trial)
        self._check_freshness(trials)
        counts = {
            "C11": ("distributions", len({trial.spec.distribution for trial in trials}), 2),
            "C13": ("unseen_workloads", len({t.spec.workload.name for t in trials if t.spec.workload.held_out}), 1),
            "C14": ("twins", sum(is_twin(trial) for trial in trials), 2),
        }
        for check in TRIAL_CHECKS:
            if check in self._checks:
                continue
            what, count, needed = counts.get(check, ("trials", len(trials), 1))
            if complete and count >= needed:
                self.add(_result(check, Outcome.PASS, figures={what: count}))
            else:
                why = "too little was tried to tell" if complete else "an earlier check failed; not every trial ran"
                self.add(_result(check, Outcome.NOT_RUN, f"{check}.not_run", why, {what: count}))

    def timed(self, hardware: str, workload: str, timing: Timing) -> None:
        """Takes a finished timing session in. A fault of the stock path's is the judge's own, not the candidate's: it
        leaves no time, and where the path did not run as it does for its users, no valid verdict."""
        blamed = [fault for fault in timing.faults if fault.contestant != STOCK]
        if timing.disturbed:
            # What the clocks say then says nothing of the candidate; what its calls computed still does.
            blamed = [fault for fault in blamed if fault.reason == TIMED["C3"]]
        for check, reason in TIMED.items():
            if timing.disturbed and check != "C3":
                continue
            found = [fault for fault in blamed if fault.reason == reason]
            if found:
                message = f"{found[0].message} [workload {workload}]"
                self.add(_result(check, Outcome.FAIL, reason, message))
            else:
                self.add(_result(check, Outcome.PASS))
        for check, reason in OF_THE_STOCK.items():
            found = [fault for fault in timing.faults if fault.reason == reason]
            message = f"{found[0].message} [workload {workload}]" if found else ""
            outcome, named = (Outcome.INVALID, reason) if found else (Outcome.PASS, None)
            self.add(_result(check, outcome, named, message))
        own = [fault for fault in timing.faults if fault not in blamed]
        if timing.disturbed:
            self.untimed(hardware, workload, timing.disturbed)
        elif own:
            self.untimed(hardware, workload, own[0].message)
        elif not blamed:
            self._timings[hardware, workload] = timing

    def untimed(self, hardware: str, workload: str, why: str) -> None:
        """Says why a workload has no time on a card that was there."""
        self._untimed[hardware, workload] = why

    def seal(self, before: str, after: str) -> None:
        """Holds the digest of everything that rules, taken again at the end, against the one from the beginning."""
        if before == after:
            self.add(_result("C17", Outcome.PASS))
        else:
            message = "files of the judge, a contract or the stock path changed while the candidate was ruled on"
            self.add(_result("C17", Outcome.INVALID, "judge.changed", message))

    def model_times(
        self, packs: Mapping[str, KernelPack], trials: list[Trial], modelled: Iterable[Workload],
        audits: Mapping[tuple[str, str], KernelAudit],
    ) -> None:  # fmt: skip
        """Fills the cell of every declared workload: what was measured, or "not measured" beside a modelled estimate.

        Bytes per program come from the declared trial nearest in rows of the same TP, whose launches the interpreter
        metered; the grid comes from each workload's own plan.
        """
        metered = [t for t in trials if t.status == "ok" and t.launches and not t.spec.workload.held_out and not t.spec.far]
        for workload in modelled:
            pack = packs[workload.name]
            near = [t for t in metered if t.spec.workload.axes["tp"] == workload.axes["tp"]]
            near = [t for t in near if len(t.launches) == len(pack.launches) and t.spec.perturbed_row is None]
            near.sort(key=lambda t: abs(t.spec.workload.axes["rows"] - workload.axes["rows"]))
            for card in profiles().values():
                estimate = None
                shapes = near and tuple(
                    _shape(launch, audits[variant_key(pack.kernels[launch.kernel]), f"sm_{card.target}"], meter)
                    for launch, meter in zip(pack.launches, near[0].launches, strict=True)
                )
                if shapes:
                    estimate = model_plan(shapes, card)
                place = card.name, workload.name
                timing = self._timings.get(place)
                why = self._untimed.get(place, self.why_not_timed)
                cell = timing.candidate if timing else NotMeasured(reason=why, modelled=estimate)
                self._cells.append(TimedCell(hardware=card.name, workload=workload.name, cell=cell, timing=timing))

    def verdict(self) -> Verdict:
        """The ruling. Checks are listed in the order in which they are required."""
        checks = tuple(self._checks[name] for name in (*REQUIRED, *ON_A_GPU, *TIMED, *OF_THE_STOCK) if name in self._checks)
        status, reason, message = rule(checks, REQUIRED)
        return Verdict(
            **self._facts, status=status, reason=reason, message=message, checks=checks, audits=self.audits,
            workloads=tuple(self._result(name) for name in self._trials), executor=self.executor,
            toolchain=self.toolchain, seconds=self.seconds, plan=self._plan, cells=tuple(self._cells),
            notes=self.notes,
        )  # fmt: skip

    def _result(self, name: str) -> WorkloadResult:
        trials = self._trials[name]
        workload = trials[0].spec.workload
        return WorkloadResult(
            workload=name, axes=workload.axes, held_out=workload.held_out, launches=self._launches[name],
            trials=len(trials), distributions=tuple(dict.fromkeys(t.spec.distribution for t in trials)),
            errors=tuple(self._errors.get(name, {}).values()),
        )  # fmt: skip

    def _keep_error(self, workload: str, tensor: str, decided) -> None:
        """Keeps, for each tensor of a workload, the pool with the largest median relative to the plain path's."""
        own, plain = decided.candidate, decided.plain
        error = TensorError(
            tensor=tensor, values=own.values, median=own.median, p999=own.p999, maximum=own.maximum,
            plain_median=plain.median, plain_p999=plain.p999, plain_maximum=plain.maximum,
        )  # fmt: skip
        kept = self._errors.setdefault(workload, {})
        if tensor not in kept or error.median * kept[tensor].plain_median > kept[tensor].median * error.plain_median:
            kept[tensor] = error

    def _numeric_check(self, trial: Trial) -> str:
        if trial.spec.workload.held_out:
            # Unseen layout and unseen values at once: blame the values when a declared layout saw only the first kind.
            first = next(iter(self._errors))
            same = any(t.spec.distribution == trial.spec.distribution for t in self._trials.get(first, ()))
            return "C13" if same else "C11"
        return "numerics"

    def _check_freshness(self, trials: list[Trial]) -> None:
        # A twin has the same inputs on purpose.
        drawn = [trial.fingerprint for trial in trials if trial.fingerprint and not is_twin(trial)]
        if len(set(drawn)) < len(drawn):
            self.add(_result("C2", Outcome.INVALID, "inputs.repeated", "two trials drew the same inputs"))


def is_twin(trial: Trial) -> bool:
    """Whether a trial repeats another one's inputs: with memory moved, or with one row redrawn."""
    return trial.spec.poison == PLAUSIBLE or trial.spec.perturbed_row is not None


def _result(
    check: str, outcome: Outcome, reason: str | None = None, message: str = "",
    figures: Mapping[str, float | int | str] | None = None,
) -> CheckResult:  # fmt: skip
    return CheckResult(
        check=check, title=TITLES[check], outcome=outcome, reason=reason, message=message, figures=dict(figures or {})
    )


def _figures(decided) -> dict[str, float | int | str]:
    if decided.candidate is None:
        return {}
    own, plain = decided.candidate, decided.plain
    return {
        "median": own.median, "p999": own.p999, "maximum": own.maximum,
        "plain_median": plain.median, "plain_p999": plain.p999, "plain_maximum": plain.maximum,
    }  # fmt: skip


def _where(trial: Trial) -> str:
    spec = trial.spec
    if spec.far:
        return f"page numbers above {spec.far.shift}, whose offsets need 64 bits; values {spec.distribution}"
    return f"workload {'unseen' if spec.workload.held_out else spec.workload.name}, values {spec.distribution}"


def _shape(launch, audit: KernelAudit, meter: Mapping[str, int]) -> LaunchShape:
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
    per_program = (meter["bytes_loaded"] + meter["bytes_stored"]) / max(1, meter["programs"])
    return LaunchShape(
        blocks=blocks, threads=audit.threads, registers=audit.registers, shared_bytes=audit.shared_bytes,
        barriers=audit.barriers,
        moved_bytes=round(per_program * blocks),
        spill_bytes_per_thread=audit.spill_store_bytes + audit.spill_load_bytes,
    )  # fmt: skip
