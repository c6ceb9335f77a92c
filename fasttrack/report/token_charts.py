"""The three drawings of a rung's tokens: error against position, flips against margin, layer by position."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .token_records import GAP, Column, Trace

LEFT, WIDTH, TOP, PLOT, BELOW = 70, 560, 8, 120, 34
DECADES = 6
"""Of a logarithmic axis at most: what is smaller stands at its edge"""
SHADES = (1, 2, 4, 8, 16)
"""Times the noise where the shades of the map begin"""


class Mark(NamedTuple):
    """A word on an axis."""

    at: float
    text: str


class Path(NamedTuple):
    """One path of an SVG with its class."""

    kind: str
    d: str


class Figure(NamedTuple):
    """One drawing, with the same in words."""

    title: str
    caption: str
    description: str
    height: int
    paths: tuple[Path, ...]
    rings: tuple[tuple[float, float], ...]
    """Centres"""
    across: tuple[Mark, ...]
    up: tuple[Mark, ...]
    width: int = LEFT + WIDTH + 20


class _Axis(NamedTuple):
    """Logarithmic, by powers of ten."""

    low: int
    high: int
    start: float
    length: float

    @classmethod
    def of(cls, values: Iterable[float], start: float, length: float) -> "_Axis":
        held = [value for value in values if value > 0] or [1.0]
        high = math.ceil(math.log10(max(held)))
        return cls(max(min(math.floor(math.log10(min(held))), high - 1), high - DECADES), high, start, length)

    def at(self, value: float) -> float:
        power = math.log10(value) if value > 0 else self.low
        return round(self.start + self.length * (min(max(power, self.low), self.high) - self.low) / (self.high - self.low), 1)

    def marks(self) -> tuple[Mark, ...]:
        return tuple(Mark(self.at(10.0**power), f"1e{power}") for power in range(self.low, self.high + 1))


def token_charts(trace: Trace) -> tuple[Figure, ...]:
    """All three, in the order of the command line's."""
    return _position(trace), _flips(trace), _layers(trace)


def _places(columns: Sequence[Column]) -> tuple[list[float], float]:
    """Left edge of each column, and their width; a gap takes a column's place."""
    number, numbers = -1, []
    for column in columns:
        number += 2 if column.behind_gap else 1
        numbers.append(number)
    width = min(WIDTH / (number + 1), 24)
    return [round(LEFT + width * at, 1) for at in numbers], round(width, 1)


def _across(columns: Sequence[Column], places: Sequence[float], width: float) -> tuple[Mark, ...]:
    """Positions below the first column, those behind a gap, and others where there is room."""
    marks = []
    for wanted in (True, False):
        for number, (column, place) in enumerate(zip(columns, places, strict=True)):
            at = round(place + width / 2, 1)
            if (number == 0 or column.behind_gap) == wanted and all(abs(at - mark.at) >= 40 for mark in marks):
                marks.append(Mark(at, str(column.first)))
    return tuple(sorted(marks))


def _breaks(columns: Sequence[Column], places: Sequence[float], width: float, bottom: float) -> str:
    return "".join(f"M{place - width / 2:.1f} {TOP}V{bottom:g}" for column, place in zip(columns, places, strict=True)
                   if column.behind_gap)  # fmt: skip


def _frame(bottom: float) -> Path:
    return Path("edge", f"M{LEFT} {TOP}V{bottom:g}H{LEFT + WIDTH}")


def _thinned(trace: Trace) -> str:
    """The rule by which several positions became one column; nothing where none did."""
    most = max(column.last - column.first + 1 for column in trace.columns)
    told = f"; up to {most} neighbouring positions in one column, of which the largest counts" if most > 1 else ""
    gap = any(column.behind_gap for column in trace.columns)
    return told + (f"; a dashed line is a gap of more than {GAP} positions without a token" if gap else "")


def _named(column: Column) -> str:
    return f"position {column.first}" if column.first == column.last else f"positions {column.first} to {column.last}"


