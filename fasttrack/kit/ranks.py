"""Records of one rank's grid in a sealed file: held against the sources, the card, and their own samples."""

from collections.abc import Iterator, Mapping
from math import isclose
from statistics import median

from fasttrack_validation.performance.hardware import profile
from fasttrack_validation.performance.records import Measured, Record
from fasttrack_validation.timing.comparison import Comparison, Quad, compare

from .. import services
from ..grid import Grid
from .origin import Origin
from .plan import Kit

_VERSIONS = ("torch", "triton")
_RULE = ("standing", "quads", "smallest_effect", "alpha", "tests")
"""Of a comparison, what has to be equal and not only near"""


def faults(kit: Kit, source: Origin, records: Mapping[str, Record]) -> Iterator[str]:
    """Why records are no evidence about `source` on the kit's hardware, which the model claims."""
    if not records:
        return
    contract = services.contract(source.directory.manifest.model.contract)
    grid = Grid(source.directory, contract, kit.hardware, validation=source.validation)
    cells = contract.grid.cells(kit.hardware)
    card = profile(kit.hardware).cuda_name
    for key, record in records.items():
        if record.hardware != kit.hardware:
            yield f"{key} is about {record.hardware}, the kit about {kit.hardware}"
        if record.machine.get("device") != card:
            yield f"{key} was measured on {record.machine.get('device')}, the kit is for {card}"
        if record.spec not in cells or grid.excluded(record.spec):
            yield f"{key} is no cell of the grid of {kit.model}"
        elif other := grid.stale(record):
            yield f"{key} is about other sources than the kit ({other})"
        if isinstance(record.outcome, Measured):
            yield from (f"{key}: {why}" for why in _edited(record.outcome))


def notes(kit: Kit, records: Mapping[str, Record]) -> Iterator[str]:
    """Versions that cells were measured with and that are not those that the kit pins."""
    pins = dict(line.split("==") for line in kit.pins if line.count("==") == 1)
    found: dict[str, list[str]] = {}
    for key, record in records.items():
        other = [
            f"{name} {have} ({pins[name]} is pinned)" for name in _VERSIONS
            if name in pins and (have := record.machine.get(name, "unknown")).partition("+")[0] != pins[name]
        ]  # fmt: skip
        if other:
            found.setdefault(", ".join(other), []).append(key)
    for versions, keys in found.items():
        yield f"measured with {versions}: {', '.join(keys)}"


def _edited(outcome: Measured) -> Iterator[str]:
    """Figures that the record's own samples and bytes do not give. Bootstrap intervals are another draw with another numpy:
    they have to hold the median, and be within the samples."""
    for name, path in (("specialised", outcome.specialised), ("stock", outcome.stock)):
        shown, samples = path.microseconds, path.samples
        if not samples or not _near(median(samples), shown.median):
            yield f"the {name} path's time is not what its samples give"
        elif not min(samples) <= shown.low <= shown.median <= shown.high <= max(samples):
            yield f"the {name} path's interval is none of its samples"
    try:
        given, floor = _comparison(outcome), outcome.bytes / outcome.ceiling_bytes_per_second * 1e6
    except (ValueError, ArithmeticError):
        yield "its samples, bytes and rates are none"
        return
    kept = outcome.comparison
    same = all(getattr(kept, name) == getattr(given, name) for name in _RULE)
    near = _near(given.ratio, kept.ratio) and _near(given.at_least, kept.at_least)
    if not (same and near and kept.low <= kept.ratio <= kept.high):
        yield "the ratio is not what the samples give"
    if not _near(floor, outcome.target_floor_us):
        yield "the floor is not what the bytes give"


def _comparison(outcome: Measured) -> Comparison:
    """What the samples give: two of each path a quad, in the order taken. ValueError where they are no quads."""
    ours, theirs = (zip(*[iter(path.samples)] * 2, strict=True) for path in (outcome.specialised, outcome.stock))
    return compare([Quad(a1=a1, a2=a2, b1=b1, b2=b2) for (a1, a2), (b1, b2) in zip(ours, theirs, strict=True)])


def _near(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-9)
