"""The decision between a candidate and the plain path, both held against the float64 oracle.

A tolerance is calibrated, not chosen: the candidate may err by a small factor more than the plain path errs on the
same inputs. Calls of `measure` (one a trial) are pooled by `decide`; trials of one workload and one distribution
belong together, because errors of different distributions differ in scale.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from ..contracts.base import Comparison
from ..records import Frozen
from .errors import Location, Summary, relative, same_bits, summary

# With fewer pooled values p99.9 hangs on a handful of them; the median and the maximum still decide.
MIN_POOLED = 100_000

_WORST = 3


class Decision(StrEnum):
    """`invalid` means that the oracle or the plain path is at fault: nothing follows for the candidate."""

    PASS = "pass"
    FAIL = "fail"
    INVALID = "invalid"


class Ruling(Frozen):
    """What came of one comparison, with its figures. Errors are relative to the root mean square of their row."""

    tensor: str
    decision: Decision
    reason: str | None = None
    message: str
    candidate: Summary | None = None
    plain: Summary | None = None
    worst: tuple[Location, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """One trial of one tensor: errors where a live row owns the element, and what must not differ at all."""

    errors: np.ndarray
    """float32, flat: the candidate's errors. Empty for an exact comparison."""
    plain_errors: np.ndarray
    """float32, flat: the plain path's."""
    changed: tuple[Location, ...]
    """Elements whose bits differ and had to be equal, at most three."""
    changed_count: int
    worst: tuple[Location, ...]
    """The largest errors of the candidate."""


def measure(
    comparison: Comparison, expected: Tensor, plain: Tensor, got: Tensor, owners: Sequence[int | None]
) -> Measurement:
    """Errors of `got` in one trial.

    `expected` is the oracle's (float64, or the tensor's own dtype where the comparison is exact); `plain` and `got`
    have the tensor's dtype; all have one shape. `owners[i]` is the batch row that leading index i belongs to, or None:
    what nobody owns (pages of other requests, the null page, the outputs of padded rows) must equal the oracle bit
    for bit whatever the comparison.
    """
    if not (expected.shape == plain.shape == got.shape and len(owners) == len(got) and plain.dtype == got.dtype):
        raise ValueError(f"{comparison.tensor}: oracle, plain path, candidate and owners do not fit together")
    owned = torch.tensor([owner is not None for owner in owners], dtype=torch.bool)
    exact = torch.ones_like(owned) if comparison.kind == "exact" else ~owned
    differs = torch.zeros(got.shape, dtype=torch.bool)
    wanted = expected[exact].to(got.dtype)
    if expected.dtype != got.dtype:
        # NaN has many bits, of which float64 carries none over: the plain path copies what nobody owns.
        wanted = torch.where(expected[exact].isnan(), plain[exact], wanted)
    differs[exact] = ~same_bits(wanted, got[exact])
    first = [tuple(index) for index in differs.nonzero()[:_WORST].tolist()]

    def locate(index: tuple[int, ...], error: float) -> Location:
        shown = (format(float(tensor[index]), ".9g") for tensor in (expected, got, plain))
        return Location(index=index, row=owners[index[0]], error=error, **dict(zip(_SHOWN, shown, strict=True)))

    changed = tuple(locate(index, math.inf) for index in first)
    count = int(differs.sum())
    if comparison.kind == "exact" or not owned.any():
        return Measurement(_NONE, _NONE, changed, count, ())
    live = owned.nonzero()[:, 0]
    errors = relative(expected[live], got[live], comparison.row_axes)
    plain_errors = relative(expected[live], plain[live], comparison.row_axes)
    top = errors.flatten().topk(min(_WORST, errors.numel()))
    worst = []
    for error, flat in zip(top.values.tolist(), top.indices.tolist(), strict=True):
        leading, *rest = np.unravel_index(flat, errors.shape)
        worst.append(locate((int(live[leading]), *map(int, rest)), error))
    return Measurement(_flat(errors), _flat(plain_errors), changed, count, tuple(worst))


