"""What follows from the records of a rung: checks with their figures, and where the first thing is that is not right.

Pure: records in, verdict out; the same records give the same bytes.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ..calibrate import MIN_POOLED
from .calibration import LEAST, MOST, NORMS, RATIO, Quotients, extreme, median, poisson_tail, quotients, tail, tail_limit
from .checks import Check, Flips, Result, RungVerdict, Spread, Where
from .scenario import Kind, RungName
from .table import BANDS, Table, band_name, quantiles, table
from .tokens import CANDIDATE, ORACLE, STOCK, UnitRecords

UNLIKELY = 1e-5
"""Probability below which a count of other experts is no accident"""

BLIND, FEW = 4.0, 8
"""A median of `FEW` tokens and more that has to be beyond `BLIND` times the noise to fail holds nothing"""
BIASED = 8.0
"""Standard errors of a symbol's mean error that say nothing: tokens of a batch hang together, and paths round at other places"""
SOME = 20
"""Figures of equal runs that went to other experts, below which they say nothing of what that does"""
STATE = 10.0
"""Times the noise that a state may be off: one token that went to other experts, in a tie, leaves several behind for as
long as a head remembers. What a wrong slot, a wrong page or a missing roll-back leaves is a hundred"""


def judged(units: Sequence[UnitRecords]) -> RungVerdict:
    """The verdict of all units of one rung and TP."""
    # Rows of the stock path would water down every median.
    of, header = table(units).own, units[0].header
    checks, spreads = [_ran(units)], []
    for band in BANDS:
        inside = (of.position >= band[0]) & (of.position < (band[1] or np.inf))
        if inside.any():
            part = of.where(inside)
            checks += _band(part, band_name(band))
            spreads += _spreads(part, band_name(band))
    flips, flip_checks = _flips(of, header.rung) if len(of.tokens) else (None, [])
    checks += [*flip_checks, *_states(units), *_touched(units)]
    failed = [check for check in checks if check.result is Result.FAIL]
    open_ = [check for check in checks if check.result is Result.INCONCLUSIVE]
    result = Result.FAIL if failed else Result.INCONCLUSIVE if open_ else Result.PASS
    first = place(failed)
    return RungVerdict(
        rung=header.rung, tp=header.tp, result=result, tokens=len(of.tokens), checks=tuple(checks), flips=flips,
        spreads=tuple(spreads), first=first, text=(failed or open_ or [Check(
            name="", band="", result=Result.PASS, values=0, candidate=0, noise=0, limit=0, message=_went_well(flips)
        )])[0].message,
    )  # fmt: skip


def _went_well(flips: Flips | None) -> str:
    if not flips or not flips.diverged:
        return "within the noise"
    said = {path: "none" if at is None else f"at {at}" for path, at in flips.diverged.items()}
    equal = ", ".join(at for path, at in said.items() if path != CANDIDATE)
    return f"within the noise; first other token of its free run: {said[CANDIDATE]}, of equal runs: {equal}"


def _ran(units: Sequence[UnitRecords]) -> Check:
    """Whether the candidate itself ran what it is for: decode steps. Prompts may be the stock path's."""
    rows = [(unit.header.unit, token) for unit in units for step in unit.steps if step.kind == Kind.DECODE for token in step.tokens]
    back = [(unit, token) for unit, token in rows if not token.own]
    bad = bool(back) or not rows
    place = Where(unit=back[0][0], position=back[0][1].position, request=back[0][1].request) if back else None
    return Check(
        name="rows of decode steps that the candidate ran", band="all", result=Result.FAIL if bad else Result.PASS,
        values=len(rows), candidate=len(rows) - len(back), noise=0, limit=len(rows), where=place,
        message=f"{len(back)} of {len(rows)} rows of decode steps ran on the stock path: of these nothing is shown" if bad else "",
    )  # fmt: skip


def place(failed: Iterable[Check]) -> Where | None:
    """The earliest layer that a failed check names, and the first position there; else the first place named."""
    named = [check.where for check in failed if check.where]
    if not named:
        return None
    layered = [where for where in named if where.layer is not None]
    if not layered:
        return named[0]
    layer = min(where.layer for where in layered)
    here = [where for where in layered if where.layer == layer]
    positions = [where for where in here if where.position is not None] or [w for w in named if w.position is not None]
    best = min(positions, key=lambda w: w.position) if positions else here[0]
    pool = next((where.pool for where in here if where.pool), None)
    return best.model_copy(update={"layer": layer, "pool": pool})


