"""One candidate in, one verdict out.

Stages, each a barrier: the sources are reduced to their allow-listed kernels; the launch plan is recorded in a sandbox
for declared and unseen workloads; the plan is validated; every kernel is compiled for every target and its machine code
read; then trials run on fresh judge-owned memory, drawn after the plan was fixed, and are held against the oracle,
which is computed here, where no candidate code has ever run. `screen` is a full set of checks at small true-shape
workloads; `confirm` repeats it at named workloads with new seeds and unseen layouts.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ..contracts import ModelContract
from ..contracts.base import OpContract, TensorRole, Workload
from ..digests import installed_judge_digest
from ..errors import UserError
from ..performance.hardware import profile
from ..sandbox import Limits, Profile, Sandbox
from . import inspect_trial, stages
from .candidate import Candidate
from .diagnose import diagnose
from .executor import ENTRY as INTERPRET_ENTRY
from .executor import Interpreter
from .pack import KernelPack
from .ruling import Ruling
from .sanity import check_task
from .trials import NOT_A_NUMBER, PLAUSIBLE, Trial, TrialSpec, run_trial
from .verdict import CheckResult, Verdict

# Row counts of the screening workloads: one skinny and one small batch; confirmation covers every bucket.
SCREEN_ROWS = (1, 4)
# Twins (moved memory, a perturbed row) are run up to this many rows: what they show does not depend on the batch, and
# interpreting a large one takes minutes.
TWIN_ROWS = 8
RECORD_MODULE = stages.RECORD_ENTRY.partition(":")[0]
COMPILE_MODULE = stages.COMPILE_ENTRY.partition(":")[0]
INTERPRET_MODULE = INTERPRET_ENTRY.partition(":")[0]
INTERPRETER_LIMITS = Limits(wall_seconds=240, memory_bytes=8 << 30)


class Judge:
    """Rules on candidates of one model. Use as a context manager: it owns two sandboxes.

    Without a GPU the executor is the interpreter and performance cells say so. `hardware` is what the plan is recorded
    for (a candidate may ask for the number of multiprocessors); code is compiled for every target. `cache` keeps
    compiled kernels between runs. `unsafe_no_sandbox` runs candidate code unconfined; it is written into every verdict,
    and no gate accepts such a verdict.
    """

    def __init__(
        self, model: ModelContract, *, hardware: str = "h200", cache: Path | None = None,
        unsafe_no_sandbox: bool = False, concurrency: int = 2,
    ) -> None:  # fmt: skip
        self.model = model
        self._hardware = profile(hardware)
        self._cache = cache
        self._unsafe = unsafe_no_sandbox
        self._concurrency = concurrency
        self._sane: dict[str, CheckResult] = {}
        self._recorder = self._interpreter = None

    def __enter__(self) -> "Judge":
        torch.set_num_threads(1)
        self._recorder = Sandbox(
            Profile.RECORDER, preload=("torch", "triton", RECORD_MODULE, COMPILE_MODULE),
            concurrency=self._concurrency, unsafe=self._unsafe,
        )  # fmt: skip
        self._interpreter = Sandbox(
            Profile.INTERPRETER, preload=("triton", INTERPRET_MODULE),
            environ={"TRITON_INTERPRET": "1"}, concurrency=self._concurrency, unsafe=self._unsafe,
        )  # fmt: skip
        self._recorder.__enter__()
        self._interpreter.__enter__()
        return self

    def __exit__(self, *error) -> None:
        for sandbox in (self._recorder, self._interpreter):
            if sandbox is not None:
                sandbox.close()

    @property
    def sandbox(self) -> str:
        """What confines candidate code, for evidence."""
        return self._recorder.description

    def screen(self, candidate: Candidate) -> Verdict:
        """Every check at small true-shape workloads of each TP, and a modelled time for every declared workload."""
        contract = self._contract(candidate.op)
        declared = contract.workloads()
        small = tuple(w for w in declared if w.axes["rows"] in SCREEN_ROWS)
        return self._judge(candidate, contract, small, modelled=declared)

    def confirm(self, candidate: Candidate, workloads: Sequence[str]) -> Verdict:
        """The checks again at the named declared workloads, with fresh seeds and unseen layouts of each bucket."""
        contract = self._contract(candidate.op)
        declared = {w.name: w for w in contract.workloads()}
        missing = [name for name in workloads if name not in declared]
        if missing:
            raise UserError(f"unknown workload {missing[0]!r} of {candidate.op}", f"known: {', '.join(declared)}")
        chosen = tuple(declared[name] for name in workloads)
        # Twins are interpreted at a small batch only, so each TP brings one along.
        tps = {w.axes["tp"] for w in chosen}
        small = tuple(w for w in declared.values() if w.axes["tp"] in tps and w.axes["rows"] == SCREEN_ROWS[-1])
        together = tuple({w.name: w for w in (*chosen, *small)}.values())
        return self._judge(candidate, contract, together, modelled=chosen)

    def _contract(self, op: str) -> OpContract:
        return self.model.op(op)

    def _judge(
        self, candidate: Candidate, contract: OpContract, workloads: tuple[Workload, ...],
        *, modelled: tuple[Workload, ...],
    ) -> Verdict:  # fmt: skip
        ruling = Ruling(
            model=self.model.model, op=candidate.op, candidate=candidate,
            contract_digest=self.model.digest(candidate.op), judge_digest=installed_judge_digest(),
            sandbox=self.sandbox, unsafe=self._unsafe,
        )  # fmt: skip
        with _timed(ruling, "sanity"):
            ruling.add(self._check_sanity(contract))
        # Unseen layouts are drawn before recording only because a plan is recorded per layout; the recorder shows
        # nothing of them to anyone, and values are drawn afterwards.
        unseen = tuple(_unseen(contract, workload) for workload in workloads)
        batch = min((w for w in workloads if w.axes["rows"] > 1), key=lambda w: contract.cost(w).bytes, default=workloads[0])
        far = contract.far(batch)
        distant = (far.workload,) if far else ()
        everything = {w.name: w for w in (*modelled, *workloads, *unseen, *distant)}
        with _timed(ruling, "record"):
            source = stages.extract_source(candidate, ruling)
            packs = source and stages.record(
                self._recorder, candidate, contract, tuple(everything.values()), self._hardware, ruling
            )
            planned = packs and stages.validate_plans(packs, candidate, contract, everything, source, ruling)
        if planned:
            with _timed(ruling, "compile"):
                compiled = stages.compile_and_audit(self._recorder, source, packs, self._cache, ruling)
            if compiled and stages.can_run(packs, Interpreter.languages, "the interpreter of this machine", ruling):
                with _timed(ruling, "trials"):
                    groups = list(_plan_trials(contract, workloads, unseen))
                    if far:
                        groups.append((replace(_spec(batch, next(iter(contract.distributions))), far=far),))
                    trials = self._trials(candidate, contract, source, packs, groups, ruling)
                ruling.model_times(packs, trials, modelled, compiled)
        return ruling.verdict()

    def _check_sanity(self, contract: OpContract) -> CheckResult:
        if contract.op not in self._sane:
            workload = next(w for w in contract.workloads() if w.axes["rows"] >= 4)
            self._sane[contract.op] = check_task(contract, workload, secrets.randbits(62))
        return self._sane[contract.op]

    def _trials(self, candidate, contract, source, packs, groups, ruling) -> list[Trial]:
        """Runs trial groups until one shows a fault; later groups cannot change the verdict."""
        executor = Interpreter(self._interpreter, source, INTERPRETER_LIMITS)
        ruling.executor = executor.description
        done: list[Trial] = []

        def run(group: tuple[TrialSpec, ...]) -> list[Trial]:
            # The trials of a group share their static tensors, and so what `prepare` makes of them.
            pack = packs[(group[0].far or group[0]).workload.name]
            try:
                prepared = self._prepare(candidate, contract, pack, group[0])
            except stages.PrepareFailed as error:
                return [Trial(group[0], "error", str(error), {})]
            return [run_trial(contract, spec, pack, prepared, executor) for spec in group]

        with ThreadPoolExecutor(self._concurrency) as pool:
            for start in range(0, len(groups), self._concurrency):
                for trials in pool.map(run, groups[start : start + self._concurrency]):
                    done += trials
                    _inspect(contract, trials, ruling)
                if ruling.rejected:
                    break
        ruling.settle_trials(contract, done, complete=not ruling.rejected)
        return done

    def _prepare(self, candidate: Candidate, contract: OpContract, pack: KernelPack, spec: TrialSpec) -> dict[str, bytes]:
        """Runs the candidate's `prepare` apart, on this trial's static tensors alone."""
        if not pack.prepared:
            return {}
        inputs = contract.make_inputs(spec.workload, spec.distribution, spec.seed)
        static = {s.name: inputs[s.name] for s in contract.tensors(spec.workload) if s.role is TensorRole.STATIC}
        return stages.prepare(self._recorder, candidate, contract, spec.workload, self._hardware, static, pack)


# Draws of a layout until its batch is odd: each is, with one chance in three or better.
ODD_DRAWS = 64


def _unseen(contract: OpContract, workload: Workload) -> Workload:
    """An unpredictable layout of the same bucket, with an odd batch where the bucket has room for one.

    Declared batches are powers of two: only an odd one shows a kernel that forgets what its tiles do not cover.
    """
    for _ in range(ODD_DRAWS):
        drawn = contract.vary(workload, secrets.randbits(62))
        if workload.axes["rows"] < 3 or drawn.axes["rows"] % 2:
            break
    return drawn.model_copy(update={"held_out": True})


def _plan_trials(contract, workloads, unseen) -> Iterator[tuple[TrialSpec, ...]]:
    """Groups of trials; the trials of a group share inputs and are compared with each other bit for bit."""
    first, *rest = contract.distributions
    for workload in workloads:
        yield _group(contract, workload, first)
    # All distributions run on the smallest unseen batch of each TP; elsewhere the system's random source picks.
    smallest: dict[int, Workload] = {}
    for workload in sorted(unseen, key=lambda w: (w.axes["rows"] < 2, contract.cost(w).bytes)):
        smallest.setdefault(workload.axes["tp"], workload)
    for workload in unseen:
        every = workload is smallest[workload.axes["tp"]]
        for name in contract.distributions if every else (secrets.choice(rest),):
            yield (replace(_spec(workload, name), order=f"shuffled:{secrets.randbits(31)}"),)


def _group(contract: OpContract, workload: Workload, distribution: str) -> tuple[TrialSpec, ...]:
    base = _spec(workload, distribution)
    if workload.axes["rows"] > TWIN_ROWS:
        return (base,)
    # Same inputs; other addresses, poison, scratch and program order.
    moved = TrialSpec(
        workload, distribution, base.seed, secrets.randbits(62), poison=PLAUSIBLE,
        order=f"shuffled:{secrets.randbits(31)}" if workload.axes["rows"] > 1 else "descending",
    )  # fmt: skip
    rows = workload.axes["rows"]
    if rows < 2:
        return base, moved
    other = TrialSpec(workload, distribution, base.seed, base.layout_seed, perturbed_row=secrets.randbelow(rows))
    return base, moved, other


def _spec(workload: Workload, distribution: str) -> TrialSpec:
    return TrialSpec(workload, distribution, secrets.randbits(62), secrets.randbits(62), poison=NOT_A_NUMBER)


def _inspect(contract: OpContract, trials: list[Trial], ruling: Ruling) -> None:
    """Turns a finished group into findings and error figures."""
    base = trials[0]
    for trial in trials:
        finding = inspect_trial.execution_finding(trial)
        if finding:
            ruling.fail(finding, trial)
            return
        for finding in (
            *inspect_trial.stray_findings(trial, contract),
            *inspect_trial.foreign_page_findings(trial, contract),
            *inspect_trial.poison_findings(trial, contract),
        ):
            oracle = contract.oracle(trial.inputs, trial.spec.workload)
            cause = diagnose(trial, contract, oracle)
            ruling.fail(finding, trial, cause)
        for finding in inspect_trial.conflict_findings(trial):
            ruling.fail(finding, trial)
        if ruling.rejected:
            return  # in another order of launches or programs the same fault may have another name
    for other in trials[1:]:
        row = other.spec.perturbed_row
        for finding in inspect_trial.difference_findings(base, other, contract, skip_row=row):
            ruling.fail(finding, other)
    for trial in trials:
        if trial is base or trial.spec.perturbed_row is not None:
            oracle = contract.oracle(trial.inputs, trial.spec.workload)
            plain = contract.plain(trial.inputs, trial.spec.workload)
            measured = inspect_trial.measurements(trial, contract, oracle, plain)
            ruling.hold(trial, contract, measured, lambda t=trial, o=oracle: diagnose(t, contract, o))


@contextmanager
def _timed(ruling: Ruling, stage: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        ruling.seconds[stage] = round(ruling.seconds.get(stage, 0.0) + time.monotonic() - start, 3)


