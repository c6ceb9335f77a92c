"""C12, task sanity: would this exam notice an answer that is no answer? Run before any candidate is ruled on."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from ..contracts.base import OpContract, TensorRole, Workload
from ..numerics.calibrate import Decision, decide, measure
from .verdict import CheckResult, Outcome

# Each oracle of a part at true shapes takes a second, and there is one for every tensor.
_THREADS = 8
_REDRAWS = 4
TITLE = "Task sanity: trivial answers fail, every input matters, the plain path passes"


def check_task(contract: OpContract, workload: Workload, seed: int) -> CheckResult:
    """Holds trivial answers and the plain path against the exam at `workload`.

    The plain path must pass; zeros, ones, the poison, untouched state and another input's answer must each fail; a
    redraw of any input, weight or state must change the oracle. A failure makes verdicts *invalid*: the exam is at
    fault, not the candidate.
    """
    distribution = next(iter(contract.distributions))
    inputs = contract.make_inputs(workload, distribution, seed)
    other = contract.make_inputs(workload, distribution, seed + 1)
    oracle, plain = contract.oracle(inputs, workload), contract.plain(inputs, workload)
    problems = []
    if not _passes(contract, inputs, plain, plain, oracle):
        problems.append("the plain path itself fails its comparison with the oracle")
    for name, answer in _trivial_answers(contract, workload, inputs, other, plain).items():
        if _passes(contract, inputs, answer, plain, oracle):
            problems.append(f"{name} would pass")
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        draw = lambda number: contract.make_inputs(workload, distribution, seed + number)  # noqa: E731
        influence = pool.map(lambda name: _influences(contract, workload, inputs, draw, oracle, name), inputs)
    problems += [f"{name} influences no result" for name, found in zip(inputs, influence, strict=True) if not found]
    return CheckResult(
        check="C12", title=TITLE, outcome=Outcome.INVALID if problems else Outcome.PASS,
        reason="task.insane" if problems else None, message="; ".join(problems),
    )  # fmt: skip


def _trivial_answers(contract, workload, inputs, other, plain) -> dict[str, Mapping[str, torch.Tensor]]:
    states = {s.name for s in contract.tensors(workload) if s.role is TensorRole.STATE}
    outputs = [name for name in contract.produced if name not in states]
    answers = {"another input's answer": contract.plain(other, workload)}
    if states:
        answers["state left as it was"] = {**plain, **{name: inputs[name] for name in states}}
    for name in outputs:
        noise = torch.randn(plain[name].shape, generator=torch.Generator().manual_seed(0)).to(plain[name].dtype)
        answers[f"zeros as {name}"] = {**plain, name: torch.zeros_like(plain[name])}
        answers[f"ones as {name}"] = {**plain, name: torch.ones_like(plain[name])}
        answers[f"noise as {name}"] = {**plain, name: noise}
        for given, value in inputs.items():
            if value.shape == plain[name].shape and value.is_floating_point():
                answers[f"input {given} as {name}"] = {**plain, name: value.to(plain[name].dtype)}
    return answers


def _passes(contract: OpContract, inputs, answer, plain, oracle) -> bool:
    for comparison in contract.comparisons:
        name = comparison.tensor
        rest = (0,) * (plain[name].dim() - 1)
        owners = [contract.row_of(name, (index, *rest), inputs) for index in range(len(plain[name]))]
        measured = measure(comparison, oracle[name], plain[name], answer[name], owners)
        if decide(comparison, [measured]).decision is not Decision.PASS:
            return False
    return True


def _influences(contract, workload, inputs, draw, oracle, name: str) -> bool:
    """Whether one of a few redraws moves a result: what has few values, slots of a small pool, may be drawn alike."""
    for number in range(1, _REDRAWS + 1):
        changed = contract.oracle({**inputs, name: draw(number)[name]}, workload)
        if any(
            not torch.equal(changed[tensor].double().nan_to_num(), oracle[tensor].double().nan_to_num())
            for tensor in contract.produced
        ):
            return True
    return False
