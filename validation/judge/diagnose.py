"""Which known mistake explains a wrong result: the candidate held against variants of the oracle."""

from collections.abc import Mapping

import torch

from ..contracts.base import OpContract
from .trials import Trial

# A hypothesis is named only when it removes nearly all of the error: a wrong name is worse than none.
EXPLAINS = 0.2


def diagnose(trial: Trial, contract: OpContract, oracle: Mapping[str, torch.Tensor], tensor: str) -> str | None:
    """A plain-English cause of the mismatch in `tensor`, or None when no known mistake explains it."""
    dense = _dense_pages(trial, oracle)
    if dense:
        return dense
    error = _error(trial.produced[tensor], oracle[tensor])
    best: tuple[float, str] | None = None
    for description, variant in contract.hypotheses.items():
        expected = variant(trial.inputs, trial.spec.workload)
        residual = _error(trial.produced[tensor], expected[tensor])
        # The other tensors must not contradict the hypothesis.
        if residual <= EXPLAINS * error and (best is None or residual < best[0]):
            best = (residual, description)
    return best[1] if best else None


def _error(produced: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference; NaN or infinity where only one side has it counts as a large error."""
    a, b = produced.double(), expected.double()
    both = torch.isnan(a) & torch.isnan(b)
    difference = torch.where(both | (a == b), torch.zeros_like(a), a - b).nan_to_num(nan=1e30, posinf=1e30, neginf=1e30)
    return float(difference.square().mean().sqrt())


def _dense_pages(trial: Trial, oracle: Mapping[str, torch.Tensor]) -> str | None:
    """Did the kernel put a page where it would lie if pages were dense?"""
    for name, dense in trial.dense.items():
        before, expected = trial.inputs[name], oracle[name]
        for page in range(1, min(dense.shape[0], expected.shape[0])):
            wanted = expected[page].double()
            if torch.equal(wanted, before[page].double()):
                continue
            scale = float(wanted.square().mean().sqrt())
            at_dense = float((dense[page].double() - wanted).square().mean().sqrt().nan_to_num(nan=1e30))
            in_place = float((trial.produced[name][page].double() - wanted).square().mean().sqrt().nan_to_num(nan=1e30))
            if at_dense < 0.05 * scale and in_place > 0.05 * scale:
                return f"a dense page stride was assumed for {name}: page {page} was found at the dense offset"
    return None
