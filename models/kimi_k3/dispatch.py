"""The model directory as the serving side is given it: manifest, dispatch tables, kernel modules, CUDA C++ sources.

Nothing here reads files or imports by name; whoever loads the directory (an engine's plug-in, a measurement) does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .environment import Claim

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
class Directory:
    """All of the directory that a step needs."""

    claims: tuple[Claim, ...]
    tables: Mapping[str, tuple[Mapping[str, Any], ...]]
    """Op, or several joined by `+` -> entries of its dispatch table"""
    kernel: Callable[[str], Any]
    """Kernel file, relative to the directory -> its module"""
    sources: Mapping[str, str] = field(default_factory=dict)
    """CUDA C++ files and headers, relative to the directory -> text"""
    faster: tuple[Mapping[str, Any], ...] = ()
    """Entries of the table of what was measured to be faster than the stock path: hardware, tp, tokens, rows"""

    @classmethod
    def of(
        cls, manifest: Mapping[str, Any], read: Callable[[str], Mapping[str, Any]], kernel: Callable[[str], Any],
        sources: Mapping[str, str],
    ) -> "Directory":  # fmt: skip
        """From the parsed manifest; `read` parses a TOML file of the directory."""
        claims = tuple(
            Claim(e["hardware"], e["tp"], tuple(e["rows"]), e["verify_width"]) for e in manifest["envelope"]
        )
        tables = {op: tuple(read(entry["dispatch"])["entry"]) for op, entry in manifest["ops"].items()}
        return cls(claims, tables, kernel, sources, tuple(read(manifest["decode"]["faster"]).get("entry", ())))

    def faster_up_to(self, hardware: str, tp: int) -> Mapping[int, int] | None:
        """Tokens of a request -> rows up to which a step takes less time here; None for hardware that the table does not name."""
        entries = [entry for entry in self.faster if entry["hardware"] == hardware]
        if not entries:
            return None
        return {entry["tokens"]: entry["rows"] for entry in entries if entry["tp"] == tp}

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
