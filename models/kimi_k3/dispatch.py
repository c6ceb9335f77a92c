"""The manifest and its dispatch tables, as the serving side reads them: which kernel, with which configuration."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .environment import Claim

ROOT = Path(__file__).parent
PART = "+"


@dataclass(frozen=True)
class Choice:
    """A kernel file with its configuration."""

    op: str
    kernel: str
    """Relative to the model directory"""
    config: Mapping[str, Any]
    basis: str
    """"measured" or "modelled\""""


@dataclass(frozen=True)
class Manifest:
    """`fasttrack.toml` with its tables."""

    claims: tuple[Claim, ...]
    tables: Mapping[str, tuple[Mapping[str, Any], ...]]
    """Op, or several joined by `+` -> entries of its dispatch table"""

    def choose(self, op: str, hardware: str, tp: int, rows: int) -> Choice | None:
        """The entry for these rows; None where the table has none."""
        for entry in self.tables[op]:
            low, high = entry["rows"]
            if entry["hardware"] == hardware and entry["tp"] == tp and low <= rows <= high:
                return Choice(op, entry["kernel"], entry.get("config", {}), entry["basis"])
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """Fused ops, those with most members first: where two fit, the longer one wins."""
        return tuple(sorted((op for op in self.tables if PART in op), key=lambda op: (-op.count(PART), op)))


def load(root: Path = ROOT) -> Manifest:
    """Reads the manifest of the model directory `root`."""
    manifest = tomllib.loads((root / "fasttrack.toml").read_text("utf-8"))
    claims = tuple(
        Claim(e["hardware"], e["tp"], tuple(e["rows"]), e["verify_width"]) for e in manifest["envelope"]
    )
    tables = {
        op: tuple(tomllib.loads((root / entry["dispatch"]).read_text("utf-8"))["entry"])
        for op, entry in manifest["ops"].items()
    }
    return Manifest(claims, tables)
