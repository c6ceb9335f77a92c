"""Two measurements of the grid, cell by cell: what got faster, what got slower, and what cannot be held against each other.

Pure. Both sets come from records, and a cell is compared only where what measured it was the same in both: card, versions,
switches, harness, scope. The stock path is the control: it was timed beside both, and where it moved, the card did.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
from pydantic import Field

from ..performance.records import Measured, Record
from ..records import Frozen, canonical_json
from ..timing.comparison import SMALLEST_EFFECT

DRIFT = 0.02
"""The share by which the stock path's time may differ: what two runs on one card differ by, and a little more"""
CLOCK = 0.05
"""The share by which a median SM clock may differ: boost clocks wander by less over sessions of one card, locked ones not"""
_DRAWS = 4000


class Change(StrEnum):
    """What became of a cell."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    """Less than the smallest effect, or within the interval"""
    APART = "apart"
    """Not comparable"""


class Ratio(Frozen):
    """Before over after of two independent medians, above one where it got faster, with a 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class Compared(Frozen):
    """One cell."""

    cell: str
    change: Change
    ratio: Ratio | None = Field(None, description="of the specialised path")
    stock: Ratio | None = Field(None, description="of the stock path, which is the same in both")
    reason: str = Field("", description="why it cannot be compared")


def compare(before: Mapping[str, Record], after: Mapping[str, Record]) -> tuple[Compared, ...]:
    """Every cell that either set has (key -> record), in order."""
    return tuple(_cell(key, before.get(key), after.get(key)) for key in dict.fromkeys((*before, *after)))


def apart(records: Mapping[str, Record]) -> dict[str, str]:
    """Measured cells that were not taken as most of them were (driver, versions, switches, clock state), with what differs:
    they are not mixed in with the others. Of equally many sets the one whose machine sorts last stands."""
    found = {key: record for key, record in records.items() if isinstance(record.outcome, Measured)}
    texts = {key: canonical_json(record.machine) for key, record in found.items()}
    if not texts:
        return {}
    counts = Counter(texts.values())
    standing = max(counts, key=lambda text: (counts[text], text))
    members = [record for key, record in found.items() if texts[key] == standing]
    told = {}
    for key, record in found.items():
        why = _machines(record, members[0]) if texts[key] != standing else ""
        why = why or _clocks(record, _typical(members))
        if why:
            told[key] = f"taken under other conditions than the grid's other cells ({why})"
    return told


def ratio_of_medians(before: tuple[float, ...], after: tuple[float, ...], seed: int = 0) -> Ratio:
    """Median of `before` over median of `after` with its percentile bootstrap interval (both resampled by themselves)."""
    one, other = np.asarray(before, float), np.asarray(after, float)
    source = np.random.default_rng(seed)
    draws = [
        np.median(values[source.integers(0, len(values), (_DRAWS, len(values)))], axis=1) for values in (one, other)
    ]
    low, high = np.quantile(draws[0] / draws[1], (0.025, 0.975))
    return Ratio(value=float(np.median(one) / np.median(other)), low=float(low), high=float(high))


def _cell(key: str, before: Record | None, after: Record | None) -> Compared:
    for record, name in ((before, "the first"), (after, "the second")):
        if record is None or not isinstance(record.outcome, Measured):
            return Compared(cell=key, change=Change.APART, reason=f"{name} set has no measurement of it")
    if reason := _other_means(before, after):
        return Compared(cell=key, change=Change.APART, reason=reason)
    was, now = before.outcome, after.outcome
    stock = ratio_of_medians(was.stock.samples, now.stock.samples)
    ratio = ratio_of_medians(was.specialised.samples, now.specialised.samples)
    return compared(key, stock, ratio, f"the stock path's time moved by {abs(1 / stock.value - 1):.1%}, so the card did")


def compared(key: str, stock: Ratio, ratio: Ratio, drifted: str) -> Compared:
    """What the ratios of before over after say of a cell. Where the stock side moved too, nothing, for the reason `drifted`."""
    if abs(stock.value - 1) > DRIFT:
        return Compared(cell=key, change=Change.APART, ratio=ratio, stock=stock, reason=drifted)
    change = Change.SAME
    if ratio.low > 1 and ratio.value > 1 + SMALLEST_EFFECT:
        change = Change.FASTER
    elif ratio.high < 1 and ratio.value < 1 / (1 + SMALLEST_EFFECT):
        change = Change.SLOWER
    return Compared(cell=key, change=change, ratio=ratio, stock=stock)


def _other_means(before: Record, after: Record) -> str:
    """What keeps figures apart that are about one cell."""
    if before.hardware != after.hardware:
        return f"on {before.hardware} and on {after.hardware}"
    if why := _machines(before, after) or _clocks(before, after):
        return why
    if before.subject.harness != after.subject.harness:
        return "measured by other means: the harness or the stock path changed"
    if before.scope != after.scope:
        return f"{before.scope!r} and {after.scope!r}"
    return ""


def _machines(one: Record, other: Record) -> str:
    for name in sorted({*one.machine, *other.machine}):
        mine, its = one.machine.get(name, "unknown"), other.machine.get(name, "unknown")
        if mine != its:
            return f"{name} {mine} and {its}"
    return ""


def _clocks(one: Record, other: Record) -> str:
    """What keeps two clock states apart. A card without NVML says nothing of its clocks, in both or in neither."""
    mine, its = one.outcome.conditions, other.outcome.conditions
    if mine.memory_mhz_lowest != its.memory_mhz_lowest:
        return f"memory clock {mine.memory_mhz_lowest or 'unknown'} and {its.memory_mhz_lowest or 'unknown'} MHz"
    if (mine.sm_mhz_median is None) != (its.sm_mhz_median is None):
        return "SM clock known of one alone"
    if mine.sm_mhz_median is not None and abs(mine.sm_mhz_median / its.sm_mhz_median - 1) > CLOCK:
        return f"SM clock {mine.sm_mhz_median:g} and {its.sm_mhz_median:g} MHz"
    return ""


def _typical(records: Sequence[Record]) -> Record:
    """The one with the middle SM clock."""
    return sorted(records, key=lambda record: record.outcome.conditions.sm_mhz_median or 0.0)[len(records) // 2]