def _where(of: Table, row: int, layer: int | None = None) -> Where:
    token = of.tokens[row]
    return Where(unit=of.units[row], layer=layer, position=token.position, request=token.request)


def _band(of: Table, band: str) -> list[Check]:
    checks = [_finite(of, band)]
    rms = {path: np.sqrt(np.mean(np.minimum(of.signed[path], 1e30) ** 2, -1)) for path in of.paths}
    whole = {path: of.on(path) for path in of.paths}
    # Small changes d of logits change log p by d less its mean under p, and give KL = var_p(d) / 2.
    noise = of.logit_noise()
    certain = -np.expm1(of.log_prob["oracle"])
    logits = _quotients(rms, whole)
    checks += _held(of, band, "logits", logits, None)
    changes = _quotients({path: of.change(path) for path in of.paths}, whole, noise * certain.clip(1e-9))
    checks += _held(of, band, "log_prob", changes, None, MOST)
    checks += _held(of, band, "divergence", _quotients(of.divergence, whole, noise**2 * of.spread.clip(1e-9) / 2), None, MOST)
    checks += [*_p999(of, band, whole), *_units(of, band, logits), *_symbols(of, band, whole)]
    for layer in range(of.streams[STOCK].shape[1]):
        on = {path: of.on(path, layer) for path in of.paths}
        columns = {path: of.streams[path][:, layer] for path in of.paths}
        checks += _held(of, band, f"stream behind layer {layer}", _quotients(columns, on), layer)
        if of.router["oracle"][:, layer].any():
            on = {path: of.on(path, layer, router=True) for path in of.paths}
            columns = {path: of.router[path][:, layer] for path in of.paths}
            scale = of.stream_noise(layer - 1) if layer else np.ones(len(of.tokens))
            moved = _quotients(columns, on, scale)
            checks += _held(of, band, f"router of layer {layer}", moved, layer)
            checks += _experts(of, band, layer, moved, on[CANDIDATE], scale)
    return checks


def _quotients(columns: dict[str, np.ndarray], on: dict[str, np.ndarray], scale: np.ndarray | None = None) -> Quotients:
    """Of all paths' columns [tokens], where each went to the oracle's experts (`on`)."""
    noise = {path: column for path, column in columns.items() if path != CANDIDATE}
    return quotients(np.minimum(columns[CANDIDATE], 1e30), noise, on, scale, own=on[CANDIDATE])


def _finite(of: Table, band: str) -> Check:
    bad = np.flatnonzero(~np.isfinite(of.errors[CANDIDATE]).all(-1))
    return Check(
        name="finite", band=band, result=Result.FAIL if len(bad) else Result.PASS, values=of.errors[CANDIDATE].size,
        candidate=len(bad), noise=0, limit=0, where=_where(of, int(bad[0])) if len(bad) else None,
        message=f"logits of {len(bad)} tokens are not finite" if len(bad) else "",
    )  # fmt: skip


def _held(of: Table, band: str, name: str, found: Quotients, layer: int | None, most: float = NORMS) -> list[Check]:
    """Median and largest quotient of one column; `most` as in `extreme`."""
    count = len(found.own)
    if not count:
        # Where all went to other experts the router's margins and `_elsewhere` say what there is to say.
        return [Check(
            name=f"{name}, largest", band=band, result=Result.INCONCLUSIVE, values=0, candidate=0, noise=1.0, limit=0,
            message=f"{name}: at no token did the candidate and equal runs go to the oracle's experts: run more tokens",
        )]  # fmt: skip
    middle, top = median(found), extreme(found, most=most)
    # A median that may be several times the noise by chance alone says nothing: where few tokens are, the largest holds them.
    blind = name == "logits" and middle.limit > BLIND and count >= FEW
    result = Result.FAIL if middle.exceeded else Result.INCONCLUSIVE if blind else Result.PASS
    message = f"{name}: the median error is {middle.ratio:.3g} times that of equal runs of the stock path, beyond {middle.limit:.3g}"
    if blind:
        message = f"{name}: of {count} tokens a median of {middle.limit:.3g} times that of equal runs may be chance: run more tokens"
    where = _where(of, top.first if top.first is not None else top.row, layer)
    return [
        Check(
            name=f"{name}, median", band=band, result=result, values=count, candidate=middle.ratio, noise=1.0,
            limit=min(middle.limit, 1e30), message=message if result is not Result.PASS else "",
            where=where if result is Result.FAIL else None,
        ),
        Check(
            name=f"{name}, largest", band=band, values=count, candidate=top.quotient, noise=1.0, limit=top.limit,
            result=Result.FAIL if top.exceeded else Result.PASS, where=where if top.exceeded else None,
            message=f"{name}: {top.quotient:.3g} times the noise of its token, beyond {top.limit:.3g}" if top.exceeded else "",
        ),
    ]  # fmt: skip


