"""Numbers of tokens, from their records: pure functions of arrays. Logits in, errors and choices out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .tokens import CANDIDATE, NOT_JUDGED, ORACLE, STOCK, Token, UnitRecords, decode

BANDS = ((0, 1024), (1024, 8192), (8192, 32768), (32768, 131072), (131072, None))
"""Positions [first, last) that are judged apart"""
REACH = 3
"""Tokens behind one that the short convolution of a KDA layer hands its features to"""

_LEAST = 2.0**-30
"""Of relative errors: below it they are the oracle's own rounding in the records"""


def band_name(band: tuple[int, int | None]) -> str:
    """0-1k, 1k-8k, ..."""
    first, last = (None if n is None else f"{n // 1024}k" if n else "0" for n in band)
    return f"{first}-{last}" if last else f"{first} and beyond"


@dataclass(frozen=True)
class Table:
    """All judged tokens of some units, as columns. Paths: stock, candidate, again-1 and so on."""

    tokens: tuple[Token, ...]
    units: tuple[str, ...]
    """[tokens]: where each is from"""
    paths: tuple[str, ...]
    position: np.ndarray
    signed: dict[str, np.ndarray]
    """Path -> [tokens, vocabulary]: logit less the oracle's, over the root mean square of the oracle's row"""
    size: np.ndarray
    """[tokens]: that root mean square"""
    spread: np.ndarray
    """[tokens]: 1 - sum p^2 of the oracle's probabilities p: none where it is certain"""
    log_prob: dict[str, np.ndarray]
    """Path, oracle among them -> [tokens]: of the token that follows in the stream"""
    divergence: dict[str, np.ndarray]
    """Path -> [tokens]: KL(oracle || path) in nats"""
    top: dict[str, np.ndarray]
    """Path, oracle among them -> [tokens]"""
    margin: np.ndarray
    """[tokens]: the oracle's logit of its likeliest token less that of the next one"""
    margin_error: dict[str, np.ndarray]
    """Path -> [tokens]: how far the path moves the difference of those two logits"""
    streams: dict[str, np.ndarray]
    """Path -> [tokens, layers]"""
    experts: dict[str, np.ndarray]
    """Path -> [tokens, layers] bool: another set of experts than the oracle's"""
    echoes: dict[str, np.ndarray]
    """The same of the `REACH` tokens before it in its request, judged or not: whether any of them did"""
    router: dict[str, np.ndarray]
    """[tokens, layers], zero where a layer does not route. Oracle: margins; paths: how far they move them"""
    before: dict[str, np.ndarray]
    """Path -> [rows, layers] bool: other experts at rows that are kept for what is behind them"""

    @property
    def errors(self) -> dict[str, np.ndarray]:
        """Path -> [tokens, vocabulary]: the same without a sign."""
        return {path: np.abs(signed) for path, signed in self.signed.items()}

    def change(self, path: str) -> np.ndarray:
        """[tokens]: |change of the realised token's log-prob| against the oracle."""
        return np.abs(self.log_prob[path] - self.log_prob[ORACLE])

    def logit_noise(self) -> np.ndarray:
        """[tokens]: root mean square of the noise of a logit there, of runs that went to the oracle's experts if there are any."""
        columns = [np.sqrt(np.mean(np.minimum(self.signed[path], 1e30) ** 2, -1)) for path in self.noise]
        return self._rms(columns, None) * self.size

    def stream_noise(self, layer: int) -> np.ndarray:
        """[tokens]: the same of the relative error of the stream behind a layer."""
        return self._rms([self.streams[path][:, layer] for path in self.noise], layer)

    def _rms(self, columns: Sequence[np.ndarray], layer: int | None) -> np.ndarray:
        on = np.stack([self.on(path, layer) for path in self.noise])
        on |= ~on.any(0)
        return np.sqrt(np.sum(np.stack(columns) ** 2 * on, 0) / on.sum(0)).clip(_LEAST)

    def on(self, path: str, layer: int | None = None, *, router: bool = False) -> np.ndarray:
        """[tokens] bool: the path went to the oracle's experts in all layers up to `layer` (None: in all; of its router: in
        those below), and did so at the tokens before it in all layers below, which the layer's convolution reads."""
        last = self.experts[STOCK].shape[1] - 1 if layer is None else layer
        return ~(self.experts[path][:, : last + (not router)].any(-1) | self.echoes[path][:, :last].any(-1))

    @property
    def replicas(self) -> tuple[str, ...]:
        """The paths that are the stock path again."""
        return tuple(path for path in self.paths if path not in (STOCK, CANDIDATE))

    @property
    def noise(self) -> tuple[str, ...]:
        """Stock and its repetitions."""
        return (STOCK, *self.replicas)

    @property
    def own(self) -> "Table":
        """The tokens that the candidate ran. What it left to the stock path is as good as that, and says nothing of it."""
        return self.where(np.array([token.own for token in self.tokens]))

    def where(self, mask: np.ndarray) -> "Table":
        """The tokens that `mask` [tokens] names."""
        def cut(columns):
            return {path: column[mask] for path, column in columns.items()}

        return Table(
            tuple(t for t, on in zip(self.tokens, mask, strict=True) if on),
            tuple(u for u, on in zip(self.units, mask, strict=True) if on), self.paths, self.position[mask],
            cut(self.signed), self.size[mask],
            self.spread[mask], cut(self.log_prob), cut(self.divergence), cut(self.top), self.margin[mask],
            cut(self.margin_error), cut(self.streams), cut(self.experts), cut(self.echoes),
            cut(self.router), self.before,
        )  # fmt: skip


