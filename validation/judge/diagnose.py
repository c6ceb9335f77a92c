"""Which known mistake explains a wrong result: the candidate held against variants of the oracle."""

from collections.abc import Mapping

import torch

from ..contracts.base import OpContract
from ..numerics.errors import same_bits
from .trials import Trial

# A hypothesis is named only when it removes nearly all of the error: a wrong name is worse than none.
EXPLAINS = 0.2


def diagnose(trial: Trial, contract: OpContract, oracle: Mapping[str, torch.Tensor], tensor: str) -> str | None:
    """A plain-English cause of the mismatch in `tensor`, or None when no known mistake explains it."""
    dense = _dense_pages(trial, contract, oracle)
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


def _dense_pages(trial: Trial, contract: OpContract, oracle: Mapping[str, torch.Tensor]) -> str | None:
    """Did the kernel read and write pages where they would lie if they were dense?

    The oracle is asked what such a kernel would leave there, starting from what it found there.
    """
    for name, (before, after) in trial.dense.items():
        expected = contract.oracle({**trial.inputs, name: before}, trial.spec.workload)[name]
        updated = (~same_bits(trial.inputs[name].double(), oracle[name].double())).flatten(1).any(1)
        if not updated.any() or _matching(trial.produced[name][updated], oracle[name][updated]) > 0.5:
            continue
        if _matching(after[updated], expected[updated]) > 0.9:
            pages = updated.nonzero().flatten().tolist()
            return f"a dense page stride was assumed for {name}: page {pages[0]} was updated at the dense offset"
    return None


def _matching(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Fraction of elements within 1 % of each other, or both not finite."""
    a, b = got.double(), expected.double()
    close = (a - b).abs() <= 0.01 * b.abs()
    return float((close | (~a.isfinite() & ~b.isfinite())).double().mean())
