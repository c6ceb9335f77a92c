"""From the scores of all arms to a verdict. Pure; the rules for medians, largest errors and flips are whole_model's.

The reference is the oracle server where there is one, else the stock server. The noise is what the stock server does
when it is asked again, and what control servers (other builds of the stock path that are known to be right) do. Servers
that repeat themselves to the last bit show no noise: a candidate that differs is then neither passed nor failed by what
needs noise.

Each noise arm is a comparison of its own, and a candidate is held to the arm that shows most. Pooled, a server that
repeats itself would count as noise of nothing, and take from what a control shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...records import Frozen
from ..calibrate import MIN_POOLED
from ..whole_model.calibration import RATIO, largest, tail_limit, typical
from ..whole_model.findings import Check, Flips, Result, Spread, Where
from ..whole_model.table import BANDS, band_name, quantiles
from .journal import Piece

ORACLE, STOCK, CANDIDATE = "oracle", "stock", "candidate"
WORST = 10
LEAST = 32
"""Tokens, with fewer of which nothing passes: a median of a few is as near to the noise by chance as not"""
_EASY = 0.1
"""Of the usual noise: as in whole_model; and of the loudest arm's, with less of which an arm says nothing of a token"""
_NO_NOISE = (
    "the stock server repeats itself to the last bit, and nothing else says what noise is: name --oracle-url or "
    "--control-url"
)


class Worst(Frozen):
    """One of the tokens that moved most."""

    prompt: str
    position: int
    token: int
    before: tuple[int, ...]
    """Up to eight tokens before it"""
    reference: float
    stock: float
    candidate: float


class ServersVerdict(Frozen):
    """What came of a comparison of servers."""

    result: Result
    reference: str
    tokens: int
    noise: tuple[str, ...]
    deterministic: bool
    """Every noise arm is the stock server to the last bit"""
    checks: tuple[Check, ...]
    flips: Flips
    spreads: tuple[Spread, ...]
    worst: tuple[Worst, ...]
    text: str


@dataclass(frozen=True)
class Scores:
    """All scored tokens as columns; rows are those that every arm has."""

    prompts: tuple[str, ...]
    positions: np.ndarray
    tokens: np.ndarray
    log_probs: Mapping[str, np.ndarray]
    tops: Mapping[str, list[dict[int, float]]]


def scores(pieces: Iterable[Piece], arms: Sequence[str]) -> Scores:
    """Raises ValueError unless all arms scored the same tokens of the same places."""
    by_arm: dict[str, dict[tuple[str, int], tuple[int, float, dict[int, float]]]] = {arm: {} for arm in arms}
    for piece in pieces:
        for offset, row in enumerate(zip(piece.tokens, piece.log_probs, map(dict, piece.top), strict=True)):
            by_arm[piece.arm][piece.prompt, piece.start + offset] = row
    places = sorted(by_arm[STOCK])
    for arm, rows in by_arm.items():
        if sorted(rows) != places or any(rows[at][0] != by_arm[STOCK][at][0] for at in places):
            raise ValueError(f"{arm} scored other tokens than {STOCK}")
    return Scores(
        tuple(prompt for prompt, _ in places), np.array([at for _, at in places]),
        np.array([by_arm[STOCK][at][0] for at in places]),
        {arm: np.array([rows[at][1] for at in places]) for arm, rows in by_arm.items()},
        {arm: [rows[at][2] for at in places] for arm, rows in by_arm.items()},
    )  # fmt: skip