def _position(trace: Trace) -> Figure:
    columns = trace.columns
    places, width = _places(columns)
    axis = _Axis.of((value for one in columns for value in (one.own, one.high)), TOP + PLOT, -PLOT)
    band, dots = [], []
    for one, x in zip(columns, places, strict=True):
        band.append(f"M{x:g} {axis.at(one.high):g}h{width:g}V{axis.at(one.low):g}h-{width:g}z")
        dots.append(f"M{x + width / 2:.1f} {axis.at(one.own):g}h0")
    beyond = [one for one in columns if one.own > one.high]
    said = (f"candidate beyond the noise in {len(beyond)} of {len(columns)} columns; its largest change is "
            f"{max(one.own for one in columns):.1e}, the noise's {max(one.high for one in columns):.1e}")  # fmt: skip
    return Figure(
        "Error against position",
        "|change of log-prob| of the token that follows against the oracle, by position; dots: candidate; grey: from the least "
        f"to the largest of the stock path and its repetitions; logarithmic, smaller ones at the edge{_thinned(trace)}.",
        said, TOP + PLOT + BELOW,
        (Path("band", "".join(band)), Path("gap", _breaks(columns, places, width, TOP + PLOT)), Path("dots", "".join(dots)),
         _frame(TOP + PLOT)),
        (), _across(columns, places, width), axis.marks(),
    )  # fmt: skip


def _flips(trace: Trace) -> Figure:
    dots = trace.dots
    across = _Axis.of((one.margin for one in dots), LEFT, WIDTH)
    up = _Axis.of((value for one in dots for value in (one.own, one.noise)), TOP + PLOT, -PLOT)
    ends = [10.0**power for power in (max(across.low, up.low), min(across.high, up.high))]
    line = f"M{across.at(ends[0]):g} {up.at(ends[0]):g}L{across.at(ends[1]):g} {up.at(ends[1]):g}" if ends[0] < ends[1] else ""
    flipped = [one for one in dots if one.flips]
    calm = trace.tokens - len(flipped)
    left = len(dots) - len(flipped)
    thinned = f"; of {calm} tokens that do not flip {left} are drawn, evenly in order of the margin" if left < calm else ""
    return Figure(
        "Top-1 flips against margin",
        "How far the difference of the oracle’s two likeliest logits moves, against that difference; dots: candidate, grey: the "
        "largest of the stock path and its repetitions; a ring: another token than the oracle’s is likeliest. On the line the "
        "error is as large as the margin: the two can swap places only above it, where the error narrows the margin, or on it, where "
        "their logits became equal in bfloat16; a ring below it is a third token. Logarithmic; what is smaller than the axes stands "
        f"at their edge{thinned}.",
        f"{len(flipped)} of {trace.tokens} tokens flip, {sum(one.own > one.margin for one in flipped)} of them above the line, "
        f"{sum(one.own == one.margin for one in flipped)} on it",
        TOP + PLOT + BELOW,
        (Path("noise", "".join(f"M{across.at(one.margin):g} {up.at(one.noise):g}h0" for one in dots)), Path("line l1", line),
         Path("dots", "".join(f"M{across.at(one.margin):g} {up.at(one.own):g}h0" for one in dots)), _frame(TOP + PLOT)),
        tuple((across.at(one.margin), up.at(one.own)) for one in flipped), across.marks(), up.marks(),
    )  # fmt: skip


def _layers(trace: Trace) -> Figure:
    columns = trace.columns
    places, width = _places(columns)
    layers = len(columns[0].ratios)
    each = max(min(PLOT // layers, 16), 2)
    bottom = TOP + each * layers
    cells: dict[int, list[str]] = {}
    for one, x in zip(columns, places, strict=True):
        for layer, ratio in enumerate(one.ratios):
            if shade := sum(ratio > edge for edge in SHADES):
                cells.setdefault(shade, []).append(f"M{x:g} {bottom - each * (layer + 1)}h{width:g}v{each}h-{width:g}z")
    worst = max(range(layers), key=lambda layer: max(one.ratios[layer] for one in columns))
    most = max(columns, key=lambda one: one.ratios[worst])
    step = max(math.ceil(14 / each), 1)
    return Figure(
        "Layer by position",
        "The candidate’s error of the stream behind each layer over the noise of its token (root mean square of the stock path and "
        f"its repetitions); blank: no larger; shades begin at {', '.join(map(str, SHADES))} times{_thinned(trace)}.",
        f"at most {most.ratios[worst]:.2g} times the noise, behind layer {worst}, {_named(most)}",
        bottom + BELOW,
        (*(Path(f"heat h{shade}", "".join(cells[shade])) for shade in sorted(cells)),
         Path("gap", _breaks(columns, places, width, bottom)), _frame(bottom)),
        (), _across(columns, places, width),
        tuple(Mark(bottom - each * (layer + 0.5), f"layer {layer}") for layer in range(0, layers, step)),
    )  # fmt: skip