def _units(of: Table, band: str, logits: Quotients) -> list[Check]:
    """The median of each unit alone: an error in one kind of step is none of the others'."""
    names, checks = np.array(of.units), []
    for unit in dict.fromkeys(of.units):
        own = logits.of(names == unit)
        if len(own.own) < FEW or not sum(map(len, own.others)):
            continue
        middle = median(own)
        checks.append(Check(
            name=f"logits of {unit}, median", band=band, result=Result.FAIL if middle.exceeded else Result.PASS,
            values=len(own.own), candidate=middle.ratio, noise=1.0, limit=middle.limit,
            where=_where(of, int(own.rows[np.argmax(own.own)])) if middle.exceeded else None,
            message=f"logits of {unit}: the median error is {middle.ratio:.3g} times that of equal runs, beyond {middle.limit:.3g}"
            if middle.exceeded else "",
        ))  # fmt: skip
    return checks


def _symbols(of: Table, band: str, on: dict[str, np.ndarray]) -> list[Check]:
    """The mean signed error of each symbol's logit: one that is always off in the same direction hides in a norm over all of them."""
    usual = np.sqrt(np.mean(np.concatenate([of.signed[path][on[path]] for path in of.noise]) ** 2, 0)) if any(
        on[path].any() for path in of.noise
    ) else None  # fmt: skip
    if usual is None or on[CANDIDATE].sum() < FEW or any(on[path].sum() < FEW for path in of.noise):
        return []
    mean = {
        path: np.abs(np.mean(of.signed[path][mask], 0)) / usual.clip(np.finfo(np.float32).tiny) * np.sqrt(mask.sum())
        for path, mask in on.items()
    }  # fmt: skip
    limit = max(tail_limit(np.stack([mean[path] for path in of.noise]), len(usual)), BIASED)
    symbol = int(np.argmax(np.where(np.isfinite(mean[CANDIDATE]), mean[CANDIDATE], np.inf)))
    worst = float(min(mean[CANDIDATE][symbol], 1e30))
    fail = not worst <= limit
    row = int(np.flatnonzero(on[CANDIDATE])[np.argmax(np.abs(of.signed[CANDIDATE][on[CANDIDATE], symbol]))])
    return [
        Check(
            name="logits of one symbol, mean", band=band, result=Result.FAIL if fail else Result.PASS, values=len(usual),
            candidate=worst, noise=1.0, limit=limit, where=_where(of, row) if fail else None,
            message=f"logits of symbol {symbol}: their mean error is {worst:.3g} standard errors, beyond {limit:.3g}" if fail else "",
        )
    ]  # fmt: skip


def _p999(of: Table, band: str, on: dict[str, np.ndarray]) -> list[Check]:
    """p99.9 of all logits' errors, where there are enough of them."""
    values = int(on[CANDIDATE].sum()) * of.signed[CANDIDATE].shape[1]
    if values < MIN_POOLED or not all(on[path].any() for path in of.noise):
        return []
    # Equal runs of the stock path differ among themselves; the largest of them is the stock path's own as well.
    errors = of.errors
    found = tail(errors[CANDIDATE], {path: errors[path] for path in of.noise}, on, on[CANDIDATE])
    # What the candidate's may be: 1.25 times, and as far beyond as resampled tokens leave open.
    limit = RATIO * found.noise * max(found.ratio / max(found.lower, 1e-9), 1.0) if found.ratio > RATIO else RATIO * found.noise
    fail = found.lower > RATIO
    return [
        Check(
            name="logits, p99.9", band=band, result=Result.FAIL if fail else Result.PASS, values=values, candidate=found.candidate,
            noise=found.noise, limit=limit, where=_where(of, int(np.argmax(errors[CANDIDATE].max(-1) * on[CANDIDATE]))) if fail else None,
            message=f"logits: p99.9 of the relative error is {found.candidate:.3g}, of equal runs {found.noise:.3g} at most"
            if fail else "",
        )
    ]  # fmt: skip


