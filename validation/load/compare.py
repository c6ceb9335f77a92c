"""Server grids against each other, and the cells of one grid that belong together.

A cell is compared only where both sets asked the same of the same machine; the stock arm is the control, as in
claims/grids.py.
"""

from collections import Counter
from collections.abc import Mapping

from ..claims.grids import Change, Compared, compared, ratio_of_medians
from ..records import canonical_json
from .records import Measured, Record, Side, machine


def compare(before: Mapping[str, Record], after: Mapping[str, Record]) -> tuple[Compared, ...]:
    """Every cell that either set has (key -> record), in order, by TPOT of the specialised arm."""
    return tuple(_cell(key, before.get(key), after.get(key)) for key in dict.fromkeys((*before, *after)))


def apart(records: Mapping[str, Record]) -> dict[str, str]:
    """Measured cells that were not taken as most of them were, with what differs: they are not mixed in with the others.

    Of equally many the later ones stand.
    """
    facts = {key: _facts(one) for key, one in records.items() if isinstance(one.outcome, Measured)}
    if not facts:
        return {}
    texts = {key: canonical_json(found) for key, found in facts.items()}
    counts = Counter(texts.values())
    latest = {text: max(records[key].taken for key in texts if texts[key] == text) for text in counts}
    standing = max(counts, key=lambda text: (counts[text], latest[text], text))
    reference = next(facts[key] for key in texts if texts[key] == standing)
    return {
        key: f"taken under other conditions than the grid's other cells ({differing(facts[key], reference)})"
        for key in facts if texts[key] != standing
    }  # fmt: skip


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """What differs, as text: "stock hardware.driver 580 against 590"."""
    names = [name for name in sorted({*one, *other}) if one.get(name, "unknown") != other.get(name, "unknown")]
    return ", ".join(f"{name} {one.get(name, 'unknown')} against {other.get(name, 'unknown')}" for name in names)


def _facts(record: Record) -> dict[str, object]:
    sides = (record.outcome.stock, record.outcome.specialised)
    return {f"{side.arm} {name}": value for side in sides for name, value in machine(side).items()}


def _cell(key: str, before: Record | None, after: Record | None) -> Compared:
    for record, name in ((before, "the first"), (after, "the second")):
        if record is None or not isinstance(record.outcome, Measured):
            return Compared(cell=key, change=Change.APART, reason=f"{name} set has no measurement of it")
    was, now = before.outcome, after.outcome
    if why := _other_means(before, after):
        return Compared(cell=key, change=Change.APART, reason=why)
    stock, ratio = (ratio_of_medians(_tpots(one), _tpots(other)) for one, other in (
        (was.stock, now.stock), (was.specialised, now.specialised)))  # fmt: skip
    return compared(key, stock, ratio, f"the stock arm's TPOT moved by {abs(1 / stock.value - 1):.1%}, so the machine did")


def _other_means(before: Record, after: Record) -> str:
    """What keeps two measurements of a cell apart. The specialised arm's own code is what may differ."""
    if before.hardware != after.hardware:
        return f"on {before.hardware} and on {after.hardware}"
    if before.asking != after.asking:
        return f"asked otherwise ({differing(before.asking.model_dump(), after.asking.model_dump())})"
    for name in ("stock", "specialised"):
        one, other = (machine(getattr(record.outcome, name)) for record in (before, after))
        if name == "specialised":
            for facts in (one, other):
                facts.pop("identity.commit", None)
                facts.pop("identity.build", None)
        if said := differing(one, other):
            return f"{name}: {said}"
    return ""


def _tpots(side: Side) -> tuple[float, ...]:
    return tuple(one.figures.tpot for one in side.rounds)
