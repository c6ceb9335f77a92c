"""What a report draws of the numerics ladder token by token: read from the records beside each kept verdict, and thinned.

Records are taken as they lie, held against the digests that their verdict names. What is missing or damaged is told in a
sentence and left out; it fails nothing here, as the gate has a stage of its own for evidence.
"""

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import changed, tokens
from fasttrack_validation.numerics.whole_model.changed import Worst
from fasttrack_validation.numerics.whole_model.table import Table, table
from fasttrack_validation.numerics.whole_model.tokens import CANDIDATE, ORACLE, short
from fasttrack_validation.records import Frozen, sha256

COLUMNS, DOTS, GAP = 64, 150, 16
_MOST = 64 << 20
"""Unpacked bytes of all records of a directory: some times what a ladder keeps, and no more than any machine holds"""
_SMALLEST = 1e-12
_WRONG = (UserError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, ZeroDivisionError,
          RecursionError, MemoryError, zlib.error)  # fmt: skip


class Column(Frozen):
    """Positions that stand next to each other in a drawing, as one."""

    first: int
    last: int
    own: float
    """|change of log-prob| of the candidate: the largest"""
    low: float
    """The same of the stock path and its repetitions: the least and the largest"""
    high: float
    ratios: tuple[float, ...]
    """[layers]: the candidate's error of the stream over the noise there, the largest"""
    behind_gap: bool = False
    """More than `GAP` positions without a token lie before it"""


class Dot(Frozen):
    """One token: the oracle's margin, and how far paths move it."""

    margin: float
    own: float
    noise: float
    """The largest of the stock path and its repetitions"""
    flips: bool


class Trace(Frozen):
    """The tokens of one rung at one TP that the candidate ran."""

    rung: str
    tp: int
    tokens: int
    columns: tuple[Column, ...]
    dots: tuple[Dot, ...]
    """All that flip; of the others some"""


class Traced(Frozen):
    """What the records beside one verdict hold."""

    source: str
    """The verdict's file, relative to the model directory"""
    records: dict[str, str]
    """File -> SHA-256 of what is drawn"""
    traces: tuple[Trace, ...] = ()
    worst: tuple[Worst, ...] = ()
    fault: str = ""
    """A sentence, where not all is there"""

    @property
    def name(self) -> str:
        """The verdict's own, without its place."""
        return self.source.rpartition("/")[2].removesuffix(".json")


def traced(files: Mapping[str, bytes]) -> tuple[Traced, ...]:
    """One for each kept verdict of the numerics stage."""
    unpacked = _Unpacking(_MOST)
    return tuple(
        _traced(path, files, unpacked) for path in sorted(files) if re.fullmatch(r"evidence/numerics/[^/]+\.json", path)
    )


class _Unpacking:
    """Gzip files become text, as long as there is room: a few packed bytes may stand for more than a machine holds."""

    def __init__(self, room: int) -> None:
        self._room = room

    def __call__(self, data: bytes) -> bytes:
        """ValueError for a file that is cut off, or too large for what is left."""
        unpacking = zlib.decompressobj(wbits=31)
        text = unpacking.decompress(data, self._room) if self._room else b""
        if not unpacking.eof:
            raise ValueError("cut off, or too large")
        self._room -= len(text)
        return text


