"""Dispatch tables: which kernel, with which configuration, runs at which point of the envelope."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

from . import strict_toml

ConfigValue = bool | int | float | str
Config = dict[str, ConfigValue]
Rows = tuple[int, int]

_BARE = re.compile(r"[A-Za-z0-9_-]+")

HOW = "the entries of a dispatch table must cover the envelope in fasttrack.toml once, and nothing beyond it"


HOW_WITHIN = "fused ops name the hardware, TP and rows where they replace their members, each once"


class Entry(Frozen):
    """One row of a dispatch table. `rows` is inclusive at both ends.

    `microseconds` is a measured time where the basis is "measured" and an estimate where it is "modelled".
    """

    hardware: str
    tp: int = Field(ge=1)
    rows: Rows
    kernel: str = Field(description="entry file, relative to the model directory")
    config: Config = {}
    basis: Literal["modelled", "measured"]
    microseconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    evidence: str | None = Field(default=None, pattern=r"^evidence/[^\s]+$")

    @model_validator(mode="after")
    def _consistent(self) -> "Entry":
        if not 1 <= self.rows[0] <= self.rows[1]:
            raise ValueError(f"rows {list(self.rows)} is not a range [lo, hi] with 1 <= lo <= hi")
        if self.basis == "measured" and (self.microseconds is None or self.evidence is None):
            raise ValueError("an entry with basis 'measured' needs microseconds and evidence")
        if any(isinstance(value, float) and not math.isfinite(value) for value in self.config.values()):
            raise ValueError("config holds a number that is not finite")
        return self

    @property
    def place(self) -> tuple[str, int, Rows]:
        """Where the entry applies: (hardware, TP, rows)."""
        return (self.hardware, self.tp, self.rows)


class Table(Frozen):
    """The dispatch table of one op. Fused ops that nothing has chosen yet have `entry = []`; others cover the envelope."""

    entry: tuple[Entry, ...]

    def at(self, hardware: str, tp: int, rows: int) -> Entry | None:
        """The entry for one point, or None outside the table."""
        for entry in self.entry:
            if entry.hardware == hardware and entry.tp == tp and entry.rows[0] <= rows <= entry.rows[1]:
                return entry
        return None


def parse(text: str, path: Path) -> Table:
    """The table in `text`. Raises UserError naming `path`, the key and the line."""
    return strict_toml.parse(text, Table, path)


def check_cover(table: Table, envelope: Iterable[tuple[str, int, Rows]], path: Path) -> None:
    """Raises UserError unless `table` covers every (hardware, TP, rows) of `envelope` exactly once and no more."""
    wanted = {(hardware, tp): rows for hardware, tp, rows in envelope}
    for entry in table.entry:
        if (entry.hardware, entry.tp) not in wanted:
            raise UserError(f"{path}: {_place(entry)} lies outside the envelope", HOW)
    for (hardware, tp), (low, high) in wanted.items():
        expected, last = low, None
        entries = [entry for entry in table.entry if (entry.hardware, entry.tp) == (hardware, tp)]
        for entry in sorted(entries, key=lambda entry: entry.rows):
            if entry.rows[0] < expected and last is not None:
                raise UserError(f"{path}: {_place(entry)} overlaps rows {list(last.rows)}", HOW)
            if entry.rows[0] < low or entry.rows[1] > high:
                raise UserError(f"{path}: {_place(entry)} lies outside the envelope's rows [{low}, {high}]", HOW)
            if entry.rows[0] > expected:
                raise UserError(f"{path}: {hardware} tp={tp} has no entry for rows {expected}", HOW)
            expected, last = entry.rows[1] + 1, entry
        if expected <= high:
            raise UserError(f"{path}: {hardware} tp={tp} has no entry for rows {expected}", HOW)


def check_within(table: Table, envelope: Iterable[tuple[str, int, Rows]], path: Path) -> None:
    """Raises UserError unless every entry of `table` lies inside `envelope` and no two of them overlap."""
    wanted = {(hardware, tp): rows for hardware, tp, rows in envelope}
    last: Entry | None = None
    for entry in sorted(table.entry, key=lambda entry: entry.place):
        low, high = wanted.get((entry.hardware, entry.tp), (1, 0))
        if not low <= entry.rows[0] <= entry.rows[1] <= high:
            raise UserError(f"{path}: {_place(entry)} lies outside the envelope", HOW_WITHIN)
        if last and (last.hardware, last.tp) == (entry.hardware, entry.tp) and entry.rows[0] <= last.rows[1]:
            raise UserError(f"{path}: {_place(entry)} overlaps rows {list(last.rows)}", HOW_WITHIN)
        last = entry


def render(table: Table) -> str:
    """TOML text of `table`; equal tables give equal bytes, and `parse` gives the table back."""
    blocks = []
    for entry in sorted(table.entry, key=lambda entry: entry.place):
        lines = ["[[entry]]", f"hardware = {_value(entry.hardware)}", f"tp = {entry.tp}"]
        lines += [f"rows = [{entry.rows[0]}, {entry.rows[1]}]", f"kernel = {_value(entry.kernel)}"]
        pairs = ", ".join(f"{_key(key)} = {_value(entry.config[key])}" for key in sorted(entry.config))
        lines += [f"config = {{ {pairs} }}" if pairs else "config = {}", f"basis = {_value(entry.basis)}"]
        if entry.microseconds is not None:
            lines.append(f"microseconds = {_value(entry.microseconds)}")
        if entry.evidence is not None:
            lines.append(f"evidence = {_value(entry.evidence)}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks) if blocks else "entry = []\n"


def buckets(rows: Sequence[int], span: Rows) -> tuple[Rows, ...]:
    """The row ranges that `rows`, the declared batch sizes, stand for inside `span`.

    Each declared size answers for the sizes above the one before it: 1, 4, 16 in [1, 16] give [1, 1], [2, 4],
    [5, 16]. Raises ValueError where `span` goes beyond the largest declared size.
    """
    low, high = span
    ordered = sorted(set(rows))
    if not ordered or high > ordered[-1]:
        raise ValueError(f"rows up to {high} are claimed; the largest declared workload has {max(ordered, default=0)}")
    result, start = [], low
    for size in ordered:
        if size >= start:
            result.append((start, min(size, high)))
            start = size + 1
        if start > high:
            break
    return tuple(result)


def _place(entry: Entry) -> str:
    return f"entry {entry.hardware} tp={entry.tp} rows={list(entry.rows)}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: ConfigValue) -> str:
    # JSON's spelling of booleans, integers, finite floats and strings is TOML's, save for DEL, which TOML forbids raw.
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" in text else f"{text}.0"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
