"""The numerics stage in process: runs what is not there yet, keeps all of it, and judges what is kept."""

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...records import Frozen, digest_files, sha256
from . import findings, long_rung, op_rung, table, tokens
from .findings import Result, RungVerdict
from .plan import Material, Settings, Work, works
from .runner import UnitRun
from .scenario import Action, RungName
from .tokens import CANDIDATE, ORACLE, STOCK, Header

MANIFEST, VERDICT = "run.json", "verdict.json"
OP, LONG = "op.jsonl.gz", "long.jsonl.gz"
OP_ROWS = (1, 3)
NO_LONG = "a million decode steps of the kernels need a GPU; an interpreter does a few a second"
STOPPED = "the run was stopped before: the same command goes on"


class NotRun(Frozen):
    """A rung that did not run, and why."""

    rung: str
    tp: int
    reason: str


class Subject(Frozen):
    """What the records are about."""

    model: str
    checkpoint: str
    """Digest of its files"""
    candidate: str
    """Digest of the candidate's sources: of the model directory, or of the PyTorch paths"""
    harness: str
    """Digest of what runs and judges"""
    settings: Settings


class StageVerdict(Frozen):
    """The verdict of the whole stage: a function of the records alone."""

    subject: Subject
    result: Result
    rungs: tuple[RungVerdict, ...]
    not_run: tuple[NotRun, ...]
    evidence: dict[str, str]
    """File -> SHA-256"""


class Stopped(Exception):
    """The run was stopped from outside; what is kept stays."""


Say = Callable[[str, int, int], None]
"""(unit, actions done, 0 or all of them)"""


class Stage:
    """One run in a directory. `arm` gives a specialised path of a TP, to be entered; None for PyTorch candidates."""

    def __init__(
        self, subject: Subject, out: Path, checkpoint: Path, arm: Callable[[int], Any] | None, *, jobs: int = 1,
    ) -> None:  # fmt: skip
        from ...contracts.kimi_k3.numerics import material
        from ...contracts.kimi_k3.numerics.paths import Paths

        self.subject, self.settings, self.out = subject, subject.settings, out
        self._paths, self._arm, self._jobs = Paths(checkpoint), arm, jobs
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
        todo: list[Callable[[], None]] = [lambda work=work: self._unit(work) for work in works(self.settings, of)]
        if RungName.OP in self.settings.rungs:
            todo.append(self._ops)
        if RungName.LONG_CONTEXT in self.settings.rungs and self._arm is None:
            todo.append(self._long)
        with ExitStack() as self._stack, ThreadPoolExecutor(self._jobs) as pool:
            futures = [pool.submit(task) for task in todo]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                # Units that run now end behind the action that they are at: nothing that is written down is lost.
                self._stop.set()
                pool.shutdown(cancel_futures=True, wait=True)
                raise
        verdict = judge(self.out)
        _write(self.out / VERDICT, verdict.canonical_json() + "\n")
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
        with ExitStack() as stack:
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
                exams += op_exams(self._paths.architecture, tp, self.settings.seed, run, lambda n: self._did("op", n))
        _lines(self.out / OP, exams)
        self._say("op", 1, 1)

    def _op_runner(self, stack: ExitStack, tp: int) -> op_rung.Run:
        if self._arm is not None:
            arm = stack.enter_context(self._arm_of(tp))
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
        name = self.settings.candidate.removeprefix("plain:")
        _lines(self.out / LONG, long_points(self.settings, self._material.faults.FAULTS.get(name), self._did))
        self._say("long_context", 1, 1)


def op_exams(architecture: Any, tp: int, seed: int, run: op_rung.Run, say: Callable[[int], None]) -> list[op_rung.Exam]:
    """Every op of a rank of `tp`, on every distribution, at each of `OP_ROWS`."""
    from ...contracts.kimi_k3.numerics import op_exams as exams

    found = []
    for contract in exams.contracts(architecture).values():
        for rows in OP_ROWS:
            at = exams.workload(contract, tp, rows, seed + rows)
            for number, distribution in enumerate(contract.distributions):
                found.append(op_rung.sit(contract, at, distribution, seed + number, run))
                say(len(found))
    return found


LONG_TP = 48
"""Ranks of the group whose one rank the long rung looks at: two heads of true shape"""


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
    op = contracts(of)["mla_core"]
    mistake = fault.mistake if fault and fault.op == "mla_core" else None
    at, inputs, positions = long_state.needles(of, LONG_TP, settings.context, settings.seed)
    exact = op.oracle(inputs, at)["context"]
    got = {STOCK: op.plain(inputs, at)["context"]}
    for number in range(1, settings.replicas + 1):
        # The same tokens in another order: attention without positions has the same result, summed otherwise.
        other, values = long_state.reordered(at, inputs, number)
        got[f"again-{number}"] = op.plain(values, other)["context"]
    if mistake:
        got[CANDIDATE] = op.hypotheses[mistake](inputs, at)["context"].bfloat16()
    else:
        other, values = long_state.reordered(at, inputs, 99)
        got[CANDIDATE] = op.plain(values, other)["context"]
    return points + long_rung.attended(positions, exact, got)