def _traced(source: str, files: Mapping[str, bytes], unpacked: _Unpacking) -> Traced:
    named = _named(files[source])
    if not named:
        return Traced(source=source, records={}, fault=f"{source} names no records of tokens: nothing of them is drawn.")
    units, faults = {}, []
    for name, digest in named.items():
        path = f"{source.removesuffix('.json')}/{name}"
        if path not in files:
            faults.append(f"{name} is missing")
        elif sha256(files[path]) != digest:
            faults.append(f"{name} is not what the verdict names")
        else:
            try:
                units[name] = tokens.parse(unpacked(files[path]), name)
                table([units[name]])
            except _WRONG:
                units.pop(name, None)
                faults.append(f"{name} is damaged, or larger than records are")
    try:
        drawn, worst = tuple(_traces(units.values())), tuple(map(_shortened, changed.worst(units.values())))
    except _WRONG:
        drawn, worst, units = (), (), {}
        faults.append("the records do not fit together")
    fault = ""
    if faults:
        left = "what follows is drawn without them" if units else "no token is drawn"
        more = f", and {len(faults) - 4} more" if len(faults) > 4 else ""
        fault = f"Of the records beside {source} {'; '.join(faults[:4])}{more}: {left}."
    return Traced(source=source, records={name: named[name] for name in units}, traces=drawn, worst=worst, fault=fault)


def _named(verdict: bytes) -> dict[str, str]:
    """The records of tokens that a verdict names, with their digests."""
    try:
        named = json.loads(verdict).get("evidence", {})
        return {name: digest for name, digest in sorted(named.items())
                if isinstance(digest, str) and name not in (tokens.OP, tokens.LONG) and re.fullmatch(r"[\w.-]+\.jsonl\.gz", name)}  # fmt: skip
    except (ValueError, AttributeError, RecursionError):
        return {}


def _traces(units: Sequence[tokens.UnitRecords]) -> Iterator[Trace]:
    groups: dict[tuple[str, int], list[tokens.UnitRecords]] = {}
    for unit in units:
        groups.setdefault((unit.header.rung, unit.header.tp), []).append(unit)
    # The rung that reads whole streams first, as the ladder does.
    for (rung, tp), held in sorted(groups.items(), key=lambda item: (item[0][0] != "teacher_forced", item[0])):
        of = table(held).own
        if not of.tokens:
            continue
        yield Trace(rung=rung, tp=tp, tokens=len(of.tokens), columns=tuple(_columns(of)), dots=tuple(_dots(of)))


def _columns(of: Table) -> Iterator[Column]:
    own = of.change(CANDIDATE)
    noise = np.stack([of.change(path) for path in of.noise])
    scale = np.sqrt(np.mean(np.stack([of.streams[path] for path in of.noise]) ** 2, 0))
    ratios = np.maximum(of.streams[CANDIDATE], _SMALLEST) / np.maximum(scale, _SMALLEST)
    before = None
    for held in _stretches(sorted(set(of.position.tolist()))):
        rows = np.isin(of.position, held)
        yield Column(
            first=held[0], last=held[-1], own=short(own[rows].max()), low=short(noise[:, rows].min()),
            high=short(noise[:, rows].max()), ratios=tuple(map(short, ratios[rows].max(0))),
            behind_gap=before is not None and held[0] - before - 1 > GAP,
        )  # fmt: skip
        before = held[-1]


def _stretches(positions: Sequence[int]) -> Iterator[list[int]]:
    """`positions` in order, so many together that about `COLUMNS` come of it, and none across a gap."""
    most, held = math.ceil(len(positions) / COLUMNS), []
    for position in positions:
        if held and (len(held) == most or position - held[-1] - 1 > GAP):
            yield held
            held = []
        held.append(position)
    yield held


def _dots(of: Table) -> Iterator[Dot]:
    """All that flip, and of the others every n-th in order of the margin."""
    flips = of.top[CANDIDATE] != of.top[ORACLE]
    noise = np.max([of.margin_error[path] for path in of.noise], 0)
    calm = [row for row in np.argsort(of.margin, kind="stable") if not flips[row]]
    for row in (*np.flatnonzero(flips), *calm[:: max(math.ceil(len(calm) / DOTS), 1)]):
        yield Dot(margin=short(of.margin[row]), own=short(of.margin_error[CANDIDATE][row]), noise=short(noise[row]),
                  flips=bool(flips[row]))  # fmt: skip


def _shortened(one: Worst) -> Worst:
    return one.model_copy(update={name: short(getattr(one, name)) for name in ("change", "noise", "margin")})