def judged(of: Scores) -> ServersVerdict:
    """The verdict over all scored tokens."""
    reference = ORACLE if ORACLE in of.log_probs else STOCK
    noise = [arm for arm in of.log_probs if arm not in (reference, CANDIDATE, ORACLE)]
    paths = [*noise, CANDIDATE]
    change = {arm: np.abs(of.log_probs[arm] - of.log_probs[reference]) for arm in paths}
    best = [sorted(top.items(), key=lambda pair: (-pair[1], pair[0])) for top in of.tops[reference]]
    margin = np.array([row[0][1] - row[1][1] for row in best])
    moved = {arm: np.array([_moved(*pair) for pair in zip(best, of.tops[arm], strict=True)]) for arm in paths}
    diverged = {
        arm: np.array([_divergence(*pair) for pair in zip(of.tops[reference], of.tops[arm], strict=True)])
        for arm in paths
    }
    deterministic = all(
        np.array_equal(of.log_probs[arm], of.log_probs[STOCK]) and of.tops[arm] == of.tops[STOCK] for arm in noise
    )
    silent = deterministic and reference == STOCK
    samples = _samples(of, change, noise)
    usual = _usual(of.tops[reference], [of.tops[arm] for arm in samples or noise])
    checks, spreads = [], []
    for band in BANDS:
        inside = (of.positions >= band[0]) & (of.positions < (band[1] or np.inf))
        for name, columns in (("log_prob", change), ("divergence", diverged)):
            if inside.any():
                cut = {arm: column[inside] for arm, column in columns.items()}
                scale = usual[inside] if name == "log_prob" else None
                rows = np.flatnonzero(inside)
                checks += _held(of, rows, band_name(band), name, cut, noise, samples, scale, deterministic, silent)
                spreads += [_spread(name, band_name(band), arm, column) for arm, column in cut.items()]
    flips, check = _flips(of, best, margin, moved, noise, silent)
    checks.append(check)
    results = [check.result for check in checks]
    result = next((r for r in (Result.FAIL, Result.INCONCLUSIVE) if r in results), Result.PASS)
    text = next((c.message for c in checks if c.result is result and c.message), "within the noise")
    if result is Result.PASS and len(of.tokens) < LEAST:
        result, text = Result.INCONCLUSIVE, f"{len(of.tokens)} tokens say little: give prompts of {LEAST} and more"
    return ServersVerdict(
        result=result, reference=reference, tokens=len(of.tokens), noise=tuple(noise), deterministic=deterministic,
        checks=tuple(checks), flips=flips, spreads=tuple(spreads), text=text,
        worst=_worst(of, change[CANDIDATE], reference),
    )  # fmt: skip


def _held(
    of: Scores, rows: np.ndarray, band: str, name: str, columns: Mapping[str, np.ndarray], noise: Sequence[str],
    samples: Sequence[str], scale: np.ndarray | None, deterministic: bool, silent: bool,
) -> list[Check]:  # fmt: skip
    """Median, p99.9 and maximum of one metric in one band."""
    own, others = columns[CANDIDATE], {arm: columns[arm] for arm in noise}
    loudest = max(others, key=lambda arm: np.median(others[arm]))
    middle = typical(own, {loudest: others[loudest]})
    state = {False: Result.PASS, True: Result.FAIL, None: Result.INCONCLUSIVE}[middle.exceeded]
    if silent and state is Result.FAIL:
        state = Result.INCONCLUSIVE
    told = f"{name}, {band}: the median error is {middle.candidate:.3g}, of the noise {middle.noise:.3g}"
    limit = RATIO * middle.noise
    found = [_check(f"{name}, median", band, state, own, middle.candidate, middle.noise, limit, told, silent)]
    if own.size >= MIN_POOLED:
        tail, each = quantiles(own, (0.999,))[0], max(quantiles(column, (0.999,))[0] for column in others.values())
        state = Result.PASS if tail <= RATIO * each else Result.INCONCLUSIVE if silent else Result.FAIL
        told = f"{name}, {band}: p99.9 is {tail:.3g}, of the noise {each:.3g}"
        found.append(_check(f"{name}, p99.9", band, state, own, tail, each, RATIO * each, told, silent))
    at_most = max(float(column.max()) for column in others.values())
    if deterministic or len(samples) < 2:
        # Seen once, the noise at a token does not say how hard the token is. A control's tail over all tokens says a little.
        stock_alone = deterministic or len(others) == 1
        limit = RATIO * at_most if stock_alone else max(tail_limit(column, own.size) for column in others.values())
        row, value = int(own.argmax()), float(own.max())
        state, another = Result.PASS if value <= limit else Result.INCONCLUSIVE, "" if stock_alone else "another "
        told = f"{name}, {band}: the largest error is {value:.3g}, of the noise {at_most:.3g}, the limit is {limit:.3g}; one sample "
        told += f"of noise does not say how much larger it may be: name {another}--control-url"
    else:
        top = largest(own, {arm: columns[arm] for arm in samples}, scale)
        row, value, limit = top.row if top.first is None else top.first, top.quotient, top.limit
        state = Result.FAIL if top.exceeded else Result.PASS
        told = f"{name}, {band}: {value:.3g} times the noise at its token, the limit is {limit:.3g}"
    where = Where(unit=of.prompts[rows[row]], position=int(of.positions[rows[row]]))
    check = _check(f"{name}, largest", band, state, own, value, at_most, limit, told, silent)
    found.append(check.model_copy(update={"where": where if state is not Result.PASS else None}))
    return found


def _check(
    name: str, band: str, result: Result, values: np.ndarray, own: float, noise: float, limit: float, told: str,
    silent: bool,
) -> Check:  # fmt: skip
    message = "" if result is Result.PASS else f"{told}; {_NO_NOISE}" if silent else told
    return Check(
        name=name, band=band, result=result, values=values.size, candidate=min(own, 1e30), noise=min(noise, 1e30),
        limit=min(limit, 1e30), message=message,
    )  # fmt: skip


