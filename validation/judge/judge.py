"""One candidate in, one verdict out.

Recording and ruling are apart, so that they may happen on two machines. *Record*: the sources are reduced to their
allow-listed kernels; the launch plan is recorded in a sandbox for declared and unseen workloads and validated; every
kernel is compiled for every target. *Rule*: all of that is checked again; the machine code is read; then trials run on
fresh judge-owned memory, drawn after the plan was fixed, and are held against the oracle, which is computed here, where
no candidate code has ever run. `screen` does both with a full set of checks at small true-shape workloads; `confirm`
repeats it at named workloads with new seeds and unseen layouts.
"""

import os
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from ..contracts import ModelContract
from ..contracts.base import OpContract, TensorRole, Workload
from ..digests import installed_judge_digest, package_digest
from ..errors import UserError
from ..performance.hardware import profile, profile_of
from ..sandbox import Limits
from . import recorded as records
from . import stages, trial_plan
from .candidate import Candidate
from .code_rules import settle_audits
from .examination import Examined, examine, settle
from .executor import Interpreter
from .in_order import in_order
from .kernel_source import KernelSource
from .pack import KernelPack
from .prepare import PrepareFailed, prepare
from .recorded import Recorded, RecordedError, Workloads, verify, workloads_of
from .recorder import triton_is_supported
from .replay.choose import choose
from .replay.device import Device
from .replay.executor import Gpu, codes_for
from .ruling import NO_GPU, Ruling
from .sanitizer_stage import sanitize
from .sandboxes import Sandboxes
from .sanity import check_task
from .static_scan import notes
from .stopwatch import Stopwatch
from .timing_stage import time_plans
from .trials import Executor, Trial, TrialSpec, run_trial
from .verdict import CheckResult, Verdict

# Row counts of the screening workloads: one skinny and one small batch; confirmation covers every bucket.
SCREEN_ROWS = (1, 4)
INTERPRETER_LIMITS = Limits(wall_seconds=240, memory_bytes=8 << 30)
# Threads that draw inputs and compute oracles while another one's trial is on the GPU.
MAX_EXAMINERS = 8


