"""The last rung: errors by decade of decode steps, and by position of the attended token."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from ...records import Frozen
from .calibration import extreme, median, quotients
from .checks import Check, Result, RungVerdict, Spread, Where
from .table import BANDS, band_name, quantiles
from .tokens import CANDIDATE, ORACLE, short

CONTEXT = "context"
ROUNDING = {"state": 8 * 2.0**-24}
"""Relative errors that say nothing: a step of the recurrence rounds some eight times (norms, gate, products, sum), and its
state is float32. Of the first steps runs of the stock path may be equal bit by bit, and no measure of noise"""

TWICE = 2.0
"""Times the noise below which an error of one piece alone says nothing: less than of a whole model, where roundings elsewhere add up"""


def context_names(contexts: Sequence[int]) -> dict[int, str]:
    """Length -> what its points are called."""
    return {context: f"{CONTEXT} of {context}" if len(contexts) > 1 else CONTEXT for context in contexts}


class Point(Frozen):
    """Errors at one number of steps, or at one position."""

    what: str
    """state or output of the recurrence; context of attention, with its length where there are several"""
    at: int
    """Steps done, or position of the attended token"""
    layer: int | None = None
    """The first one of the model that computes so"""
    errors: dict[str, tuple[float, ...]]
    """Path -> relative error in the norm of each (stream, head)"""


def moved(step: int, paths: Mapping[str, tuple[Tensor, Tensor]], layer: int | None = None) -> list[Point]:
    """Points behind `step` steps: path -> state [streams, heads, D, D] and output [streams, heads x D], the oracle's among
    them."""
    state, exact = paths[ORACLE]
    heads = state.shape[1]
    others = {name: pair for name, pair in paths.items() if name != ORACLE}

    def by_head(out: Tensor) -> Tensor:
        return out.unflatten(1, (heads, -1))

    return [
        Point(what="state", at=step, layer=layer, errors={name: _errors(own, state, 2) for name, (own, _) in others.items()}),
        Point(
            what="output", at=step, layer=layer,
            errors={name: _errors(by_head(out), by_head(exact), 2) for name, (_, out) in others.items()},
        ),
    ]  # fmt: skip


def attended(
    positions: Sequence[int], exact: Tensor, paths: Mapping[str, Tensor], what: str = CONTEXT, layer: int | None = None
) -> list[Point]:  # fmt: skip
    """Points of attention: row i of every context [rows, heads, latent] looked for the token at `positions[i]`."""
    return [
        Point(
            what=what, at=position, layer=layer,
            errors={name: _errors(got[row][None], exact[row][None], 2) for name, got in paths.items()},
        )
        for row, position in enumerate(positions)
    ]  # fmt: skip


def judged(points: Sequence[Point], tp: int) -> RungVerdict:
    """The verdict: medians and largest errors, point by point for steps, band by band of attended positions for attention."""
    checks: list[Check] = []
    for point in points:
        if not point.what.startswith(CONTEXT):
            noise = {name: np.array(errors) for name, errors in point.errors.items() if name != CANDIDATE}
            own = np.array(point.errors[CANDIDATE])
            own = np.where(own <= ROUNDING.get(point.what, 0.0), np.minimum(own, np.median(list(noise.values()), 0)), own)
            checks += _held(f"{point.what} after {point.at} steps", own, noise, [point])
    for what in dict.fromkeys(point.what for point in points if point.what.startswith(CONTEXT)):
        context = [point for point in points if point.what == what]
        for band in BANDS:
            inside = [point for point in context if band[0] <= point.at < (band[1] or np.inf)]
            if inside:
                columns = {name: np.array([point.errors[name] for point in inside]).ravel() for name in inside[0].errors}
                own = columns.pop(CANDIDATE)
                checks += _held(f"{what}, {band_name(band)}", own, columns, inside)
    failed = [check for check in checks if check.result is Result.FAIL]
    open_ = [check for check in checks if check.result is Result.INCONCLUSIVE]
    result = Result.FAIL if failed else Result.INCONCLUSIVE if open_ else Result.PASS
    return RungVerdict(
        rung="long_context", tp=tp, result=result, tokens=max((p.at for p in points), default=0), checks=tuple(checks),
        first=failed[0].where if failed else None, spreads=tuple(_spreads(points)),
        text=(failed or open_)[0].message if failed or open_ else "within the noise",
    )  # fmt: skip


def _spreads(points: Sequence[Point]) -> Iterator[Spread]:
    """Errors of each path by number of steps, and by band of attended positions."""
    pooled: dict[tuple[str, str, str], list[float]] = {}
    for point in points:
        if point.what.startswith(CONTEXT):
            band = band_name(next(b for b in BANDS if b[1] is None or point.at < b[1]))
        else:
            band = f"{point.at} step" + "s" * (point.at > 1)
        for path, errors in point.errors.items():
            pooled.setdefault((point.what, band, path), []).extend(errors)
    for (metric, band, path), errors in pooled.items():
        median, p999, maximum = quantiles(np.array(errors))
        yield Spread(metric=metric, band=band, path=path, values=len(errors), median=median, p999=p999, maximum=maximum)


def _held(name: str, own: np.ndarray, noise: Mapping[str, np.ndarray], points: Sequence[Point]) -> list[Check]:
    found = quotients(own, noise)
    middle, top = median(found), extreme(found, least=TWICE)
    row = top.first if top.first is not None else top.row
    point = points[row * len(points) // len(own)]
    where = Where(unit=name, layer=point.layer, position=point.at)
    return [
        Check(
            name=f"{name}, median", band="all", result=Result.FAIL if middle.exceeded else Result.PASS, values=len(own),
            candidate=middle.ratio, noise=1.0, limit=middle.limit, where=where if middle.exceeded else None,
            message=f"{name}: the median error is {middle.ratio:.3g} times the stock path's own, beyond {middle.limit:.3g}"
            if middle.exceeded else "",
        ),
        Check(
            name=f"{name}, largest", band="all", result=Result.FAIL if top.exceeded else Result.PASS, values=len(own),
            candidate=top.quotient, noise=1.0, limit=top.limit, where=where if top.exceeded else None,
            message=f"{name}: {top.quotient:.3g} times the noise, beyond {top.limit:.3g}" if top.exceeded else "",
        ),
    ]  # fmt: skip


def _errors(got: Tensor, exact: Tensor, rows: int) -> tuple[float, ...]:
    got, exact = got.double().flatten(rows), exact.double().flatten(rows)
    found = (got - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=2.0**-104)
    return tuple(map(short, found.flatten().tolist()))
