"""Drawings of measured layers: launches before and after as bars to one scale, and the envelope as a map."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .data import ReportData
from .layers import Layer

LEFT, WIDTH, RIGHT, BAR, STEP = 92, 560, 230, 26, 40


class Tick(NamedTuple):
    """One launch inside a bar. Its width says nothing: only the sum was measured."""

    x: float
    width: float
    name: str


class Bar(NamedTuple):
    """One path through a layer: its length is its time."""

    y: int
    label: str
    words: str
    ticks: tuple[Tick, ...]


class Timeline(NamedTuple):
    """Stock above specialised, with the floor as a line; `description` says the same in words."""

    layer: Layer
    width: int
    height: int
    bars: tuple[Bar, ...]
    floor_x: float
    description: str


def timeline(layer: Layer) -> Timeline:
    """The two paths through a measured cell. Launches share a bar's length evenly."""
    found = layer.outcome
    longest = max(found.stock.microseconds.median, found.specialised.microseconds.median)
    bars, said = [], []
    for row, (label, path) in enumerate((("stock", found.stock), ("specialised", found.specialised))):
        length = WIDTH * path.microseconds.median / longest
        each = length / max(1, len(path.kernels))
        ticks = tuple(Tick(round(LEFT + n * each, 1), round(each, 1), name) for n, name in enumerate(path.kernels))
        words = f"{path.microseconds.median:.1f} µs, {len(path.kernels)} launches"
        bars.append(Bar(8 + row * STEP, label, words, ticks))
        said.append(f"{label}: {words}")
    floor = LEFT + WIDTH * found.target_floor_us / longest
    said.append(f"target floor: {found.target_floor_us:.1f} µs")
    return Timeline(layer, LEFT + WIDTH + RIGHT, 8 + 2 * STEP + 18, tuple(bars), round(floor, 1), "; ".join(said))


def timelines(data: ReportData) -> tuple[Timeline, ...]:
    """One for each hardware and kind of layer: the cell with the lowest TP and the fewest rows."""
    first: dict[tuple[str, str], Layer] = {}
    for layer in data.measured_layers:
        key, spec = (layer.hardware, layer.spec.kind), layer.spec
        held = first.get(key)
        if held is None or (spec.tp, spec.rows, spec.context or 0) < (held.spec.tp, held.spec.rows, held.spec.context or 0):
            first[key] = layer
    return tuple(timeline(layer) for layer in first.values())


def shortened(kernels: Sequence[str]) -> str:
    """Launches in order, runs of one name counted, names without their template arguments."""
    runs: list[list] = []
    for name in map(readable, kernels):
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    return ", ".join(name if count == 1 else f"{name} ({count} in turn)" for name, count in runs)


def readable(kernel: str) -> str:
    """A kernel's name; of a mangled C++ one the nested name alone (Itanium C++ ABI, section 5.1)."""
    found = re.match(r"_ZN?", kernel)
    if not found:
        return kernel
    parts, at = [], found.end()
    while length := re.match(r"[1-9]\d*", kernel[at:]):
        start = at + length.end()
        at = start + int(length[0])
        parts.append(kernel[start:at])
    return "::".join(parts) or kernel


class Spot(NamedTuple):
    """One row count at one place: outside, claimed, or measured, and what stands there."""

    state: str
    text: str


class EnvelopeMap(NamedTuple):
    """Places down, row counts across."""

    rows: tuple[int, ...]
    places: tuple[tuple[str, tuple[Spot, ...]], ...]


def envelope_map(data: ReportData) -> EnvelopeMap:
    """Where the path is claimed, where it was measured, and where it must not be used."""
    most = max((place.rows[1] for place in data.places), default=1)
    marks = {1 << n for n in range(most.bit_length()) if 1 << n <= most}
    marks |= {edge for place in data.places for edge in place.rows} | {layer.spec.rows for layer in data.layers}
    rows = tuple(sorted(marks))
    found = []
    for place in data.places:
        here = [one for one in data.layers if (one.hardware.lower(), one.spec.tp) == (place.hardware.lower(), place.tp)]
        spots = []
        for row in rows:
            cells = [one for one in here if one.spec.rows == row]
            done = sum(one.measured for one in cells)
            if not place.rows[0] <= row <= place.rows[1]:
                spots.append(Spot("outside", "stock"))
            elif failed := sum(one.outcome.kind == "failed" for one in cells):
                spots.append(Spot("failed", f"{failed} failed" + f", {done} measured" * bool(done)))
            elif done:
                spots.append(Spot("measured", f"{done} measured" if done == len(cells) else f"{done} of {len(cells)} measured"))
            else:
                spots.append(Spot("missing", "claimed"))
        found.append((f"{place.hardware}, TP{place.tp}", tuple(spots)))
    return EnvelopeMap(rows, tuple(found))