class Judge:
    """Rules on candidates of one model. Use as a context manager: it owns sandboxes, and the GPU where it has one.

    `device` says what runs the plans: "gpu", "cpu" (the interpreter), "auto" (a GPU where one can be used), or a Device
    of the caller's. On a GPU accepted plans are timed unless `timed` is False; without one performance cells say so. `hardware` is what the plan is recorded for (a candidate
    may ask for the number of multiprocessors); code is compiled for every target. `cache` keeps compiled kernels
    between runs. `unsafe_no_sandbox` runs candidate code unconfined; it is written into every verdict, and no gate
    accepts such a verdict.
    """

    def __init__(
        self, model: ModelContract, *, hardware: str = "h200", cache: Path | None = None,
        unsafe_no_sandbox: bool = False, concurrency: int = 2, device: str | Device = "auto", timed: bool = True,
    ) -> None:  # fmt: skip
        self.model = model
        self._hardware = profile(hardware)
        self._cache = cache
        self._unsafe = unsafe_no_sandbox
        self._concurrency = concurrency
        self._asked = device
        self._timed = timed
        self._stopwatch: Stopwatch | None = None
        self._device: Device | None = None
        self._why_no_device = ""
        self._sane: dict[str, CheckResult] = {}
        self._sandboxes = Sandboxes(unsafe=unsafe_no_sandbox, concurrency=concurrency, preparing=MAX_EXAMINERS)
        # A judge lives as long as a run: what was loaded at its start rules to its end, or nothing does.
        self._seal = package_digest()

    def __enter__(self) -> "Judge":
        torch.set_num_threads(1)
        self._device, self._why_no_device = choose(self._asked)
        try:
            if triton_is_supported():
                self._sandboxes.recorder()
                if self._device is None:
                    self._sandboxes.interpreter()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error) -> None:
        self._sandboxes.close()
        if self._stopwatch is not None:
            self._stopwatch.__exit__(*error)
            self._stopwatch = None
        if self._device is not None and self._device is not self._asked:
            self._device.close()

    @property
    def sandbox(self) -> str:
        """What confines candidate code, for evidence."""
        return self._sandboxes.preparer().description

    def identity(self, op: str) -> dict[str, object]:
        """What a verdict on a candidate for `op` depends on beside the candidate: contract, judge, machine, tools."""
        facts = self._device.facts if self._device is not None else None
        card = profile_of(facts.name) if facts else None
        return {
            "model": self.model.model, "contract": self.model.digest(op), "judge": installed_judge_digest(),
            "device": asdict(facts) if facts else "interpreter", "hardware": self._hardware.name,
            "timed_on": card.name if card and self._timed else None, "toolchain": stages.toolchain(),
            "sandbox": self.sandbox, "unsafe": self._unsafe,
        }  # fmt: skip

    def screen(self, candidate: Candidate, workloads: Sequence[str] | None = None) -> Verdict:
        """Every check at small true-shape workloads of each TP, and a time for every declared workload.

        With `workloads` it is the look of a search, whose picks are confirmed: only these get a time, and on a GPU the
        small workloads of their TPs alone are tried, without sanitizers.
        """
        if workloads is None:
            return self.rule(self._record_declared(candidate, unseen=1, every=self._device is not None))
        return self.rule(self._record_declared(candidate, unseen=1, every=False, named=workloads), thorough=False)

    def confirm(
        self, candidate: Candidate, workloads: Sequence[str], timed: Collection[str] | None = None
    ) -> Verdict:  # fmt: skip
        """The checks again at the named declared workloads, with fresh seeds and unseen layouts of each bucket.

        `timed`: those of them that get a time, by default all.
        """
        return self.rule(self.record(candidate, workloads), timed=timed)

    def record(self, candidate: Candidate, workloads: Sequence[str] | None = None, unseen: int = 1) -> Recorded:
        """Everything that ruling needs, for the named declared workloads or all, with so many unseen layouts of each.

        Needs a Triton that the recorder knows, and no GPU. A candidate that cannot be recorded or compiled gives a
        record that says why. Raises UserError for an unknown workload or another Triton.
        """
        if unseen < 1:
            raise UserError(f"{unseen} unseen layouts of each workload", "record at least one")
        if workloads is None:
            return self._record_declared(candidate, unseen=unseen, every=True)
        contract = self.model.op(candidate.op)
        chosen = _named(contract, workloads)
        # Twins are interpreted at a small batch only, so each TP brings one along.
        tps = {w.axes["tp"] for w in chosen}
        affordable = contract.small() or contract.workloads()
        small = tuple(w for w in affordable if w.axes["tp"] in tps and w.axes["rows"] == SCREEN_ROWS[-1])
        checked = tuple({w.name: w for w in (*chosen, *small)}.values())
        return self._record(candidate, contract, checked, chosen, {w.name: unseen for w in checked})

    def _record_declared(
        self, candidate: Candidate, *, unseen: int, every: bool, named: Sequence[str] | None = None
    ) -> Recorded:  # fmt: skip
        """All declared workloads, or the named; an interpreter checks the small ones of their TPs. Unseen layouts of
        those, or of `every` one."""
        contract = self.model.op(candidate.op)
        declared, affordable = contract.workloads(), contract.small() or contract.workloads()
        if named is not None:
            declared = _named(contract, named)
            tps = {w.axes["tp"] for w in declared}
            affordable = tuple(w for w in affordable if w.axes["tp"] in tps)
        # An imported definition may have no batches as small as these.
        small = tuple(w for w in affordable if w.axes["rows"] in SCREEN_ROWS) or affordable[:2]
        varied = {w.name: unseen for w in ((*small, *declared) if every else small)}
        return self._record(candidate, contract, small, declared, varied)

    def _record(
        self, candidate: Candidate, contract: OpContract, checked: tuple[Workload, ...],
        declared: tuple[Workload, ...], unseen: dict[str, int],
    ) -> Recorded:  # fmt: skip
        ruling = self._ruling(candidate, self._unsafe)
        batch = min((w for w in checked if w.axes["rows"] > 1), key=lambda w: contract.cost(w).bytes, default=checked[0])
        # Unseen layouts are drawn before recording only because a plan is recorded per layout; the recorder shows
        # nothing of them to anyone, and values are drawn afterwards.
        names = {
            "checked": tuple(w.name for w in checked),
            "declared": tuple(w.name for w in declared),
            "unseen": {
                w.name: tuple(trial_plan.layout_seed(contract, w) for _ in range(unseen[w.name]))
                for w in (*checked, *declared) if w.name in unseen
            },
            "far_base": batch.name if contract.far(batch) else None,
        }
        planned = workloads_of(contract, **names).planned
        with _timed(ruling, "record"):
            source = stages.extract_source(candidate, ruling)
            packs = source and stages.record(
                self._sandboxes.recorder(), candidate, contract, tuple(planned.values()), self._hardware, ruling
            )
            in_order = packs and stages.validate_plans(packs, candidate, contract, planned, source, ruling)
        codes = None
        if in_order:
            with _timed(ruling, "compile"):
                codes = stages.compile_kernels(self._sandboxes.recorder(), source, packs, self._cache, ruling)
        return Recorded(
            model=self.model.model, candidate=candidate, hardware=self._hardware.name, **names,
            contract_digest=self.model.digest(candidate.op), judge_digest=installed_judge_digest(),
            packs=packs or {}, codes=codes or (), toolchain=stages.toolchain(), sandbox=self._sandboxes.recorder().description,
            unsafe=self._unsafe, seconds=ruling.seconds,
            stopped=tuple(check for check in ruling.unmet if check.check in records.STAGES),
        )  # fmt: skip

    def rule(
        self, recorded: Recorded, *, timed: Collection[str] | None = None, thorough: bool = True
    ) -> Verdict:  # fmt: skip
        """The verdict on a record: of this judge, or read from a file. Every seed is drawn here.

        `timed`: the declared workloads that get a time, by default all. Not `thorough`: a GPU tries what an interpreter
        would, and runs no sanitizers. Raises RecordedError for a record that this judge cannot rule on.
        """
        ruling = self._rule(recorded, timed, thorough)
        ruling.seal(self._seal, package_digest())
        return ruling.verdict()

    def _rule(self, recorded: Recorded, timed: Collection[str] | None, thorough: bool) -> Ruling:
        contract = self.model.op(recorded.candidate.op)
        digest, judge = self.model.digest(recorded.candidate.op), installed_judge_digest()
        workloads = verify(recorded, self.model.model, contract, digest, judge)
        if recorded.hardware != self._hardware.name:
            message = f"recorded for {recorded.hardware}, judged for {self._hardware.name}"
            raise RecordedError("recorded.hardware", message)
        ruling = self._ruling(recorded.candidate, recorded.unsafe or self._unsafe, self._confined(recorded))
        ruling.seconds.update(recorded.seconds)
        ruling.toolchain = recorded.toolchain
        ruling.notes = notes(recorded.candidate.files)
        with _timed(ruling, "sanity"):
            ruling.add(self._check_sanity(contract))
        for check in recorded.stopped:
            ruling.add(check)
        if recorded.stopped:
            return ruling
        with _timed(ruling, "reading"):
            source = stages.extract_source(recorded.candidate, ruling)
            if source is None:
                return ruling
            ruling.pass_stage("record", figures={"workloads": len(recorded.packs)})
            if not stages.validate_plans(
                recorded.packs, recorded.candidate, contract, workloads.planned, source, ruling
            ):
                return ruling
            audits = settle_audits(records.audits(recorded.codes), recorded.codes, recorded.packs, ruling)
        executor = self._executor(recorded, source)
        ruling.executor = executor.description
        if audits and stages.can_run(recorded.packs, executor.languages, "the interpreter of this machine", ruling):
            if self._device is not None and self._timed:
                self._ready_to_time(contract.op)
            with _timed(ruling, "trials"):
                trials = self._trials(recorded, contract, workloads, executor, ruling, thorough)
            ruling.why_not_timed = self._why_not_timed()
            if self._device is not None and not thorough:
                ruling.skip_stage("C15", "sanitizer.not_run", "left to the confirmation of a pick")
            elif self._device is not None and not ruling.stopped:
                with _timed(ruling, "sanitizers"):
                    self._sanitize(recorded, contract, workloads.checked, ruling)
            if self._device is not None and self._timed and not ruling.stopped:
                wanted = tuple(w for w in workloads.declared if timed is None or w.name in timed)
                with _timed(ruling, "timing"):
                    self._time(recorded, contract, wanted, ruling)
            ruling.model_times(recorded.packs, trials, workloads.declared, audits)
        return ruling

    def _ruling(self, candidate: Candidate, unsafe: bool, sandbox: str = "") -> Ruling:
        return Ruling(
            model=self.model.model, op=candidate.op, candidate=candidate,
            contract_digest=self.model.digest(candidate.op), judge_digest=installed_judge_digest(), sandbox=sandbox,
            unsafe=unsafe,
        )  # fmt: skip

    def _confined(self, recorded: Recorded) -> str:
        """What confined the candidate's code, where it was recorded and here."""
        if not any(pack.prepared for pack in recorded.packs.values()):
            return recorded.sandbox
        here = self._sandboxes.preparer().description
        return here if here == recorded.sandbox else f"{recorded.sandbox} (recorded); {here} (prepare)"

    def _why_not_timed(self) -> str:
        if self._device is not None:
            return "kernels were launched on a GPU and checked; they were not timed"
        return NO_GPU

    def _check_sanity(self, contract: OpContract) -> CheckResult:
        if contract.op not in self._sane:
            declared = contract.small() or contract.workloads()
            workload = next((w for w in declared if w.axes["rows"] >= 4), declared[-1])
            self._sane[contract.op] = check_task(contract, workload, secrets.randbits(62))
        return self._sane[contract.op]

    def _executor(self, recorded: Recorded, source: KernelSource) -> Executor:
        if self._device is not None:
            return Gpu(self._device, codes_for(recorded.codes, self._device.facts.capability))
        return Interpreter(self._sandboxes.interpreter(), source, INTERPRETER_LIMITS)

    def _trials(
        self, recorded: Recorded, contract: OpContract, workloads: Workloads, executor: Executor, ruling: Ruling,
        thorough: bool,
    ) -> list[Trial]:  # fmt: skip
        """Runs trial groups until one shows a fault; later groups cannot change the verdict."""
        on_device = self._device is not None
        groups = (trial_plan.launched if on_device and thorough else trial_plan.interpreted)(contract, workloads)
        threads = min(os.cpu_count() or 1, MAX_EXAMINERS) if on_device else self._concurrency
        done: list[Trial] = []
        faulted = threading.Event()

        def run(group: tuple[TrialSpec, ...]) -> Examined:
            # The trials of a group share their static tensors, and so what `prepare` makes of them.
            pack = recorded.packs[(group[0].far or group[0]).workload.name]
            try:
                prepared = self._prepare(recorded.candidate, contract, pack, group[0])
            except PrepareFailed as error:
                return examine(contract, [Trial(group[0], "error", str(error), {})])
            trials: list[Trial] = []
            for spec in group:
                if faulted.is_set():
                    break
                trials.append(run_trial(contract, spec, pack, prepared, executor))
                if trials[-1].status != "ok":
                    faulted.set()
            return examine(contract, trials)

        with ThreadPoolExecutor(threads) as pool:
            # A fault costs a device seconds: one is enough, and mostly the first group has it. So there it runs alone.
            for examined in in_order(pool, run, groups, threads, alone=1 if on_device else 0):
                done += examined.trials
                settle(examined, contract, ruling)
                for trial in examined.trials:
                    trial.forget()
                if ruling.stopped:
                    break
        ruling.settle_trials(contract, done, complete=not ruling.stopped)
        if on_device and not ruling.stopped:
            # Each trial captured graphs, whose kernels the device's handle counted (replay/device.py).
            ruling.pass_stage("C8", figures={"trials": len(done)})
        return done

    def _sanitize(
        self, recorded: Recorded, contract: OpContract, workloads: Sequence[Workload], ruling: Ruling
    ) -> None:
        """Runs plans of small workloads under compute-sanitizer's tools."""

        def prepared(pack: KernelPack, spec: TrialSpec) -> dict[str, bytes]:
            return self._prepare(recorded.candidate, contract, pack, spec)

        codes = codes_for(recorded.codes, self._device.facts.capability)
        sanitize(self._device, contract, recorded.packs, codes, workloads, prepared, ruling)

    def _ready_to_time(self, op: str) -> None:
        """Starts what timing needs, once a judge, and lets the stock path's process load `op` while trials run."""
        card = profile_of(self._device.facts.name)
        if self._stopwatch is None and card is not None:
            self._stopwatch = Stopwatch(self.model, self._device, card).__enter__()
        if self._stopwatch is not None:
            self._stopwatch.expect(op)

    def _time(self, recorded: Recorded, contract: OpContract, workloads: Sequence[Workload], ruling: Ruling) -> None:
        """Times the plans of declared workloads on this card, against the stock path."""
        if self._stopwatch is None:
            ruling.why_not_timed = f"there is no hardware profile of {self._device.facts.name}"
            return
        codes = codes_for(recorded.codes, self._device.facts.capability)

        def prepared(pack: KernelPack, spec: TrialSpec) -> dict[str, bytes]:
            return self._prepare(recorded.candidate, contract, pack, spec)

        time_plans(self._stopwatch, contract, recorded.packs, codes, workloads, prepared, ruling)

    def _prepare(self, candidate: Candidate, contract: OpContract, pack: KernelPack, spec: TrialSpec) -> dict[str, bytes]:
        """Runs the candidate's `prepare` apart, on this trial's static tensors alone."""
        if not pack.prepared:
            return {}
        inputs = contract.make_inputs(spec.workload, spec.distribution, spec.seed)
        static = {s.name: inputs[s.name] for s in contract.tensors(spec.workload) if s.role is TensorRole.STATIC}
        return prepare(self._sandboxes.preparer(), candidate, contract, spec.workload, self._hardware, static, pack)


def _named(contract: OpContract, names: Sequence[str]) -> tuple[Workload, ...]:
    """The declared workloads of these names. Raises UserError for an unknown one."""
    declared = {w.name: w for w in (*contract.workloads(), *contract.small())}
    if missing := [name for name in names if name not in declared]:
        raise UserError(f"unknown workload {missing[0]!r} of {contract.op}", f"known: {', '.join(declared)}")
    return tuple(declared[name] for name in names)


@contextmanager
def _timed(ruling: Ruling, stage: str) -> Iterator[None]:
    start = time.monotonic()
    try:
        yield
    finally:
        ruling.seconds[stage] = round(ruling.seconds.get(stage, 0.0) + time.monotonic() - start, 3)
