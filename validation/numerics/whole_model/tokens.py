"""What is kept of every token: the logits themselves, so that every figure follows from the records."""

import base64
import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from ...errors import UserError
from ...records import Frozen
from .lines import replace_file

ORACLE, STOCK, CANDIDATE = "oracle", "stock", "candidate"
OP, LONG = "op.jsonl.gz", "long.jsonl.gz"
"""Files of the rungs that keep no tokens"""
FELL_BACK = "stock"
"""`Token.ran` of a row that the candidate left to the stock path"""
NOT_JUDGED = "not judged"
"""`Token.ran` of a row that is kept for what is behind it: nothing but its token and the experts that it went to"""


class Token(Frozen):
    """One row of one step."""

    request: int
    position: int
    token: int
    target: int
    """The token that follows in the stream"""
    top1: int
    """The oracle's likeliest, before its logits were shortened to float32"""
    ran: str
    """How the candidate ran the row: specialised, stock (outside of its envelope), plain (a PyTorch candidate); or `NOT_JUDGED`"""
    logits: dict[str, str]
    """Path -> base64 of [vocabulary]: the oracle's float32, all others bfloat16"""
    streams: dict[str, tuple[float, ...]]
    """Path -> relative error of the stream behind each layer, in the norm, against the oracle"""
    experts: dict[str, tuple[int, ...]]
    """Path -> layers whose set of experts is not the oracle's"""
    router: dict[str, tuple[float, ...]]
    """Of each layer that routes, in order. Oracle: the score of the last expert chosen less that of the first one left;
    other paths: how far they move this difference"""

    @property
    def own(self) -> bool:
        """Whether the candidate is held to the row: it ran it, and not the stock path."""
        return self.ran not in (FELL_BACK, NOT_JUDGED)


class Step(Frozen):
    """One action of a unit."""

    action: int
    kind: str
    rows: int
    padding: int
    tokens: tuple[Token, ...]


class End(Frozen):
    """What a unit left behind."""

    states: dict[str, dict[str, float]]
    """Path -> "request layer.pool" -> relative error of what is committed, against the oracle"""
    rows: dict[str, dict[str, int]]
    """Path -> the same of pools with a row for each position -> the first row that is off by half or more, or -1"""
    touched: dict[str, tuple[str, ...]]
    """Path -> memory that nobody owns and that changed"""


class Header(Frozen):
    """What a unit was, and of what."""

    unit: str
    rung: str
    tp: int
    subject: str
    """Digest of checkpoint, paths and settings: records of another subject are not gone on with"""
    candidate: str
    replicas: tuple[str, ...]


def encode(values: np.ndarray) -> str:
    """Base64 of the array's bytes, little endian."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def decode(text: str, *, wide: bool) -> np.ndarray:
    """float64 [n] of float32 (`wide`) or bfloat16 bits."""
    data = base64.b64decode(text)
    if wide:
        return np.frombuffer(data, "<f4").astype(np.float64)
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def short(value: float) -> float:
    """Four digits, and finite: JSON has no infinity and no NaN, and the last bits of a logarithm are a processor's own."""
    return float(f"{min(float(value), 1e30):.4g}") if value == value else 1e30


class UnitRecords(Frozen):
    """All that is kept of a unit."""

    header: Header
    steps: tuple[Step, ...]
    end: End | None


def read(file: Path) -> UnitRecords:
    """The records of a unit: JSON lines, compressed or not. A line that a stop cut off is left out."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(str(file), error) from error
    return parse(data, str(file))


def parse(data: bytes, name: str) -> UnitRecords:
    """The records of a unit from its lines; `name` is what an error calls them."""
    try:
        whole, _, _ = data.rpartition(b"\n")
        lines = whole.decode("utf-8").splitlines()
        header = Header.model_validate_json(lines[0])
        parsed = [json.loads(line) for line in lines[1:]]
        steps = tuple(Step.model_validate(item) for item in parsed if "action" in item)
        ends = [End.model_validate(item) for item in parsed if "states" in item]
    except (IndexError, ValueError, ValidationError) as error:
        raise _damaged(name, error) from error
    return UnitRecords(header=header, steps=steps, end=ends[0] if ends else None)


def _damaged(name: str, error: Exception) -> UserError:
    return UserError(f"{name}: {str(error).splitlines()[0]}", "remove the file, and run the unit again")


def compress(source: Path, target: Path) -> None:
    """The same lines, compressed, with no time in it: equal records give equal bytes."""
    replace_file(target, gzip.compress(source.read_bytes(), 9, mtime=0))


def units(directory: Path) -> Iterable[Path]:
    """The finished units of a directory, in order of their names."""
    return sorted(directory.glob("*.jsonl.gz"))
