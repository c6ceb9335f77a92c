"""Results on the whole model as a report shows them: exams, and errors token by token over positions.

Read as data from `evidence/accuracy/*.json` (what an accuracy stage keeps), `evidence/numerics/*.json` (the verdict of a
numerics stage) and `evidence/kits/*/numerics/verdict.json` (two servers, as a kit's owner compared them): what is not
shown is not read, and judged by nobody here.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Paired(_Read):
    """Candidate less baseline over the same items; fractions of a point of score."""

    items: int
    repeats: int
    difference: float
    se: float | None = None


class Decision(_Read):
    """The rule's bounds."""

    lower: float
    minimum_detectable_loss: float | None = None


class _Result(_Read):
    verdict: str
    paired: Paired | None = None
    decision: Decision | None = None
    truncated: tuple[float, float] | None = None


class _Rule(_Read):
    margin_points: float


class _Plan(_Read):
    exam: str
    rule: _Rule


class _Exam(_Read):
    plan: _Plan
    result: _Result


class _Outcome(_Read):
    exams: tuple[_Exam, ...]


class _Accuracy(_Read):
    outcome: _Outcome


class ExamResult(Frozen):
    """One exam that was sat, with the file that it was read from (relative to the model directory)."""

    source: str
    exam: str
    verdict: str
    margin: float
    paired: Paired | None = None
    decision: Decision | None = None
    truncated: tuple[float, float] | None = None

    @property
    def standing(self) -> str:
        """d, SE and d/SE in points, and the bound beside its margin."""
        if self.paired is None or self.decision is None:
            return "no figure: a guard did not hold"
        d, se = self.paired.difference, self.paired.se
        ratio = f", SE {100 * se:.2f}, d/SE {d / se:+.2f}" if se else ", no SE"
        loss = self.decision.minimum_detectable_loss
        seen = "" if loss is None else f", detectable loss {100 * loss:.2f}"
        return (f"d {100 * d:+.2f} points{ratio}; lower bound {100 * self.decision.lower:+.2f}, margin "
                f"{100 * self.margin:.2f}{seen}; {self.paired.items} items, {self.paired.repeats} repeats")  # fmt: skip


class Spread(_Read):
    """One metric of one path in one band of positions."""

    metric: str
    band: str
    path: str
    values: int
    median: float
    p999: float
    maximum: float


class _Flips(_Read):
    flips: dict[str, int]
    ties: int
    bugs: int


class _Place(_Read):
    unit: str
    layer: int | None = None
    position: int | None = None
    pool: str | None = None


class _Rung(_Read):
    rung: str
    tp: int
    result: str
    tokens: int
    spreads: tuple[Spread, ...] = ()
    flips: _Flips | None = None
    first: _Place | None = None
    text: str = ""


class _Numerics(_Read):
    rungs: tuple[_Rung, ...]


class RungResult(Frozen):
    """One rung of the numerics ladder at one TP."""

    source: str
    rung: str
    tp: int
    result: str
    tokens: int
    spreads: tuple[Spread, ...]
    flips: _Flips | None = None
    first: _Place | None = None
    text: str = ""

    @property
    def standing(self) -> str:
        """Flips of the likeliest token, and where the earliest thing is that is not right; nothing where a rung has neither."""
        said = []
        if self.flips:
            own = self.flips.flips.get("candidate", 0)
            said.append(f"top-1 flips: candidate {own} ({self.flips.ties} ties, {self.flips.bugs} bugs), "
                        f"stock path {self.flips.flips.get('stock', 0)}")  # fmt: skip
        if self.first:
            place = (("layer", self.first.layer), ("position", self.first.position))
            where = [f"{name} {value}" for name, value in place if value is not None] + [self.first.pool or "", self.first.unit]
            said.append(f"first out: {', '.join(filter(None, where))}: {self.text}")
        return "; ".join(said)


class _Servers(_Read):
    result: str
    reference: str
    tokens: int
    noise: tuple[str, ...]
    deterministic: bool
    flips: _Flips
    spreads: tuple[Spread, ...]
    text: str


class ServersResult(Frozen):
    """Two servers, stock and specialised, token by token on hardware that a kit's owner has."""

    source: str
    kit: str
    """The kit's directory under `evidence/kits/`: hardware and commit"""
    result: str
    text: str
    reference: str
    tokens: int
    noise: tuple[str, ...]
    deterministic: bool
    flips: _Flips
    spreads: tuple[Spread, ...]

    @property
    def standing(self) -> str:
        """What was held against what, and flips of the likeliest token."""
        same = " (all of it the stock server to the last bit)" if self.deterministic else ""
        flips = ", ".join(f"{path} {count}" for path, count in self.flips.flips.items())
        return (f"{self.tokens} tokens against {self.reference}; noise: {', '.join(self.noise) or 'none'}{same}; top-1 flips: "
                f"{flips or 'none'}, of the candidate's {self.flips.ties} ties and {self.flips.bugs} bugs")  # fmt: skip


