"""What a reader wants to know first: is it faster, where it failed, and what a person must decide."""

from typing import NamedTuple

from .data import Decision, ReportData
from .exchange import Exchange, Figure, Span
from .layers import Layer


class Whole(NamedTuple):
    """A step of several ranks with communication: the stock path's cell beside the fastest other one's."""

    record: Exchange
    span: Span
    stock: Figure
    fastest: Figure


def extremes(data: ReportData) -> tuple[Layer, Layer] | None:
    """The measured layers with the least and the most gain."""
    held = sorted(data.measured_layers, key=lambda layer: layer.outcome.comparison.ratio)
    return (held[0], held[-1]) if held else None


def whole(data: ReportData) -> Whole | None:
    """The step with the fewest rows that holds both paths."""
    found = []
    for record in data.exchanges:
        for span in record.spans:
            figures = {name: cell.microseconds for name, cell in span.paths.items() if isinstance(cell.microseconds, Figure)}
            stock = next((figure for name, figure in figures.items() if name.startswith("stock")), None)
            mine = [figure for name, figure in figures.items() if not name.startswith("stock")]
            if span.name == "step" and stock and mine:
                found.append(Whole(record, span, stock, min(mine, key=lambda one: one.median)))
    return min(found, key=lambda one: (one.span.rows, one.record.source), default=None)


def asked(data: ReportData) -> tuple[Decision, ...]:
    """What the record asks, and what the evidence itself puts before a person."""
    made = list(data.decisions)
    if failed := [layer for layer in data.layers if layer.outcome.kind == "failed"]:
        question = f"A timed layer failed ({failed[0].name}): is its cause known, and may the envelope claim that place?"
        made.append(Decision(question=question, source=failed[0].source))
    seen = {layer.hardware.lower() for layer in data.measured_layers}
    silent = dict.fromkeys(place.hardware for place in data.places if place.hardware.lower() not in seen)
    if silent:
        question = f"No figure about these sources is kept for {', '.join(silent)}: may the envelope claim it?"
        made.append(Decision(question=question, source="fasttrack.toml"))
    slow = [record for record in data.exchanges if any(span.standing == "slower" for span in record.spans)]
    if slow:
        question = "With communication the path was slower than stock: what shows that it is not so where it is claimed?"
        made.append(Decision(question=question, source=slow[0].source))
    return tuple(made)
