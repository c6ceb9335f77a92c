"""The performance grid as a drawing that reads in black and white: times over rows, one panel a kind, TP and context."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from fasttrack_validation.errors import UserError
from fasttrack_validation.performance.records import Measured

from .grid import Cell

# (what, line, marker, filled): told apart by dash and marker, not by colour.
_LINES = (
    ("stock", "--", "s", "none"), ("specialised", "-", "o", "black"), ("target floor", ":", "_", "none"),
    ("physical floor", "-.", "x", "none"),
)  # fmt: skip
_COLUMNS = 2


def draw(cells: Sequence[Cell], title: str, path: Path) -> None:
    """Writes the measured cells of plain steps and of verify steps to `path`.

    Raises UserError without matplotlib, without a figure to draw, or for a kind of file that it cannot write.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing needs matplotlib, which is not installed", "pip install 'fasttrack[plot]'") from error
    panels = _panels(cells)
    if not panels:
        raise UserError("no cell is measured: there is nothing to draw", "run `fasttrack grid run` on such a machine")
    lines = -(-len(panels) // _COLUMNS)
    figure = Figure(figsize=(6 * _COLUMNS, 3.6 * lines), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots(lines, _COLUMNS, squeeze=False).flat
    for (name, found), axis in zip(panels.items(), axes, strict=False):
        rows = [cell.spec.rows for cell in found]
        for number, (what, dash, marker, filled) in enumerate(_LINES):
            axis.plot(
                rows, [_times(cell.outcome)[number] for cell in found], dash, marker=marker, color="black",
                markerfacecolor=filled, linewidth=1, label=what,
            )  # fmt: skip
        intervals = [cell.outcome.specialised.microseconds for cell in found]
        axis.errorbar(
            rows, [i.median for i in intervals],
            yerr=[[i.median - i.low for i in intervals], [i.high - i.median for i in intervals]],
            fmt="none", color="black", ecolor="black", capsize=2, linewidth=0.8,
        )  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_xticks(rows, [str(n) for n in rows])
        axis.set_ylim(bottom=0)
        axis.set_xlabel("rows of the step")
        axis.set_ylabel("microseconds")
        axis.set_title(name, fontsize=10)
        axis.grid(color="0.85", linewidth=0.5)
    for axis in list(axes):
        axis.set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=8)
    scopes = dict.fromkeys(cell.record.scope for found in panels.values() for cell in found)
    figure.suptitle("\n".join((title, *scopes)), fontsize=11)
    try:
        canvas.print_figure(path)
    except ValueError as error:
        raise UserError(f"cannot draw {path}: {error}", "name it .svg, .png or .pdf") from error


def _panels(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    panels: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if isinstance(cell.outcome, Measured):
            spec = cell.spec
            context = "" if spec.context is None else f", {spec.context} tokens cached"
            verify = "" if spec.width == 1 else f", verify {spec.width}"
            panels[f"{spec.kind}, TP {spec.tp}{context}{verify}"].append(cell)
    return {name: sorted(found, key=lambda cell: cell.spec.rows) for name, found in panels.items()}


def _times(outcome: Measured) -> tuple[float, float, float, float]:
    return (
        outcome.stock.microseconds.median, outcome.specialised.microseconds.median, outcome.target_floor_us,
        outcome.physical_floor_us,
    )  # fmt: skip
