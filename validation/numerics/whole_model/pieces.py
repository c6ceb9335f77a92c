"""The pieces of a run, one at a time, each kept in files of its own: a unit, all ops, what is long. Runs in a process of its own.

What is kept already is not run again.
"""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...contracts.kimi_k3.numerics.weights import WeightsOf
from ...records import Frozen
from . import long_sections, op_rung
from .lines import Lines
from .plan import Material, Work, works
from .runner import UnitRun
from .scenario import Action
from .tokens import CANDIDATE, ORACLE, STOCK, Header
from .verdict import LONG, OP, Subject, write_lines

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
        of, settings = self._paths.architecture, self._settings
        with self._growing(OP, op_rung.Exam) as kept:
            for tp in settings.tps:
                with ExitStack() as stack:
                    run = self._op_runner(stack, tp)
                    op_rung.exams(of, tp, settings.seed, run, lambda n: say(OPS, n, 0), self._job.threads, kept)
            exams = {exam.key: exam for exam in map(op_rung.Exam.model_validate_json, kept.lines)}
        in_order = [exams[key] for key in op_rung.keys(of, settings.tps)]
        write_lines(self._job.out / OP, in_order, self._job.subject)
        kept.file.unlink(missing_ok=True)

    def _growing(self, name: str, record: type[Frozen]) -> Lines:
        """What becomes the file `name`, as far as it is there."""
        return Lines((self._job.out / name).with_suffix(""), self._job.subject.digest(), record)

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
        out, settings = self._job.out, self._settings
        if (out / LONG).exists():
            return
        states = out / "long.states"
        with ExitStack() as stack:
            if self._specialised:
                arm = stack.enter_context(self._arm(settings.main_tp))
                sections = long_sections.on_a_gpu(settings, arm, lambda step: say(LONG_PIECE, step, 0), states)
            else:
                sections = long_sections.plain(settings, self._fault(), lambda step: say(LONG_PIECE, step, 0), states)
            kept = stack.enter_context(self._growing(LONG, long_sections.Section))
            points = long_sections.kept_or_computed(sections, kept)
        write_lines(out / LONG, points, self._job.subject)
        kept.file.unlink(missing_ok=True)
        shutil.rmtree(states, ignore_errors=True)

    def _fault(self) -> Any:
        return self._material.faults.FAULTS.get(self._settings.candidate.removeprefix("plain:"))


def plan_material() -> Material:
    """What units are made from."""
    from ...contracts.kimi_k3.numerics import material

    return Material(material.streams.stream, material.draft_head().propose, material.VOCABULARY)


def batch(action: Action) -> Any:
    import torch

    from ...contracts.kimi_k3.step.state import Batch

    return Batch(torch.tensor(action.tokens), action.requests, action.counts)