def _experts(of: Table, band: str, layer: int, moved: Quotients, on: np.ndarray, scale: np.ndarray) -> list[Check]:
    """Other experts than the oracle's: ties where its margin lies within the noise, else bugs; and how many there are."""
    own, margin = of.experts[CANDIDATE][:, layer], of.router["oracle"][:, layer]
    limit = tail_limit(np.concatenate(moved.others), len(own))
    bugs = np.flatnonzero(own & on & (margin / scale > limit))
    count, mean, many = _many(of.experts, of.noise, layer)
    # Rows that are kept for what is behind them, by themselves: whoever went elsewhere there is let off behind them.
    *before, more = _many(of.before, of.noise, layer)
    message = ""
    if len(bugs):
        message = f"layer {layer} sends {len(bugs)} tokens to other experts though their margin is beyond {limit:.3g} times the noise"
    elif many:
        message = f"layer {layer} sends {count} tokens to other experts, equal runs of the stock path {mean:.3g}"
    elif more:
        message = f"layer {layer} sends {before[0]} of the rows before to other experts, equal runs of the stock path {before[1]:.3g}"
    row = int(bugs[0]) if len(bugs) else int(np.argmax(own))
    return [
        Check(
            name=f"experts of layer {layer}", band=band, result=Result.FAIL if message else Result.PASS,
            values=len(own), candidate=count, noise=mean, limit=limit, message=message,
            where=_where(of, row, layer) if message else None,
        )
    ]  # fmt: skip


def _many(experts: dict[str, np.ndarray], noise: Sequence[str], layer: int) -> tuple[int, float, bool]:
    """Rows [rows, layers] that the candidate sends to other experts, how many equal runs do, and whether that is no accident."""
    mean = max(float(np.mean([experts[path][:, layer].sum() for path in noise])), 1.0)
    count = int(experts[CANDIDATE][:, layer].sum())
    return count, mean, poisson_tail(count, RATIO * mean) < UNLIKELY


def _flips(of: Table, rung: str) -> tuple[Flips, list[Check]]:
    """Ties and bugs: a flip that equal runs of the stock path could have made, and one that they could not.

    How far those move the difference of the oracle's two likeliest logits says so, and a tolerance of 1.25: in multiples of the
    noise of a logit at the token where a run went to the oracle's experts; elsewhere in multiples of the logits' size, for
    what other experts do to a token has nothing to do with roundings.
    """
    scale, settled = of.logit_noise(), of.on(CANDIDATE)
    on = np.stack([of.on(path) for path in of.noise])
    moved = np.stack([of.margin_error[path] for path in of.noise])
    limit = RATIO * max(float((moved / scale)[on].max(initial=0.0)), LEAST)
    elsewhere = (moved / of.size)[~on]
    other = RATIO * float(elsewhere.max(initial=0.0))
    oracle = of.top[ORACLE]
    flipped = {path: of.top[path] != oracle for path in of.paths}
    # Whoever went to other experts has the noise of its roundings besides.
    beyond = of.margin > np.where(settled, limit * scale, np.maximum(other * of.size, limit * scale))
    bugs = np.flatnonzero(flipped[CANDIDATE] & beyond)
    flips = Flips(
        tokens=len(of.tokens), flips={path: int(mask.sum()) for path, mask in flipped.items()},
        ties=int(flipped[CANDIDATE].sum()) - len(bugs), bugs=len(bugs), margin_limit=limit, other_experts_limit=other,
        diverged=_diverged(of, flipped) if rung == RungName.GREEDY else {},
    )  # fmt: skip
    # What other experts do cannot be said from hardly anything.
    told = [row for row in bugs if settled[row] or elsewhere.size >= SOME]
    result = Result.FAIL if told else Result.INCONCLUSIVE if len(bugs) else Result.PASS
    message = ""
    if told:
        message = f"{len(bugs)} tokens flip although the oracle's margin is beyond what equal runs move it by"
    elif len(bugs):
        message = f"{len(bugs)} tokens flip behind other experts, of which equal runs show too few to tell: run more tokens"
    return flips, [
        Check(
            name="top-1 flips beyond the noise", band="all", result=result, values=len(of.tokens), candidate=len(bugs), noise=0,
            limit=0, where=_where(of, int((told or bugs)[0])) if len(bugs) else None, message=message,
        ),
        *_elsewhere(of),
    ]  # fmt: skip