def judge(out: Path) -> StageVerdict:
    """The verdict of what lies in `out`, computed anew from the records."""
    subject = subject_of(out)
    groups: dict[tuple[str, int], list[tokens.UnitRecords]] = {}
    for file in tokens.units(out):
        if file.name in (OP, LONG):
            continue
        records = tokens.read(file)
        if records.header.subject != subject.digest():
            raise UserError(f"{file} is about another subject than {out / MANIFEST}", "give each run a directory of its own")
        groups.setdefault((records.header.rung, records.header.tp), []).append(records)
    verdicts: list[RungVerdict] = []
    if (out / OP).exists():
        exams = [op_rung.Exam.model_validate(item) for item in _read_lines(out / OP)]
        for tp in sorted({exam.tp for exam in exams}):
            verdicts.append(op_rung.judged([exam for exam in exams if exam.tp == tp]))
    verdicts += [findings.judged(units) for _, units in sorted(groups.items(), key=lambda item: _order(*item[0]))]
    if (out / LONG).exists():
        points = [long_rung.Point.model_validate(item) for item in _read_lines(out / LONG)]
        verdicts.append(long_rung.judged(points, LONG_TP))
    not_run = tuple(_missing(subject, verdicts))
    results = {verdict.result for verdict in verdicts}
    if Result.FAIL in results:
        result = Result.FAIL
    elif Result.INCONCLUSIVE in results or not_run or not verdicts:
        result = Result.INCONCLUSIVE
    else:
        result = Result.PASS
    evidence = {file.name: sha256(file.read_bytes()) for file in tokens.units(out)}
    return StageVerdict(subject=subject, result=result, rungs=tuple(verdicts), not_run=not_run, evidence=evidence)


class Worst(Frozen):
    """A token with what stood before it."""

    rung: str
    unit: str
    position: int
    change: float
    """Of the log-prob of the token that follows, candidate against oracle"""
    noise: float
    """The largest of the same of the stock path and its repetitions"""
    margin: float
    context: str
    follows: str
    oracle: str
    candidate: str


def worst(out: Path, count: int = 5) -> list[Worst]:
    """The tokens whose log-prob the candidate changes most, beside what the noise does there."""
    from ...contracts.kimi_k3.nano.tokenizer import SYMBOLS

    found = []
    for file in tokens.units(out):
        if file.name in (OP, LONG):
            continue
        records = tokens.read(file)
        of = table.table([records])
        before: dict[int, list[int]] = {}
        contexts = []
        for token in of.tokens:
            line = before.setdefault(token.request, [])
            line.append(token.token)
            contexts.append(tuple(line[-12:]))
        change = of.change(CANDIDATE)
        for row in change.argsort()[::-1][:count]:
            symbol = lambda number: SYMBOLS[number] if number < len(SYMBOLS) else f"<{number}>"  # noqa: E731
            found.append(Worst(
                rung=records.header.rung, unit=records.header.unit, position=of.tokens[row].position,
                change=float(min(change[row], 1e30)), noise=float(max(of.change(path)[row] for path in of.noise)),
                margin=float(of.margin[row]), context="".join(map(symbol, contexts[row])),
                follows=symbol(of.tokens[row].target), oracle=symbol(of.top[ORACLE][row]),
                candidate=symbol(of.top[CANDIDATE][row]),
            ))  # fmt: skip
    return sorted(found, key=lambda one: -one.change)[:count]


def harness_digest() -> str:
    """SHA-256 (hex) over what runs the ladder and judges it."""
    root = Path(__file__).parents[2]
    folders = ("numerics", "contracts/kimi_k3/numerics", "contracts/kimi_k3/step", "contracts/kimi_k3/kda_decode")
    files = [path for folder in folders for path in (root / folder).rglob("*.py")]
    return digest_files({path.relative_to(root).as_posix(): path.read_bytes() for path in files})


def directory_digest(directory: Path) -> str:
    """SHA-256 (hex) over the sources of a model directory: all but what reports on them."""
    kinds = (".py", ".toml", ".cu", ".cuh")
    files = [path for path in directory.rglob("*") if path.suffix in kinds and path.is_file()]
    return digest_files({
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in files if path.relative_to(directory).parts[0] not in ("evidence", "report")
    })  # fmt: skip


def subject_of(out: Path) -> Subject:
    """What the records in `out` are about. UserError where there are none."""
    try:
        return Subject.model_validate_json((out / MANIFEST).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{out} holds no run of the numerics stage", "name the --out of one") from error


def _missing(subject: Subject, verdicts: list[RungVerdict]) -> Iterator[NotRun]:
    ran = {(verdict.rung, verdict.tp) for verdict in verdicts}
    for rung in RungName:
        if rung not in subject.settings.rungs:
            yield NotRun(rung=rung, tp=0, reason="not asked for")
        elif rung is RungName.LONG_CONTEXT:
            if not any(name == rung for name, _ in ran):
                yield NotRun(
                    rung=rung, tp=0,
                    reason=NO_LONG if subject.settings.candidate == "specialised" else STOPPED,
                )  # fmt: skip
        else:
            for tp in subject.settings.tps if rung is not RungName.GREEDY else (1,):
                if (rung, tp) not in ran:
                    yield NotRun(rung=rung, tp=tp, reason=STOPPED)


def _order(rung: str, tp: int) -> tuple[int, int]:
    return list(RungName).index(RungName(rung)), tp


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
    _write(file, subject.canonical_json() + "\n")


def _lines(file: Path, records: list[Frozen]) -> None:
    text = "".join(f"{record.canonical_json()}\n" for record in records)
    _write_bytes(file, gzip.compress(text.encode(), 9, mtime=0))


def _read_lines(file: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def _write(file: Path, text: str) -> None:
    _write_bytes(file, text.encode())


def _write_bytes(file: Path, data: bytes) -> None:
    temporary = file.with_name(file.name + ".new")
    temporary.write_bytes(data)
    os.replace(temporary, file)


__all__ = ["NotRun", "Settings", "Stage", "StageVerdict", "Subject", "judge", "subject_of"]