def table(units: Iterable[UnitRecords]) -> Table:
    """The judged tokens of `units`, in their order."""
    every = [(unit.header.unit, token) for unit in units for step in unit.steps for token in step.tokens]
    pairs = [(unit, token) for unit, token in every if token.ran != NOT_JUDGED]
    tokens = tuple(token for _, token in pairs)
    paths = tuple(path for path in tokens[0].logits if path != ORACLE)
    exact = np.stack([decode(token.logits[ORACLE], wide=True) for token in tokens])
    scale = np.sqrt(np.mean(exact**2, -1, keepdims=True)).clip(2.0**-104)
    first, second = np.argsort(-exact, -1, kind="stable")[:, :2].T
    rows = np.arange(len(tokens))
    targets = np.array([token.target for token in tokens])
    signed, log_prob, divergence, top, moved = {}, {ORACLE: _log_softmax(exact)[rows, targets]}, {}, {ORACLE: first}, {}
    margin = exact[rows, first] - exact[rows, second]
    probabilities = np.exp(_log_softmax(exact))
    for path in paths:
        got = np.stack([decode(token.logits[path], wide=False) for token in tokens])
        with np.errstate(all="ignore"):
            signed[path] = _finite((got - exact) / scale)
            own = _log_softmax(got)
            log_prob[path] = own[rows, targets]
            divergence[path] = _finite(np.sum(probabilities * (_log_softmax(exact) - own), -1)).clip(0)
            moved[path] = _finite(np.abs(got[rows, first] - got[rows, second] - margin))
        top[path] = np.argmax(got, -1)
    layers = len(tokens[0].streams[paths[0]])
    streams = {path: np.array([token.streams[path] for token in tokens]) for path in paths}
    went = {path: np.zeros((len(every), layers), bool) for path in paths}
    for row, (_, token) in enumerate(every):
        for path in paths:
            went[path][row, list(token.experts[path])] = True
    judged = np.array([token.ran != NOT_JUDGED for _, token in every])
    router = {path: np.zeros((len(tokens), layers)) for path in (ORACLE, *paths)}
    first_routing = layers - len(tokens[0].router[ORACLE])
    for path, column in router.items():
        column[:, first_routing:] = [token.router[path] for token in tokens]
    position = np.array([token.position for token in tokens])
    return Table(
        tokens, tuple(unit for unit, _ in pairs), paths, position, signed, scale[:, 0],
        1 - np.sum(probabilities**2, -1), log_prob, divergence, top, margin, moved,
        streams, {path: mask[judged] for path, mask in went.items()},
        {path: _echoes(every, mask)[judged] for path, mask in went.items()}, router,
        {path: mask[~judged] for path, mask in went.items()},
    )  # fmt: skip


def _echoes(pairs: Sequence[tuple[str, Token]], experts: np.ndarray) -> np.ndarray:
    """[tokens, layers] bool, see `Table.echoes`, of other experts [tokens, layers]."""
    rows: dict[tuple[str, int, int], list[int]] = {}
    for row, (unit, token) in enumerate(pairs):
        rows.setdefault((unit, token.request, token.position), []).append(row)
    found = np.zeros_like(experts)
    for (unit, request, position), own in rows.items():
        before = [row for back in range(1, REACH + 1) for row in rows.get((unit, request, position - back), ())]
        found[own] = experts[before].any(0)
    return found


def quantiles(values: np.ndarray, fractions: Sequence[float] = (0.5, 0.999, 1.0)) -> tuple[float, ...]:
    """By nearest rank: the smallest value that the fraction does not exceed."""
    flat = np.sort(values, axis=None)
    return tuple(float(flat[max(int(np.ceil(f * flat.size)) - 1, 0)]) for f in fractions)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.inf)