def _elsewhere(of: Table) -> list[Check]:
    """The largest error of logits where a path went to other experts, which the other checks of largest errors leave out."""
    error = {path: np.sqrt(np.mean(np.minimum(of.signed[path], 1e30) ** 2, -1)) for path in of.paths}
    off = {path: ~of.on(path) for path in of.paths}
    noise = np.concatenate([error[path][off[path]] for path in of.noise])
    own, rows = error[CANDIDATE][off[CANDIDATE]], np.flatnonzero(off[CANDIDATE])
    if noise.size < SOME or not len(own):
        return []
    limit, row = tail_limit(noise, len(own), NORMS), int(np.argmax(own))
    fail = not own[row] <= limit
    return [
        Check(
            name="logits beside other experts, largest", band="all", result=Result.FAIL if fail else Result.PASS, values=len(own),
            candidate=float(own[row]), noise=float(noise.max()), limit=limit, where=_where(of, int(rows[row])) if fail else None,
            message=f"logits: a relative error of {own[row]:.3g} where experts differ, beyond {limit:.3g}" if fail else "",
        )
    ]  # fmt: skip


def _diverged(of: Table, flipped: dict[str, np.ndarray]) -> dict[str, int | None]:
    """Path -> the position at which its own free run leaves the oracle's: up to there both are given the same tokens."""
    first = {path: np.flatnonzero(mask) for path, mask in flipped.items()}
    return {path: int(of.position[rows].min()) if len(rows) else None for path, rows in first.items()}


def _states(units: Sequence[UnitRecords]) -> list[Check]:
    """What units leave behind for their requests."""
    rows = [
        (unit.header.unit, pool, unit.end)
        for unit in units if unit.end for pool in unit.end.states[CANDIDATE]
    ]  # fmt: skip
    if not rows:
        return []
    paths = [path for path in rows[0][2].states if path != CANDIDATE]
    checks = []
    for kind in ("recurrent_state", "conv_state", "cache"):
        chosen = [row for row in rows if row[1].endswith(kind)]
        if not chosen:
            continue
        own = np.array([end.states[CANDIDATE][pool] for _, pool, end in chosen])
        noise = {path: np.array([end.states[path][pool] for _, pool, end in chosen]) for path in paths}
        found = quotients(own, noise)
        middle, top = median(found), extreme(found, least=STATE)
        beyond = top.first if top.first is not None else top.row
        unit, pool, end = chosen[beyond]
        off = end.rows[CANDIDATE].get(pool, -1)
        request, name = pool.split()
        where = Where(unit=unit, layer=int(name.split(".")[0]), request=int(request), pool=kind,
                      position=off if off >= 0 else None)  # fmt: skip
        checks.append(Check(
            name=f"{kind} at the end", band="all", result=Result.FAIL if top.exceeded else Result.PASS,
            values=len(own), candidate=top.quotient, noise=1.0, limit=top.limit, where=where if top.exceeded else None,
            message=f"{kind} of layer {where.layer} is {top.quotient:.3g} times as far off as equal runs, the limit is "
            f"{top.limit:.3g}" if top.exceeded else "",
        ))  # fmt: skip
        checks.append(Check(
            name=f"{kind} at the end, median", band="all", result=Result.FAIL if middle.exceeded else Result.PASS,
            values=len(own), candidate=middle.ratio, noise=1.0, limit=min(middle.limit, 1e30), where=where if middle.exceeded else None,
            message=f"{kind}: the median error is {middle.ratio:.3g} times that of equal runs, beyond {middle.limit:.3g}"
            if middle.exceeded else "",
        ))  # fmt: skip
    return checks


def _touched(units: Sequence[UnitRecords]) -> list[Check]:
    """Memory that nobody owns."""
    ended = [unit for unit in units if unit.end]
    bad = [(unit.header.unit, what) for unit in ended for what in unit.end.touched[CANDIDATE]]
    return [
        Check(
            name="memory nobody owns", band="all", result=Result.FAIL if bad else Result.PASS, values=len(ended),
            candidate=len(bad), noise=0, limit=0,
            where=Where(unit=bad[0][0], layer=int(bad[0][1].split(".")[0])) if bad else None,
            message=f"the null page of {bad[0][1]} was written" if bad else "",
        )
    ]  # fmt: skip


def _spreads(of: Table, band: str) -> list[Spread]:
    found = []
    metrics = {"logits": of.errors, "log_prob": {p: of.change(p) for p in of.paths}, "divergence": of.divergence}
    for metric, columns in metrics.items():
        for path in of.paths:
            median, p999, maximum = (min(v, 1e30) for v in quantiles(columns[path]))
            found.append(Spread(
                metric=metric, band=band, path=path, values=columns[path].size, median=median, p999=p999, maximum=maximum
            ))  # fmt: skip
    return found