def exam_results(files: Mapping[str, bytes]) -> tuple[ExamResult, ...]:
    """Every exam that was sat. UserError for a file that is no record of an accuracy stage."""
    return tuple(
        ExamResult(source=path, exam=one.plan.exam, verdict=one.result.verdict, margin=one.plan.rule.margin_points / 100,
                   paired=one.result.paired, decision=one.result.decision, truncated=one.result.truncated)
        for path, record in _read(files, "evidence/accuracy/[^/]+", "accuracy", _Accuracy) for one in record.outcome.exams
    )  # fmt: skip


def rung_results(files: Mapping[str, bytes]) -> tuple[RungResult, ...]:
    """Every rung that ran. UserError for a file that is no verdict of a numerics stage."""
    return tuple(
        RungResult(source=path, **{name: getattr(one, name) for name in _Rung.model_fields})
        for path, record in _read(files, "evidence/numerics/[^/]+", "numerics", _Numerics) for one in record.rungs
    )  # fmt: skip


def servers_results(files: Mapping[str, bytes]) -> tuple[ServersResult, ...]:
    """Every comparison of servers that a kit brought. UserError for a file that is no verdict of one."""
    return tuple(
        ServersResult(source=path, kit=path.split("/")[2], **{name: getattr(record, name) for name in _Servers.model_fields})
        for path, record in _read(files, "evidence/kits/[^/]+/numerics/verdict", "numerics", _Servers)
    )  # fmt: skip


def _read(files: Mapping[str, bytes], where: str, kind: str, shape: type) -> Iterator[tuple[str, object]]:
    for path in sorted(files):
        if re.fullmatch(rf"{where}\.json", path):
            try:
                yield path, shape.model_validate(json.loads(files[path]))
            except (ValueError, RecursionError, ValidationError) as error:
                raise UserError(f"{path} is no record of stage {kind}: {str(error).splitlines()[0]}",
                                "restore it from git, or run the stage again: `fasttrack validate`") from error  # fmt: skip


class Point(NamedTuple):
    """One band of one path: place in SVG units, and the value."""

    x: float
    y: float
    value: float


class Chart(NamedTuple):
    """p99.9 over bands, one line a path, on a logarithmic scale."""

    rung: RungResult
    name: str
    """Of the verdict"""
    metric: str
    by: str
    """What the bands are of"""
    width: int
    height: int
    bands: tuple[tuple[float, str], ...]
    lines: tuple[tuple[str, tuple[Point, ...]], ...]
    labels: tuple[Point, ...]
    """The last point of each line, moved so that what stands beside it can be read"""
    description: str


LEFT, STEP, TOP, PLOT = 70, 120, 14, 110
LINE = 12
LONG = "long_context"


def charts(rungs: tuple[RungResult, ...]) -> tuple[Chart, ...]:
    """One chart for each rung whose first metric has more than one band; of the long rung, whose metrics are different
    things, one for each."""
    return tuple(made for rung in rungs for metric in _drawn(rung) if (made := _chart(rung, metric)) is not None)


def _drawn(rung: RungResult) -> list[str]:
    metrics = list(dict.fromkeys(one.metric for one in rung.spreads))
    return metrics if rung.rung == LONG else metrics[:1]


def _chart(rung: RungResult, metric: str) -> Chart | None:
    held = [one for one in rung.spreads if one.metric == metric and one.p999 > 0]
    bands = list(dict.fromkeys(one.band for one in held))
    if len(bands) < 2:
        return None
    low, high = (math.log10(edge(one.p999 for one in held)) for edge in (min, max))
    place = {band: LEFT + STEP // 2 + n * STEP for n, band in enumerate(bands)}
    lines, said = [], []
    for path in dict.fromkeys(one.path for one in held):
        points = tuple(
            Point(place[one.band], round(TOP + PLOT * (high - math.log10(one.p999)) / ((high - low) or 1), 1), one.p999)
            for one in held if one.path == path
        )  # fmt: skip
        lines.append((path, points))
        said.append(f"{path}: " + ", ".join(f"{one.band} {one.p999:.1e}" for one in held if one.path == path))
    by = "band of positions"
    if rung.rung == LONG:
        by = "attended position" if metric.startswith("context") else "decade of decode steps"
    name = rung.source.rpartition("/")[2].removesuffix(".json")
    return Chart(rung, name, metric, by, LEFT + len(bands) * STEP + 120, TOP + PLOT + 34, tuple((place[b], b) for b in bands),
                 tuple(lines), _apart([points[-1] for _, points in lines]), "; ".join(said))  # fmt: skip


def _apart(points: list[Point]) -> tuple[Point, ...]:
    """The points at least a line of text apart, in their order from above."""
    order = sorted(range(len(points)), key=lambda at: points[at].y)
    moved, floor, ceiling = {}, TOP, TOP + PLOT + LINE
    for at in order:
        moved[at] = max(points[at].y, floor)
        floor = moved[at] + LINE
    # What was pushed out of the drawing below goes back up, and takes along what it comes too close to.
    for at in reversed(order):
        moved[at] = min(moved[at], ceiling)
        ceiling = moved[at] - LINE
    return tuple(point._replace(y=round(moved[at], 1)) for at, point in enumerate(points))
