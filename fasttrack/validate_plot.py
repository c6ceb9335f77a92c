"""The numerics stage as drawings that read in black and white, from its records alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import long_rung, tokens, verdict
from fasttrack_validation.numerics.whole_model.table import Table, table
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, ORACLE

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
    for (rung, tp), units in groups.items():
        of = table(units)
        for name, fill in (("position", _position), ("flips", _flips), ("layers", _layers)):
            figure = Figure(figsize=(9, 4.5), layout="constrained")
            fill(figure, of)
            figure.suptitle(f"{rung}, TP {tp}: {len(of.tokens)} tokens", fontsize=11)
            drawn.append(to / f"{rung}-tp{tp}-{name}.svg")
            figure.savefig(drawn[-1], metadata={"Date": None})
    if long.exists():
        points = verdict.long_points(out)
        for what in dict.fromkeys(point.what for point in points):
            figure = Figure(figsize=(9, 4.5), layout="constrained")
            _long(figure, [point for point in points if point.what == what])
            figure.suptitle(f"long rung: {what}", fontsize=11)
            drawn.append(to / f"long-{what.replace(' ', '-')}.svg")
            figure.savefig(drawn[-1], metadata={"Date": None})
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


def _position(figure, of: Table) -> None:
    """Change of the log-prob against position, with the band of the noise."""
    axis = figure.subplots()
    order = np.argsort(of.position, kind="stable")
    at = of.position[order]
    noise = np.stack([of.change(path)[order] for path in of.noise]).clip(_SMALLEST)
    axis.fill_between(at, noise.min(0), noise.max(0), color="0.8", label="stock path and its repetitions")
    axis.plot(at, of.change(CANDIDATE)[order].clip(_SMALLEST), "k.", markersize=4, label="candidate")
    axis.set_yscale("log")
    axis.set_xlabel("position")
    axis.set_ylabel("|change of log-prob| against the oracle")
    axis.legend(frameon=False, fontsize=8)


def _flips(figure, of: Table) -> None:
    """How far the difference of the two likeliest logits moves, against the oracle's margin: above the line it flips."""
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
    axis.plot(ends, ends, "k--", linewidth=0.8, label="error = margin")
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
