"""The numerics stage in process: runs what is not there yet, keeps all of it, and judges what is kept."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from ...errors import UserError
from . import long_rung, op_rung
from .cards import CPU, CUDA
from .plan import Material, Settings, Work, works
from .runner import UnitRun
from .scenario import Action, RungName
from .tokens import CANDIDATE, ORACLE, STOCK, Header
from .verdict import LONG, LONG_TP, MANIFEST, OP, VERDICT, StageVerdict, Subject, judge, subject_of, write, write_lines

OP_ROWS = (1, 3)


class Stopped(Exception):
    """The run was stopped from outside; what is kept stays."""


Say = Callable[[str, int, int], None]
"""(unit, actions done, 0 or all of them)"""


class Stage:
    """One run in a directory. `arm` gives a specialised path of a TP, to be entered; None for PyTorch candidates.

    `device`: where all paths but the candidate compute.
    """

    def __init__(
        self, subject: Subject, out: Path, weights: Any, arm: Callable[[int], Any] | None, *, jobs: int = 1,
        device: str = CPU,
    ) -> None:  # fmt: skip
        from ...contracts.kimi_k3.numerics import material
        from ...contracts.kimi_k3.numerics.weights import paths_of

        self.subject, self.settings, self.out = subject, subject.settings, out
        self._paths, self._arm, self._jobs = paths_of(weights, device), arm, jobs
        # A GPU holds the weights of one specialised path beside those of the others.
        self._units = threading.Semaphore(jobs if device == CPU else 1)
        self._material = material
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._idle: dict[int, list[Any]] = {}

    def run(self, say: Say = lambda unit, done, of: None) -> StageVerdict:
        """Everything that is not there yet; then the verdict, which is written beside the records."""
        import torch

        self._say = say

        torch.set_num_threads(1)
        self.out.mkdir(parents=True, exist_ok=True)
        _claim(self.out, self.subject)
        of = Material(
            self._material.streams.stream, self._material.draft_head().propose, self._material.VOCABULARY
        )
        todo: list[Callable[[], None]] = []
        if RungName.LONG_CONTEXT in self.settings.rungs and (self._arm is None or self.settings.device == CUDA):
            todo.append(self._long)
        if RungName.OP in self.settings.rungs:
            todo.append(self._ops)
        todo += [lambda work=work: self._unit(work) for work in works(self.settings, of)]
        with ExitStack() as self._stack, ThreadPoolExecutor(self._jobs) as pool:
            futures = [pool.submit(task) for task in todo]
            try:
                # What fails does not take with it what runs beside it.
                failures = [failure for future in futures if (failure := future.exception())]
            except BaseException:
                # Units that run now end behind the action that they are at: nothing that is written down is lost.
                self._stop.set()
                pool.shutdown(cancel_futures=True, wait=True)
                raise
        if failures:
            raise failures[0]
        verdict = judge(self.out)
        write(self.out / VERDICT, verdict.canonical_json() + "\n")
        return verdict

    @contextmanager
    def _arm_of(self, tp: int) -> Iterator[Any]:
        """A specialised path of this TP that nobody else uses now."""
        with self._lock:
            idle = self._idle.setdefault(tp, [])
            arm = idle.pop() if idle else None
        if arm is None:
            entered = self._arm(tp).__enter__()
            with self._lock:
                self._stack.callback(entered.__exit__, None, None, None)
            arm = entered
        yield arm
        with self._lock:
            self._idle[tp].append(arm)

    def _did(self, unit: str, done: int, of: int = 0) -> None:
        """Says how far a unit is, and ends it where the run was stopped."""
        if self._stop.is_set():
            raise Stopped
        self._say(unit, done, of)

    def _unit(self, work: Work) -> None:
        unit = work.unit
        if (self.out / f"{unit.key}.jsonl.gz").exists():
            return
        with self._units, ExitStack() as stack:
            replicas = {f"again-{n}": self._paths.again(unit.tp, n) for n in range(1, self.settings.replicas + 1)}
            paths = {ORACLE: self._paths.oracle(), STOCK: self._paths.stock(unit.tp), **replicas}
            if self._arm is None:
                name = self.settings.candidate.removeprefix("plain:")
                paths[CANDIDATE] = self._material.plain_candidate(self._paths, name, unit.tp)
            else:
                paths[CANDIDATE] = stack.enter_context(self._arm_of(unit.tp))
                paths[CANDIDATE].buckets = unit.buckets
            header = Header(
                unit=unit.key, rung=unit.rung, tp=unit.tp, subject=self.subject.digest(),
                candidate=self.settings.candidate, replicas=tuple(replicas),
            )  # fmt: skip
            UnitRun(unit, paths, batch, self.out, header, lambda done: self._did(unit.key, done))(work.actions())
        self._say(unit.key, 1, 1)

    def _ops(self) -> None:
        if (self.out / OP).exists():
            return
        exams = []
        with ExitStack() as stack:
            for tp in self.settings.tps:
                run = self._op_runner(stack, tp)
                of = self._paths.architecture
                exams += op_exams(of, tp, self.settings.seed, run, lambda n: self._did("op", n), self._jobs)
        write_lines(self.out / OP, exams)
        self._say("op", 1, 1)

    def _op_runner(self, stack: ExitStack, tp: int) -> op_rung.Run:
        if self._arm is not None:
            # A process of its own, which never loads the model.
            arm = stack.enter_context(self._arm(tp))
            return lambda contract, at, inputs: arm.op(contract.op, at, inputs)
        name = self.settings.candidate.removeprefix("plain:")
        fault = self._material.faults.FAULTS.get(name)

        def run(contract, at, inputs):
            if fault and fault.mistake and fault.op == contract.op:
                return op_rung.mistaken(fault.mistake)(contract, at, inputs)
            return op_rung.plainly(contract, at, inputs)

        return run

    def _long(self) -> None:
        if (self.out / LONG).exists():
            return
        if self._arm is None:
            name = self.settings.candidate.removeprefix("plain:")
            points = long_points(self.settings, self._material.faults.FAULTS.get(name), self._did)
        else:
            with self._arm(self.settings.main_tp) as arm:
                points = long_points_on_gpu(self.settings, arm, self._did)
        write_lines(self.out / LONG, points)
        self._say("long_context", 1, 1)


def op_exams(
    architecture: Any, tp: int, seed: int, run: op_rung.Run, say: Callable[[int], None], jobs: int = 1
) -> list[op_rung.Exam]:
    """Every op of a rank of `tp`, on every distribution, at each of `OP_ROWS`; `jobs` oracles at a time, one candidate."""
    from ...contracts.kimi_k3.numerics import op_exams as exams

    lock, counted = threading.Lock(), count(1)

    def alone(contract: Any, at: Any, inputs: Any) -> Any:
        with lock:
            return run(contract, at, inputs)

    def sit(contract: Any, rows: int, number: int, distribution: str) -> op_rung.Exam:
        at = exams.workload(contract, tp, rows, seed + rows)
        found = op_rung.sit(contract, at, distribution, seed + number, alone)
        say(next(counted))
        return found

    with ThreadPoolExecutor(jobs) as pool:
        futures = [
            pool.submit(sit, contract, rows, number, distribution)
            for contract in exams.contracts(architecture).values() for rows in OP_ROWS
            for number, distribution in enumerate(contract.distributions)
        ]  # fmt: skip
        return [future.result() for future in futures]


def long_points(settings: Settings, fault: Any, say: Say) -> list[long_rung.Point]:
    """State and output by decade of steps, context by position; the candidate is the plain path, or its fault."""
    from ...contracts.kimi_k3.architecture import Architecture
    from ...contracts.kimi_k3.numerics import long_state
    from ...contracts.kimi_k3.numerics.op_exams import contracts
    from ...contracts.kimi_k3.step.precision import PUBLISHED

    of = Architecture.from_config()
    drift = long_state.Drift(of, LONG_TP, settings.seed)
    core = fault.core if fault and fault.core else None
    again = {f"again-{n}": drift.again(n) for n in range(1, settings.replicas + 1)}
    own = drift.path(PUBLISHED, core) if core else drift.again(99)
    paths = {STOCK: drift.plain(), **again, CANDIDATE: own}
    run = long_rung.Stepping(drift.oracle(), paths, long_state.decades(settings.steps))
    points = run(drift.projections(settings.steps), lambda step: say("long_context", step, 0))
    mistake = fault.mistake if fault and fault.op == "mla_core" else None

    def candidate(op: Any, at: Any, inputs: Any) -> Any:
        if mistake:
            return op.hypotheses[mistake](inputs, at)["context"].bfloat16()
        other, values = long_state.reordered(at, inputs, 99)
        return op.plain(values, other)["context"]

    return points + _attended(settings, contracts(of)["mla_core"], candidate)


def long_points_on_gpu(settings: Settings, arm: Any, say: Say) -> list[long_rung.Point]:
    """The same of the kernels in `arm`: what is given to them is drawn on both sides of the pipe."""
    from ...contracts.kimi_k3.architecture import Architecture
    from ...contracts.kimi_k3.numerics import long_state
    from ...contracts.kimi_k3.numerics.op_exams import contracts
    from . import long_gpu

    of = Architecture.from_config()
    drift, marks = long_state.Drift(of, LONG_TP, settings.seed, CUDA), long_state.decades(settings.steps)
    again = {f"again-{n}": drift.again(n) for n in range(1, settings.replicas + 1)}
    paths = {ORACLE: drift.oracle(), STOCK: drift.plain(), **again}
    found = long_gpu.states(drift, paths, settings.steps, marks, lambda step: say("long_context", step, 0))
    own = arm.long_state(settings.seed, LONG_TP, settings.steps, marks)
    points = [point for step in marks for point in long_rung.moved(step, {**found[step], CANDIDATE: own[step]})]

    def candidate(op: Any, at: Any, inputs: Any) -> Any:
        return arm.op("mla_core", at, inputs, true_widths=True)["context"]

    return points + _attended(settings, contracts(of)["mla_core"], candidate)


def _attended(settings: Settings, op: Any, candidate: Callable[[Any, Any, Any], Any]) -> list[long_rung.Point]:
    """Attention over a long context by all paths."""
    from ...contracts.kimi_k3.numerics import long_state

    at, inputs, positions = long_state.needles(op.architecture, LONG_TP, settings.context, settings.seed)
    exact, got = op.oracle(inputs, at)["context"], {STOCK: op.plain(inputs, at)["context"]}
    for number in range(1, settings.replicas + 1):
        # The same tokens in another order: attention without positions has the same result, summed otherwise.
        other, values = long_state.reordered(at, inputs, number)
        got[f"again-{number}"] = op.plain(values, other)["context"]
    got[CANDIDATE] = candidate(op, at, inputs)
    return long_rung.attended(positions, exact, got)


def batch(action: Action) -> Any:
    import torch

    from ...contracts.kimi_k3.step.state import Batch

    return Batch(torch.tensor(action.tokens), action.requests, action.counts)


def _claim(out: Path, subject: Subject) -> None:
    """Marks the directory as this subject's. UserError where it is another one's."""
    file = out / MANIFEST
    if file.exists():
        if (other := subject_of(out)) != subject:
            differing = [name for name, value in subject if getattr(other, name) != value]
            raise UserError(f"{out} holds a run of another subject ({', '.join(differing)} differ)", "give another --out")
        return
    write(file, subject.canonical_json() + "\n")
