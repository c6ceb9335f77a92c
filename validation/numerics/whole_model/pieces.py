"""The pieces of a run, one at a time, each kept in files of its own: a unit, all ops, what is long. Runs in a process of its own.

What is kept already is not run again.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from ...contracts.kimi_k3.numerics.weights import WeightsOf
from ...records import Frozen
from . import long_attention, long_rung, op_rung
from .cards import CUDA
from .plan import Material, Settings, Work, works
from .runner import UnitRun
from .scenario import Action
from .tokens import CANDIDATE, ORACLE, STOCK, Header
from .verdict import LONG, LONG_TP, OP, Subject, write_lines

OP_ROWS = (1, 3)
OPS, LONG_PIECE = "op", "long_context"
"""Names of the pieces that are no units"""
Say = Callable[[str, int, int], None]
"""(piece, actions done, 0 or all of them)"""


class Job(Frozen):
    """What all pieces of a run are about."""

    subject: Subject
    out: Path
    weights: WeightsOf
    device: str
    """Where all paths but the candidate compute"""
    contract: str
    directory: Path
    """Of the model, whose decode path is the candidate"""
    threads: int = 1
    """Oracles of ops at a time"""


class Pieces:
    """Carries out pieces of a job. A context manager: specialised paths live as long as it."""

    def __init__(self, job: Job) -> None:
        from ...contracts.kimi_k3.numerics import material
        from ...contracts.kimi_k3.numerics.weights import paths_of

        self._job, self._settings, self._material = job, job.subject.settings, material
        self._paths = paths_of(job.weights, job.device)
        self._specialised = self._settings.candidate == "specialised"
        self._arms: dict[int, Any] = {}
        self._works = {work.unit.key: work for work in works(self._settings, plan_material())}

    def __enter__(self) -> "Pieces":
        self._stack = ExitStack().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def run(self, name: str, say: Say = lambda piece, done, of: None) -> None:
        """The piece called `name`: a unit's key, `OPS` or `LONG_PIECE`. `say` may end it by raising."""
        if name == OPS:
            self._ops(say)
        elif name == LONG_PIECE:
            self._long(say)
        else:
            self._unit(self._works[name], say)
        say(name, 1, 1)

    def _arm(self, tp: int) -> Any:
        from .specialised import Specialised

        return Specialised(self._job.contract, self._job.directory, self._job.weights, tp, self._settings.device)

    def _unit(self, work: Work, say: Say) -> None:
        unit, settings, out = work.unit, self._settings, self._job.out
        if (out / f"{unit.key}.jsonl.gz").exists():
            return
        replicas = {f"again-{n}": self._paths.again(unit.tp, n) for n in range(1, settings.replicas + 1)}
        paths = {ORACLE: self._paths.oracle(), STOCK: self._paths.stock(unit.tp), **replicas}
        if self._specialised:
            if unit.tp not in self._arms:
                self._arms[unit.tp] = self._stack.enter_context(self._arm(unit.tp))
            paths[CANDIDATE] = self._arms[unit.tp]
            paths[CANDIDATE].buckets = unit.buckets
        else:
            name = settings.candidate.removeprefix("plain:")
            paths[CANDIDATE] = self._material.plain_candidate(self._paths, name, unit.tp)
        header = Header(
            unit=unit.key, rung=unit.rung, tp=unit.tp, subject=self._job.subject.digest(), candidate=settings.candidate,
            replicas=tuple(replicas),
        )  # fmt: skip
        UnitRun(unit, paths, batch, out, header, lambda done: say(unit.key, done, 0))(work.actions())

    def _ops(self, say: Say) -> None:
        if (self._job.out / OP).exists():
            return
        exams = []
        for tp in self._settings.tps:
            with ExitStack() as stack:
                run = self._op_runner(stack, tp)
                of, seed = self._paths.architecture, self._settings.seed
                exams += op_exams(of, tp, seed, run, lambda n: say(OPS, n, 0), self._job.threads)
        write_lines(self._job.out / OP, exams, self._job.subject)

    def _op_runner(self, stack: ExitStack, tp: int) -> op_rung.Run:
        if self._specialised:
            # A process of its own, which never loads the model.
            arm = stack.enter_context(self._arm(tp))
            return lambda contract, at, inputs: arm.op(contract.op, at, inputs)
        fault = self._fault()

        def run(contract, at, inputs):
            if fault and fault.mistake and fault.op == contract.op:
                return op_rung.mistaken(fault.mistake)(contract, at, inputs)
            return op_rung.plainly(contract, at, inputs)

        return run

    def _long(self, say: Say) -> None:
        if (self._job.out / LONG).exists():
            return
        if self._specialised:
            with self._arm(self._settings.main_tp) as arm:
                points = long_points_on_gpu(self._settings, arm, say)
        else:
            points = long_points(self._settings, self._fault(), say)
        write_lines(self._job.out / LONG, points, self._job.subject)

    def _fault(self) -> Any:
        return self._material.faults.FAULTS.get(self._settings.candidate.removeprefix("plain:"))


def plan_material() -> Material:
    """What units are made from."""
    from ...contracts.kimi_k3.numerics import material

    return Material(material.streams.stream, material.draft_head().propose, material.VOCABULARY)


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
    """Attention over long contexts by all paths."""
    return [
        point for context in settings.contexts
        for point in _attended_to(settings, context, op, candidate, f"context of {context}" if len(settings.contexts) > 1 else "context")
    ]  # fmt: skip


def _attended_to(
    settings: Settings, context: int, op: Any, candidate: Callable[[Any, Any, Any], Any], what: str
) -> list[long_rung.Point]:  # fmt: skip
    from ...contracts.kimi_k3.numerics import long_state

    got = long_attention.contexts(LONG_TP, context, settings.seed, settings.replicas)
    at, inputs, positions = long_state.needles(op.architecture, LONG_TP, context, settings.seed)
    got[CANDIDATE] = candidate(op, at, inputs)
    return long_rung.attended(positions, got.pop(ORACLE), got, what)


def batch(action: Action) -> Any:
    import torch

    from ...contracts.kimi_k3.step.state import Batch

    return Batch(torch.tensor(action.tokens), action.requests, action.counts)
