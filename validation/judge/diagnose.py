"""Which known mistake explains a wrong result: the candidate held against variants of the oracle."""

from collections.abc import Mapping

import torch

from ..contracts.base import Comparison, OpContract
from ..numerics.errors import relative, same_bits
from .trials import Trial

# A hypothesis is named only when it accounts for nearly every wrong element and adds hardly any: a wrong name is worse
# than none.
EXPLAINS = 0.1
# An element is wrong when it errs by more than this many times the plain path's largest error in its tensor.
NOISE = 4.0


def diagnose(trial: Trial, contract: OpContract, oracle: Mapping[str, torch.Tensor]) -> str | None:
    """A plain-English cause of what is wrong with a trial, or None when no known mistake accounts for it.

    All produced tensors count together: a mistake that explains one of them must not contradict another.
    """
    dense = _dense_pages(trial, contract, oracle)
    if dense:
        return dense
    plain = contract.plain(trial.inputs, trial.spec.workload)
    limits = {c.tensor: _limit(c, oracle[c.tensor], plain[c.tensor]) for c in contract.comparisons}
    counts = _wrong(trial, contract, oracle, limits)
    wrong = sum(counts.values())
    if not wrong:
        return None  # within the noise of single elements: nothing to tell mistakes apart by
    best: tuple[int, str] | None = None
    for description, variant in contract.hypotheses.items():
        left = sum(_wrong(trial, contract, variant(trial.inputs, trial.spec.workload), limits).values())
        if left <= EXPLAINS * wrong and (best is None or left < best[0]):
            best = (left, description)
    if best:
        return f"explained by: {best[1]}"
    where = contract.localise(frozenset(name for name, count in counts.items() if count))
    return f"no known mistake explains it; {where}" if where else None


def _limit(comparison: Comparison, oracle: torch.Tensor, plain: torch.Tensor) -> float:
    if comparison.kind == "exact":
        return 0.0
    errors = relative(oracle.double(), plain, comparison.row_axes)
    largest = float(errors[errors.isfinite()].max()) if errors.numel() else 0.0
    return NOISE * max(largest, comparison.floor)


def _wrong(
    trial: Trial, contract: OpContract, expected: Mapping[str, torch.Tensor], limits: Mapping[str, float]
) -> dict[str, int]:
    """How many elements of each produced tensor err by more than noise against `expected`."""
    return {
        c.tensor: int((relative(expected[c.tensor].double(), trial.produced[c.tensor], c.row_axes) > limits[c.tensor]).sum())
        for c in contract.comparisons
    }


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
            return f"explained by: a dense page stride was assumed for {name}: page {pages[0]} was updated at the dense offset"
    return None


def _matching(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Fraction of elements within 1 % of each other, or both not finite."""
    a, b = got.double(), expected.double()
    close = (a - b).abs() <= 0.01 * b.abs()
    return float((close | (~a.isfinite() & ~b.isfinite())).double().mean())
