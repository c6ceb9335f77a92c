"""The first rung: every op against its float64 oracle, on all the distributions of its contract."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from ...contracts.base import OpContract, Workload
from ...records import Frozen
from ...tensors import torch_dtype
from ..calibrate import Decision, Measurement, Ruling, decide, measure
from .checks import Check, Result, RungVerdict, Where

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
    rulings: tuple[Ruling, ...]


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
    rulings = [decide(comparison, found[comparison.tensor]) for comparison in contract.comparisons]
    return Exam(
        op=contract.op, tp=at.axes["tp"], rows=at.axes["rows"], distribution=distribution, workload=at.name,
        rulings=tuple(rulings),
    )  # fmt: skip


def _enough(trials: Sequence[Measurement]) -> bool:
    """Whether the medians stand: errors of a few values differ by a half between equal paths. Exact ones have none."""
    values = sum(len(trial.errors) for trial in trials)
    return values == 0 or values >= _VALUES


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
        row = next((at.row for at in ruling.worst), None)
        yield Check(
            name=name, band="all", result=Result.FAIL if fail else Result.PASS, values=own.values if own else 0,
            candidate=own.median if own else 0.0, noise=plain.median if plain else 0.0,
            limit=1.25 * plain.median if plain else 0.0, message=f"{exam.op}, {exam.distribution}: {ruling.message}" if fail else "",
            where=Where(unit=exam.op, pool=ruling.tensor, request=row) if fail else None,
        )  # fmt: skip