def _flips(
    of: Scores, best: list, margin: np.ndarray, moved: Mapping[str, np.ndarray], noise: Sequence[str], silent: bool,
) -> tuple[Flips, Check]:  # fmt: skip
    """Other likeliest tokens than the reference's: ties within the noise of its margin, and bugs beyond it."""
    limit = max(tail_limit(moved[arm], len(margin)) for arm in noise)
    first = [row[0][0] for row in best]
    flipped = {
        arm: np.array([_likeliest(top) != token for top, token in zip(of.tops[arm], first, strict=True)])
        for arm in moved
    }
    bugs = np.flatnonzero(flipped[CANDIDATE] & (margin > limit))
    flips = Flips(
        tokens=len(margin), flips={arm: int(mask.sum()) for arm, mask in flipped.items()},
        ties=int(flipped[CANDIDATE].sum()) - len(bugs), bugs=len(bugs), margin_limit=limit,
    )  # fmt: skip
    result = Result.PASS if not len(bugs) else Result.INCONCLUSIVE if silent else Result.FAIL
    told = f"{len(bugs)} tokens flip although the reference's margin exceeds {limit:.3g}"
    check = _check("top-1 flips beyond the noise", "all", result, margin, len(bugs), 0, 0, told, silent)
    where = Where(unit=of.prompts[bugs[0]], position=int(of.positions[bugs[0]])) if len(bugs) else None
    return flips, check.model_copy(update={"where": where})


def _samples(of: Scores, change: Mapping[str, np.ndarray], noise: Sequence[str]) -> list[str]:
    """The noise arms that say what is usual at a token: none that repeats another, and none that hardly ever moves."""
    typically = {arm: float(np.median(change[arm])) for arm in noise}
    least, found = _EASY * max(typically.values()), []
    for arm in noise:
        again = any(np.array_equal(of.log_probs[arm], of.log_probs[one]) and of.tops[arm] == of.tops[one] for one in found)
        if change[arm].any() and typically[arm] >= least and not again:
            found.append(arm)
    return found


def _usual(reference: list[dict[int, float]], others: Sequence[list[dict[int, float]]]) -> np.ndarray:
    """[tokens]: the noise's root mean square over all candidates of a token, which one score may hit by luck; a tenth
    of the usual one at least."""
    found = np.array([
        np.sqrt(np.mean([(top[token] - row[token]) ** 2 for top in each for token in row if token in top] or [0.0]))
        for row, *each in zip(reference, *others, strict=True)
    ])  # fmt: skip
    return found.clip(max(_EASY * float(np.median(found)), float(np.finfo(np.float32).tiny)))


def _likeliest(top: dict[int, float]) -> int:
    """The lowest id of equals."""
    return max(top, key=lambda token: (top[token], -token))


def _moved(best: list[tuple[int, float]], top: dict[int, float]) -> float:
    """How far the difference of the reference's two likeliest tokens is moved, in nats. Of a token that is not among
    the candidates nothing is known but that it is less likely than the last: this gives a lower bound."""
    (first, one), (second, two) = best[:2]
    least = min(top.values())
    return abs((top.get(first, least) - top.get(second, least)) - (one - two))


def _divergence(reference: dict[int, float], other: dict[int, float]) -> float:
    """KL(reference || other) in nats over the candidates of both and one bucket for the rest: a lower bound."""
    shared = [token for token in reference if token in other]
    p, q = (np.exp([top[token] for token in shared]) for top in (reference, other))
    rest = [max(1.0 - float(side.sum()), 1e-12) for side in (p, q)]
    terms = float(np.sum(p * (np.log(p) - np.log(q)))) if shared else 0.0
    return max(terms + rest[0] * float(np.log(rest[0] / rest[1])), 0.0)


def _spread(name: str, band: str, arm: str, column: np.ndarray) -> Spread:
    median, p999, maximum = quantiles(column)
    return Spread(metric=name, band=band, path=arm, values=column.size, median=median, p999=p999, maximum=maximum)


def _worst(of: Scores, change: np.ndarray, reference: str) -> tuple[Worst, ...]:
    return tuple(
        Worst(
            prompt=of.prompts[row], position=int(of.positions[row]), token=int(of.tokens[row]),
            before=tuple(
                int(of.tokens[at]) for at in range(max(0, row - 8), row) if of.prompts[at] == of.prompts[row]
            ),
            reference=of.log_probs[reference][row], stock=of.log_probs[STOCK][row],
            candidate=of.log_probs[CANDIDATE][row],
        )
        for row in np.argsort(-change, kind="stable")[:WORST]
    )  # fmt: skip
