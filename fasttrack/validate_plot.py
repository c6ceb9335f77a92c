"""The numerics stage as drawings that read in black and white, from its records alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import long_rung, tokens, verdict
from fasttrack_validation.numerics.whole_model.table import Table, table
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, ORACLE

_FIXED = {"svg.hashsalt": "fasttrack"}
"""Names inside a drawing are drawn by lot otherwise, and equal records give other bytes"""
LINE = "error = margin: below it the two likeliest cannot swap"
_SMALLEST = 1e-12
"""Where a logarithmic axis begins: errors of exactly nothing are drawn there"""


def ready(to: Path) -> None:
    """Makes the directory that figures go to, before anything runs for them. UserError where there can be none."""
    try:
        to.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--plot {to}: {error.strerror}", "name a directory that can be written to") from error


def draw(out: Path, to: Path) -> list[Path]:
    """Writes the figures of the records in `out` to the directory `to`; their files. None of ops, which have no tokens.

    Raises UserError without matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("drawing needs matplotlib, which is not installed", "pip install 'fasttrack[plot]'") from error
    files = [file for file in tokens.units(out) if file.name not in (verdict.OP, verdict.LONG)]
    long = out / verdict.LONG
    ready(to)
    groups: dict[tuple[str, int], list[tokens.UnitRecords]] = {}
    for file in files:
        records = tokens.read(file)
        groups.setdefault((records.header.rung, records.header.tp), []).append(records)
    drawn = []

    def kept(name: str, title: str, fill: Callable, *what) -> None:
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        fill(figure, *what)
        figure.suptitle(title, fontsize=11)
        drawn.append(to / name)
        figure.savefig(drawn[-1], metadata={"Date": None})

    with rc_context(_FIXED):
        for (rung, tp), units in groups.items():
            of = table(units).own
            for name, fill in (("position", _position), ("flips", _flips), ("layers", _layers)) if of.tokens else ():
                kept(f"{rung}-tp{tp}-{name}.svg", f"{rung}, TP {tp}: {len(of.tokens)} tokens", fill, of)
        points = verdict.long_points(out) if long.exists() else []
        for what in dict.fromkeys(point.what for point in points):
            kept(f"long-{what.replace(' ', '-')}.svg", f"long rung: {what}", _long, [point for point in points if point.what == what])
    return drawn


def _long(figure, points: Sequence[long_rung.Point]) -> None:
    """The middle and the largest error against steps done or the attended position; the stock path and its repetitions as a band."""
    axis = figure.subplots()
    at = np.array([point.at for point in points])
    noise = [path for path in points[0].errors if path != CANDIDATE]
    for statistic, style in ((np.median, "-"), (np.max, "--")):
        band = np.array([[statistic(point.errors[path]) for path in noise] for point in points]).clip(_SMALLEST)
        axis.fill_between(at, band.min(1), band.max(1), color="0.8", label=f"stock path and its repetitions, {statistic.__name__}")
        axis.plot(at, band.max(1), style, color="0.6", linewidth=0.8)
        if CANDIDATE in points[0].errors:
            own = np.array([statistic(point.errors[CANDIDATE]) for point in points]).clip(_SMALLEST)
            axis.plot(at, own, f"k.{style}", markersize=4, linewidth=0.8, label=f"candidate, {statistic.__name__}")
    axis.set_xscale("symlog", linthresh=1)
    axis.set_yscale("log")
    axis.set_xlabel("attended position" if points[0].what.startswith(long_rung.CONTEXT) else "decode steps")
    axis.set_ylabel("relative error against the oracle")
    axis.legend(frameon=False, fontsize=8)


def runs(positions: np.ndarray) -> list[np.ndarray]:
    """Positions that follow one another without a gap, together."""
    own = np.unique(positions)
    return np.split(own, np.flatnonzero(np.diff(own) > 1) + 1)


def _position(figure, of: Table) -> None:
    """Change of the log-prob against position, with the band of the noise where there are tokens, and nowhere else."""
    axis = figure.subplots()
    noise = np.stack([of.change(path) for path in of.noise]).clip(_SMALLEST)
    at, low, high = [], [], []
    for run in runs(of.position):
        columns = [noise[:, of.position == position] for position in run]
        least, largest = ([edge(column) for column in columns] for edge in (np.min, np.max))
        # Half a position on either side, so that one alone is seen; nothing behind it, so that no gap is bridged.
        at += [run[0] - 0.5, *run, run[-1] + 0.5, np.nan]
        low += [least[0], *least, least[-1], np.nan]
        high += [largest[0], *largest, largest[-1], np.nan]
    axis.fill_between(at, low, high, color="0.8", label="stock path and its repetitions")
    axis.plot(of.position, of.change(CANDIDATE).clip(_SMALLEST), "k.", markersize=4, label="candidate")
    axis.set_yscale("log")
    axis.set_xlabel("position")
    axis.set_ylabel("|change of log-prob| against the oracle")
    axis.legend(frameon=False, fontsize=8)


def _flips(figure, of: Table) -> None:
    """How far the difference of the two likeliest logits moves, against the oracle's margin, which is that difference.

    On the line the one is as large as the other. The two swap places only above it, and there only where the error narrows
    the margin; on it their logits have become equal in bfloat16. A flip below the line is a third token's.
    """
    axis = figure.subplots()
    margin = of.margin.clip(_SMALLEST)
    for path in of.noise:
        axis.plot(margin, of.margin_error[path].clip(_SMALLEST), ".", color="0.7", markersize=3)
    axis.plot(margin, of.margin_error[CANDIDATE].clip(_SMALLEST), "k.", markersize=4, label="candidate")
    flipped = of.top[CANDIDATE] != of.top[ORACLE]
    axis.plot(
        margin[flipped], of.margin_error[CANDIDATE][flipped].clip(_SMALLEST), "ko", fillstyle="none", label="flips"
    )
    ends = [margin.min(), margin.max()]
    axis.plot(ends, ends, "k--", linewidth=0.8, label=LINE)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("the oracle's margin (logit)")
    axis.set_ylabel("how far the path moves it; grey: noise")
    axis.legend(frameon=False, fontsize=8)


def _layers(figure, of: Table) -> None:
    """The candidate's error over the noise's, layer by position."""
    axis = figure.subplots()
    noise = np.sqrt(np.mean(np.stack([of.streams[path] for path in of.noise]) ** 2, 0)).clip(_SMALLEST)
    order = np.argsort(of.position, kind="stable")
    ratio = np.log2(of.streams[CANDIDATE] / noise).clip(-6, 6)[order].T
    image = axis.imshow(ratio, aspect="auto", origin="lower", cmap="gray_r", vmin=-1, vmax=5, interpolation="nearest")
    ticks = np.linspace(0, len(order) - 1, min(len(order), 9)).astype(int)
    axis.set_xticks(ticks, [str(of.position[order][tick]) for tick in ticks])
    axis.set_xlabel("position")
    axis.set_ylabel("layer")
    figure.colorbar(image, label="log2 of candidate's error over the noise")
