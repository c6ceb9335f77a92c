"""The first rung: every op against its float64 oracle, on all the distributions of its contract."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from torch import Tensor

from ...contracts.base import OpContract, Workload
from ...records import Frozen
from ...tensors import torch_dtype
from ..calibrate import Decision, Measurement, Ruling, decide, measure
from ..errors import Location
from .checks import Check, Result, RungVerdict, Where
from .lines import Lines

OP_ROWS = (1, 3)
_VALUES, _TRIALS, _APART = 1000, 16, 1_000_003
"""Values that the medians of a comparison are taken of at least; trials at most, and how far apart their seeds are"""
Run = Callable[[OpContract, Workload, Mapping[str, Tensor]], Mapping[str, Tensor]]
"""What a candidate makes of an exam's inputs: every tensor that the op produces"""


class Exam(Frozen):
    """One op on one workload and distribution."""

    op: str
    tp: int
    rows: int
    distribution: str
    workload: str
    layers: tuple[int, ...] = ()
    """Those that run the op"""
    rulings: tuple[Ruling, ...]

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What tells it from the other exams of a run."""
        return self.op, self.tp, self.rows, self.distribution


def sit(contract: OpContract, at: Workload, distribution: str, seed: int, run: Run) -> Exam:
    """Draws, computes oracle and plain path, runs the candidate, rules; again where a trial has few values."""
    types = {spec.name: torch_dtype(spec.dtype) for spec in contract.tensors(at)}
    found: dict[str, list[Measurement]] = {comparison.tensor: [] for comparison in contract.comparisons}
    for trial in range(_TRIALS):
        inputs = contract.make_inputs(at, distribution, seed + _APART * trial)
        expected, plain = contract.oracle(inputs, at), contract.plain(inputs, at)
        got = run(contract, at, {name: tensor.clone() for name, tensor in inputs.items()})
        for comparison in contract.comparisons:
            name = comparison.tensor
            value = got[name].to(types[name])
            rest = (0,) * (value.dim() - 1)
            owners = [contract.row_of(name, (index, *rest), inputs) for index in range(len(value))]
            found[name].append(measure(comparison, expected[name], plain[name], value, owners))
        if all(_enough(trials) for trials in found.values()):
            break
    from ...contracts.kimi_k3.numerics import op_exams

    rulings = [decide(comparison, found[comparison.tensor]) for comparison in contract.comparisons]
    return Exam(
        op=contract.op, tp=at.axes["tp"], rows=at.axes["rows"], distribution=distribution, workload=at.name,
        layers=op_exams.layers(contract), rulings=tuple(rulings),
    )  # fmt: skip


def _enough(trials: Sequence[Measurement]) -> bool:
    """Whether the medians stand: errors of a few values differ by a half between equal paths. Exact ones have none."""
    values = sum(len(trial.errors) for trial in trials)
    return values == 0 or values >= _VALUES


def exams(
    architecture: Any, tp: int, seed: int, run: Run, say: Callable[[int], None], jobs: int = 1,
    kept: Lines | None = None,
) -> list[Exam]:
    """Every op of a rank of `tp`, on every distribution, at each of `OP_ROWS`; `jobs` oracles at a time, one candidate.

    `kept` grows by each exam; those that are in it already are left out of the list.
    """
    from ...contracts.kimi_k3.numerics import op_exams

    lock, done = threading.Lock(), {Exam.model_validate_json(line).key for line in kept.lines} if kept else set()
    counted = count(1 + len(done))

    def alone(contract: Any, at: Any, inputs: Any) -> Any:
        with lock:
            return run(contract, at, inputs)

    def sat(contract: OpContract, rows: int, distribution: str) -> Exam:
        at = op_exams.workload(contract, tp, rows, seed + rows)
        found = sit(contract, at, distribution, seed + list(contract.distributions).index(distribution), alone)
        with lock:
            if kept is not None:
                kept.append(found.canonical_json())
            say(next(counted))
        return found

    contracts = op_exams.contracts(architecture)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [
            pool.submit(sat, contracts[op], rows, distribution)
            for op, _, rows, distribution in keys(architecture, (tp,)) if (op, tp, rows, distribution) not in done
        ]  # fmt: skip
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def keys(architecture: Any, tps: Sequence[int]) -> list[tuple[str, int, int, str]]:
    """`Exam.key` of every exam, in the order of the records."""
    from ...contracts.kimi_k3.numerics.op_exams import contracts

    return [
        (contract.op, tp, rows, distribution)
        for tp in tps for contract in contracts(architecture).values() for rows in OP_ROWS
        for distribution in contract.distributions
    ]  # fmt: skip


def mistaken(description: str) -> Run:
    """A candidate that makes a known mistake of the contract."""

    def run(contract: OpContract, at: Workload, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return contract.hypotheses[description](inputs, at)

    return run


def plainly(contract: OpContract, at: Workload, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The plain path itself as the candidate."""
    return contract.plain(inputs, at)


def judged(exams: Sequence[Exam]) -> RungVerdict:
    """The verdict: one check an exam, at its worst tensor."""
    checks = [check for exam in exams for check in _checks(exam)]
    failed = [check for check in checks if check.result is Result.FAIL]
    result = Result.FAIL if failed else Result.PASS
    return RungVerdict(
        rung="op", tp=exams[0].tp, result=result, tokens=0, checks=tuple(checks),
        first=failed[0].where if failed else None, text=failed[0].message if failed else "every op within its tolerance",
    )  # fmt: skip


def _checks(exam: Exam) -> Iterable[Check]:
    for ruling in exam.rulings:
        own, plain = ruling.candidate, ruling.plain
        fail = ruling.decision is not Decision.PASS
        name = f"{exam.op} tp{exam.tp} rows {exam.rows} {exam.distribution}: {ruling.tensor}"
        worst = next(iter(ruling.worst), None)
        yield Check(
            name=name, band="all", result=Result.FAIL if fail else Result.PASS, values=own.values if own else 0,
            candidate=own.median if own else 0.0, noise=plain.median if plain else 0.0,
            limit=1.25 * plain.median if plain else 0.0, message=f"{exam.op} ({_among(exam.layers)}), {exam.distribution}: {ruling.message}" if fail else "",
            where=_where(exam, ruling.tensor, worst) if fail else None,
        )  # fmt: skip


def _where(exam: Exam, tensor: str, worst: Location | None) -> Where:
    """Every layer that runs the op has the mistake: the first one. An exam's rows are tokens at places of their own."""
    return Where(
        unit=exam.op, layer=exam.layers[0] if exam.layers else None, pool=tensor,
        position=worst.index[0] if worst else None, request=worst.row if worst else None,
    )  # fmt: skip


def _among(layers: Sequence[int]) -> str:
    """Numbers in short: layers 1 to 3, 5."""
    runs: list[list[int]] = []
    for number in layers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"layers {said}" if layers else "behind all layers"
