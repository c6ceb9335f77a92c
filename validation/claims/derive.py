"""Numbers that follow from records, and from nothing else: figures in another metric, ratios, their intervals.

tok/s/user = acceptance length / step time. A kernel changes the step time; a draft head changes the acceptance length.
"""

from collections.abc import Sequence
from math import exp, log, prod, sqrt

from pydantic import Field

from ..errors import UserError
from ..performance.hardware import datasheet
from ..records import Frozen
from .claim import Pair
from .measurement import Measurement, Metric, Repetitions, UserRate

MIN_REPETITIONS = 5
# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond, the next smaller entry, which is wider.
_T = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042}

# What a figure may be derived from, in order of preference.
_FROM: dict[Metric, tuple[Metric, ...]] = {
    Metric.STEP_TIME: (Metric.TPOT, Metric.TOK_S_USER),
    Metric.TOK_S_USER: (Metric.STEP_TIME, Metric.TPOT),
    Metric.TOK_S_SYSTEM: (Metric.TOK_S_USER, Metric.STEP_TIME, Metric.TPOT),
    Metric.TOK_S_GPU: (Metric.TOK_S_SYSTEM, Metric.TOK_S_USER, Metric.STEP_TIME, Metric.TPOT),
}


class Ratio(Frozen):
    """How many times better the candidate is, with its 95 % interval."""

    value: float
    low: float
    high: float
    repetitions: int = Field(ge=1)


def figure(measurement: Measurement, metric: Metric) -> float | None:
    """The arm's figure in seconds or tok/s: the geometric mean of its repetitions, so that a ratio is the quotient of
    what stands beside it; else as stated; else derived; else None."""
    repeated = samples(measurement, metric)
    if repeated is not None:
        return geometric_mean(repeated)
    stated = getattr(measurement.result, metric)
    if stated is not None:
        return stated.base
    for source in _FROM.get(metric, ()):
        given = getattr(measurement.result, source)
        if given is not None and (found := _converted(measurement, source, metric, given.base)) is not None:
            return found
    return None


def samples(measurement: Measurement, metric: Metric) -> tuple[float, ...] | None:
    """The repetitions in seconds or tok/s, in this metric or derived from another; None where that cannot be done."""
    repeated = measurement.result.repetitions
    if repeated is None:
        return None
    found = [_converted(measurement, repeated.metric, metric, value) for value in repeated.series.base]
    return None if None in found else tuple(found)


def ratio(pair: Pair, metric: Metric) -> Ratio | None:
    """The geometric mean of the paired repetitions' ratios and its interval; None without enough pairs.

    Log ratios are averaged with Student's t, so exchanging the arms gives exactly the inverse, and units cancel.
    """
    mine, other = samples(pair.candidate, metric), samples(pair.baseline, metric)
    if mine is None or other is None or not paired(pair):
        return None
    logs = [log(b / c) if metric.is_time else log(c / b) for c, b in zip(mine, other, strict=True)]
    mean = sum(logs) / len(logs)
    spread = sqrt(sum((value - mean) ** 2 for value in logs) / (len(logs) - 1))
    half = _t(len(logs) - 1) * spread / sqrt(len(logs))
    return Ratio(value=exp(mean), low=exp(mean - half), high=exp(mean + half), repetitions=len(logs))


def paired(pair: Pair) -> bool:
    """Whether both arms took turns, equally often and often enough."""
    arms: list[Repetitions | None] = [pair.candidate.result.repetitions, pair.baseline.result.repetitions]
    if None in arms or not all(arm.interleaved for arm in arms):
        return False
    lengths = {len(arm.series.values) for arm in arms}
    return len(lengths) == 1 and min(lengths) >= MIN_REPETITIONS


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return prod(value ** (1 / len(values)) for value in values)


def end_to_end(phase_ratio: float, share: float) -> float:
    """What a phase that became `phase_ratio` times faster does to the whole, where it took `share` of it before
    (Amdahl 1967). At half of the time, 1.36 becomes 1.15."""
    return 1 / (1 - share + share / phase_ratio)


def acceptance(measurement: Measurement) -> float | None:
    """Tokens that a step yields a request: the acceptance length, 1 without speculation, None where unknown."""
    if measurement.speculation.method == "off":
        return 1.0
    return measurement.speculation.acceptance_length


def floor_seconds(measurement: Measurement) -> float | None:
    """The least time that the data sheet allows for the timed unit; None where bytes or card are unknown."""
    needed = measurement.validity.floor
    if needed is None or measurement.hardware.sku is None:
        return None
    try:
        card = datasheet(measurement.hardware.sku)
    except UserError:
        return None
    return card.physical_floor_seconds(needed.moved_bytes, needed.flops)


def _converted(measurement: Measurement, source: Metric, metric: Metric, value: float) -> float | None:
    """`value` of `source` as `metric`, by the identities above; None where a condition that it takes is unknown."""
    if source is metric:
        return value
    if metric is Metric.TOK_S_GPU:
        system, gpus = _converted(measurement, source, Metric.TOK_S_SYSTEM, value), measurement.hardware.gpus
        return None if system is None or gpus is None else system / gpus
    if metric is Metric.TOK_S_SYSTEM:
        user, requests = _converted(measurement, source, Metric.TOK_S_USER, value), measurement.workload.concurrency
        return None if user is None or requests is None else user * requests
    tokens = acceptance(measurement)
    # Only a rate per user that is 1 / TPOT is about decode steps. A definition that is not stated is not one.
    steps = measurement.result.tok_s_user_definition is UserRate.INVERSE_TPOT
    match source, metric:
        case (Metric.TPOT, Metric.STEP_TIME):
            return None if tokens is None else tokens * value
        case (Metric.TOK_S_USER, Metric.STEP_TIME) | (Metric.STEP_TIME, Metric.TOK_S_USER):
            return tokens / value if tokens is not None and steps else None
        case (Metric.TPOT, Metric.TOK_S_USER):
            return 1 / value if steps else None
    return None


def _t(degrees: int) -> float:
    return _T[max(known for known in _T if known <= degrees)]