def decide(comparison: Comparison, measurements: Iterable[Measurement]) -> Ruling:
    """Whether the pooled measurements of one tensor stay within `comparison`, and the first thing that does not."""
    trials = list(measurements)
    name = comparison.tensor
    changed = [location for trial in trials for location in trial.changed][:_WORST]
    if changed:
        at = changed[0]
        owner = f"row {at.row}" if at.row is not None else "no live row owns it"
        return Ruling(
            tensor=name,
            decision=Decision.FAIL,
            reason="numerics.not_exact" if at.row is not None else "numerics.unowned_changed",
            message=f"{name}: {sum(trial.changed_count for trial in trials)} elements that must be equal bit for bit "
            f"differ; first at {list(at.index)} ({owner}): expected {at.expected}, got {at.got}",
            worst=tuple(changed),
        )
    pooled = np.concatenate([_NONE, *(trial.errors for trial in trials)])
    if not pooled.size:
        return Ruling(tensor=name, decision=Decision.PASS, message=f"{name}: equal bit for bit")
    candidate = summary(pooled)
    plain = summary(np.concatenate([trial.plain_errors for trial in trials]))
    worst = tuple(sorted((at for trial in trials for at in trial.worst), key=lambda at: -at.error)[:_WORST])

    def ruling(decision: Decision, reason: str | None, message: str) -> Ruling:
        return Ruling(
            tensor=name,
            decision=decision,
            reason=reason,
            message=f"{name}: {message}",
            candidate=_finite(candidate),
            plain=_finite(plain),
            worst=tuple(at.model_copy(update={"error": min(at.error, _LARGEST)}) for at in worst),
        )

    if not math.isfinite(plain.maximum):
        return ruling(Decision.INVALID, "numerics.reference_not_finite", "the plain path is not finite")
    at = worst[0]
    where = f"worst at {list(at.index)} (row {at.row}): expected {at.expected}, got {at.got}, plain path {at.plain}"
    if not math.isfinite(candidate.maximum):
        return ruling(Decision.FAIL, "numerics.not_finite", f"{int(np.isinf(pooled).sum())} values not finite; {where}")
    checks = [("median", comparison.ratio), ("p999", comparison.ratio), ("maximum", comparison.max_ratio)]
    if candidate.values < MIN_POOLED:
        del checks[1]
    for quantile, ratio in checks:
        error, own = getattr(candidate, quantile), getattr(plain, quantile)
        # The floor stands in for the plain path's error where that is smaller, at the maximum with its own factor.
        limit = max(ratio * own, comparison.floor * (ratio if quantile == "maximum" else 1))
        if error > limit:
            message = (
                f"{_TITLES[quantile]} of the relative error is {error:.3g}, {error / limit:.3g} times the limit "
                f"{limit:.3g} (plain path {own:.3g}; {candidate.values} values); {where}"
            )
            return ruling(Decision.FAIL, f"numerics.{quantile}", message)
    return ruling(Decision.PASS, None, f"median {candidate.median:.3g}, p99.9 {candidate.p999:.3g}, "
                  f"maximum {candidate.maximum:.3g} within limits")  # fmt: skip


_SHOWN = ("expected", "got", "plain")
_TITLES = {"median": "the median", "p999": "p99.9", "maximum": "the maximum"}
_NONE = np.empty(0, dtype=np.float32)
_LARGEST = float(np.finfo(np.float32).max)


def _flat(errors: Tensor) -> np.ndarray:
    return errors.flatten().float().numpy()


def _finite(of: Summary) -> Summary:
    """Infinite quantiles shown as the largest float32: JSON has no infinity."""
    return of.model_copy(
        update={name: min(getattr(of, name), _LARGEST) for name in ("median", "p999", "maximum")}
    )
