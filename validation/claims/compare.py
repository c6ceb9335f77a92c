"""Two sets of records as a claim, cell by cell: records of one cell have every condition in common but what is under test.

A record that finds no partner, or more than one, is named and never dropped in silence."""

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import UserError
from .check import Checked
from .claim import MAY_DIFFER, Claim, Pair, Swap, UnderTest
from .conditions import conditions, stated
from .derive import figure
from .measurement import Measurement, Metric
from .units import Quantity, Unit

# What a cell is called by, where it varies over the set.
_NAMED = {
    "topology.tp": "tp", "workload.concurrency": "b", "workload.isl_asked": "i", "workload.context": "c",
    "speculation.method": "", "workload.data": "", "timed.phase": "",
}  # fmt: skip


class Matched(NamedTuple):
    """The claim, and the records that are in none of its cells."""

    claim: Claim
    unmatched: tuple[str, ...]


def match(
    claim_id: str, title: str, baselines: Sequence[Measurement], candidates: Sequence[Measurement], metric: Metric,
    under_test: UnderTest, twins: Sequence[Measurement] = (),
) -> Matched:  # fmt: skip
    """A claim of every cell that both sets have.

    `twins`: two records of one arm, measured in the first place and in the second, for the swap test of all cells; ()
    leaves it unknown. Raises UserError where no cell is common, or where a set has a cell twice.
    """
    paths = [path for path in conditions() if path not in MAY_DIFFER[under_test.subject] and path != "engine.options"]
    before, after = _by_cell(baselines, paths, "baseline"), _by_cell(candidates, paths, "candidate")
    common = [key for key in after if key in before]
    if not common:
        raise UserError("no cell is in both sets: their conditions differ", _differing([*before], [*after], paths))
    varying = [path for number, path in enumerate(paths) if len({key[number] for key in common}) > 1]
    swap = _swap(twins, metric)
    pairs = tuple(
        Pair(cell=_name(after[key], varying), candidate=after[key], baseline=before[key], swap=swap) for key in common
    )
    alone = [("baseline", key, before) for key in before if key not in after]
    alone += [("candidate", key, after) for key in after if key not in before]
    every = [path for path in _NAMED if path in paths]
    unmatched = tuple(f"{arm} {_name(records[key], every)}" for arm, key, records in alone)
    claim = Claim(id=claim_id, title=title, metric=metric, under_test=under_test, pairs=pairs)
    return Matched(claim, unmatched)


def regressions(checked: Checked) -> tuple[str, ...]:
    """Cells that are slower, with the whole interval below one."""
    return tuple(row.cell for row in checked.rows if row.ratio is not None and row.ratio.high < 1)


def _by_cell(records: Sequence[Measurement], paths: list[str], arm: str) -> dict[tuple[str, ...], Measurement]:
    found: dict[tuple[str, ...], Measurement] = {}
    for record in records:
        key = tuple(repr(stated(record, path)) for path in paths)
        if key in found:
            name = _name(record, [path for path in _NAMED if path in paths])
            raise UserError(f"the {arm} set has cell {name} twice", "keep one; repetitions belong into one record")
        found[key] = record
    return found


def _name(record: Measurement, paths: Sequence[str]) -> str:
    parts = [
        f"{_NAMED.get(path, path.rpartition('.')[2] + ' ')}{value}"
        for path in paths if (value := stated(record, path)) is not None
    ]  # fmt: skip
    return " ".join(parts) or "all"


def _differing(before: list[tuple[str, ...]], after: list[tuple[str, ...]], paths: list[str]) -> str:
    """What keeps the first two apart."""
    pairs = zip(paths, before[0], after[0], strict=True) if before and after else ()
    found = [f"{path} {mine} against {other}" for path, other, mine in pairs if mine != other]
    return f"of the first records: {', '.join(found)}" if found else "give records of both"


def _swap(twins: Sequence[Measurement], metric: Metric) -> Swap | None:
    if not twins:
        return None
    values = [figure(one, metric) for one in twins]
    if len(values) != 2 or None in values:
        raise UserError(f"the swap test needs two records with {metric}, there are {len(values)}", "give both places")
    unit = Unit.SECOND if metric.is_time else Unit.TOKENS_PER_SECOND
    return Swap(first=Quantity(value=values[0], unit=unit), second=Quantity(value=values[1], unit=unit))
