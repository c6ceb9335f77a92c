"""Drawings of claims and records as SVG. Black and grey only: what is what is told by marker, dash and words, so that a
print, and any eye, reads the same."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UserError
from .check import Checked, check, check_measurement
from .claim import Claim
from .conditions import conditions, stated
from .derive import figure, floor_seconds
from .measurement import Measurement, Metric, Scope
from .render import name, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What may differ between the lines of one drawing, and along a line. Everything else is equal within a drawing.
_OF_A_LINE = ("identity.commit", "identity.build", "identity.released", "identity.engine", "identity.engine_version")
_ALONG = ("workload.concurrency",)
_LINES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ("-", "x"), ("--", "v"))


class Launch(NamedTuple):
    """One launch: how long it takes, and the least that the card allows."""

    name: str
    seconds: float
    floor_seconds: float


class Point(NamedTuple):
    """One load of one system."""

    concurrency: int
    tok_s_user: float
    tok_s_gpu: float


def write(items: Iterable[Claim | Measurement], out: Path) -> list[Path]:
    """Draws what can be drawn of claims and records into `out`, one SVG each: speed-ups over a claim's cells, launches
    against their floors (records of ops), tok/s/user against tok/s/GPU (records of servers). Returns the paths.

    Raises UserError where matplotlib is not installed.
    """
    items = list(items)
    drawn = [
        (f"{checked.claim.id}-speed-up", speed_up(checked))
        for checked in (check(one) for one in items if isinstance(one, Claim)) if checked.summary is not None
    ]  # fmt: skip
    # A record that breaks a rule by itself (failures, degenerate output, below the floor) is no point of a curve.
    records = [one for one in items if isinstance(one, Measurement) and not check_measurement(one)]
    if launches := launches_of(records):
        drawn.append(("launches-against-floor", against_floor(launches)))
    for number, lines in enumerate(frontiers(records)):
        drawn.append((f"user-against-gpu-{number}", frontier(lines)))
    out.mkdir(parents=True, exist_ok=True)
    return [_save(figure, out / f"{file}.svg") for file, figure in drawn]


def speed_up(checked: Checked) -> "Figure":
    """Ratios over the cells with their intervals and the line at one. A cell that loses is an open square and says so;
    one without a measurable change has no point and says that."""
    rows = checked.rows
    figure, axis = _figure(height=1.6 + 0.34 * len(rows))
    for place, row in enumerate(rows):
        if row.ratio is None:
            axis.annotate("no measurable change", (1, place), ha="center", va="center", fontsize=8)
            continue
        losing = row.ratio.value < 1
        span = [[row.ratio.value - row.ratio.low], [row.ratio.high - row.ratio.value]]
        axis.errorbar(
            row.ratio.value, place, xerr=span, fmt="s" if losing else "o", color="black", ecolor="black", capsize=3,
            markerfacecolor="white" if losing else "black",
        )  # fmt: skip
        if losing:
            axis.annotate(
                "slower", (row.ratio.value, place), (0, 6), textcoords="offset points", ha="center", fontsize=8
            )
    axis.axvline(1, color="black", linewidth=0.8)
    summary = checked.summary
    axis.axvline(summary.geometric_mean, color="0.4", linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(rows)), [row.cell for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.7)
    axis.set_xlabel(f"times better, {name(checked.metric)}; dashed: geometric mean {summary.geometric_mean:.2f}, "
                    f"worst {summary.worst:.2f}, best {summary.best:.2f}")  # fmt: skip
    axis.set_title(title(checked), fontsize=10, wrap=True)
    return figure


def against_floor(launches: Sequence[Launch]) -> "Figure":
    """Each launch's time, the floor within it in grey, and their ratio."""
    figure, axis = _figure(height=1.6 + 0.34 * len(launches))
    places = range(len(launches))
    axis.barh(places, [one.seconds * 1e6 for one in launches], color="white", edgecolor="black", label="measured")
    axis.barh(
        places, [one.floor_seconds * 1e6 for one in launches], color="0.6", edgecolor="black", hatch="//", label="floor"
    )
    for place, one in zip(places, launches, strict=True):
        axis.annotate(f"{one.seconds / one.floor_seconds:.2f} of the floor", (one.seconds * 1e6, place), (4, 0),
                      textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    axis.set_yticks(places, [one.name for one in launches])
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_xlabel("microseconds")
    axis.legend(frameon=False, fontsize=8)
    return figure


def frontier(lines: dict[str, list[Point]]) -> "Figure":
    """tok/s/user against tok/s/GPU, a line for each system, a point for each load, marked with its concurrency."""
    figure, axis = _figure(height=4)
    for (label, points), (dash, marker) in zip(lines.items(), _LINES * (1 + len(lines) // len(_LINES)), strict=False):
        axis.plot([one.tok_s_user for one in points], [one.tok_s_gpu for one in points], dash, marker=marker,
                  color="black", markerfacecolor="white", linewidth=1, label=label)  # fmt: skip
        for one in points:
            axis.annotate(
                str(one.concurrency), (one.tok_s_user, one.tok_s_gpu), (4, 4), textcoords="offset points", fontsize=7
            )
    axis.set_xlabel("tok/s/user")
    axis.set_ylabel("tok/s/GPU")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=8)
    return figure


def launches_of(records: Sequence[Measurement]) -> list[Launch]:
    """Records of ops whose time and floor are known. Nothing is drawn of one whose floor is not."""
    found = []
    for record in records:
        taken, least = figure(record, Metric.OP_TIME), floor_seconds(record)
        if record.scope is Scope.OP and taken is not None and least:
            found.append(Launch(record.workload.data or record.identity.commit or "op", taken, least))
    return found


def frontiers(records: Sequence[Measurement]) -> list[dict[str, list[Point]]]:
    """Lines that may stand in one drawing: all conditions but the code and the load are equal, or unknown in all."""
    fixed = [path for path in conditions() if path not in _OF_A_LINE + _ALONG]
    drawings: dict[str, dict[str, list[Point]]] = {}
    for record in records:
        user, gpu = figure(record, Metric.TOK_S_USER), figure(record, Metric.TOK_S_GPU)
        if record.scope is not Scope.SERVER or None in (user, gpu, record.workload.concurrency):
            continue
        drawing = drawings.setdefault(repr([stated(record, path) for path in fixed]), {})
        label = (
            ", ".join(str(value) for path in _OF_A_LINE if (value := stated(record, path)) is not None)
            or "unknown code"
        )
        drawing.setdefault(label, []).append(Point(record.workload.concurrency, user, gpu))
    return [{label: sorted(points) for label, points in lines.items()} for lines in drawings.values()]


def _figure(height: float) -> "tuple[Figure, Axes]":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing needs matplotlib, which is not installed", "pip install 'fasttrack[plot]'") from error
    made = Figure(figsize=(7, height), layout="constrained")
    axis = made.subplots()
    axis.grid(color="0.85", linewidth=0.5)
    axis.set_axisbelow(True)
    return made, axis


def _save(figure: "Figure", path: Path) -> Path:
    """Equal drawings give equal bytes: no date, and names inside that do not depend on the process."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
    return path
