"""The performance grid of a whole server: which cells there are, and which of them a machine can run. Data beside the
contract (contracts/<model>/serving_grid.toml); what runs a cell is no part of it."""

from enum import StrEnum
from importlib.resources import files
from itertools import product
from typing import Annotated

from pydantic import Field, model_validator

from .. import strict
from ..claims.acceptance import limit
from ..errors import UserError
from ..records import Frozen
from .hardware import datasheet

Positive = Annotated[int, Field(ge=1)]
_FILE = "serving_grid.toml"


class Load(StrEnum):
    """What a server is asked while it is timed."""

    DECODE_ONLY = "decode_only"
    """All prompts are prefilled before the window"""
    MIXED_PREFILL = "mixed_prefill"
    """Requests come and go: end to end"""
    AGENTIC = "agentic"
    """Sessions of many turns, replayed from a trace"""


class Drafting(StrEnum):
    """Speculative decoding in a cell."""

    OFF = "off"
    NATURAL = "natural"
    FORCED = "forced"


class ServingCell(Frozen):
    """One cell. Its server has `tp` GPUs and nothing else."""

    load: Load
    tp: Positive
    concurrency: Positive
    isl: Positive | None = Field(description="tokens of each prompt; None where a trace says it")
    speculation: Drafting

    @property
    def key(self) -> str:
        """A name of letters, digits, dashes and underscores, unique in the grid."""
        isl = "trace" if self.isl is None else f"i{self.isl}"
        return f"tp{self.tp}-{self.load}-b{self.concurrency}-{isl}-{self.speculation}"


class _Block(Frozen):
    load: Load
    tp: tuple[Positive, ...] = Field(min_length=1)
    concurrency: tuple[Positive, ...] = Field(min_length=1)
    isl: tuple[Positive, ...] = ()
    speculation: tuple[Drafting, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _prompts(self) -> "_Block":
        if bool(self.isl) == (self.load is Load.AGENTIC):
            raise ValueError("isl: a trace brings its own prompts, other loads need their lengths")
        return self

    def cells(self) -> tuple[ServingCell, ...]:
        return tuple(
            ServingCell(load=self.load, tp=tp, concurrency=n, isl=isl, speculation=speculation)
            for tp, speculation, isl, n in product(self.tp, self.speculation, self.isl or (None,), self.concurrency)
        )


class ServingGrid(Frozen):
    """All cells of a model's server, with what they have in common."""

    hardware: str
    model: str
    draft: str
    osl: Positive
    source: str
    draft_tokens: Positive
    forced_acceptance: float
    forced_source: str
    block: tuple[_Block, ...]

    @model_validator(mode="after")
    def _forced(self) -> "ServingGrid":
        highest = limit(self.model, self.draft_tokens)
        if not 1 <= self.forced_acceptance <= min(highest.value, self.draft_tokens + 1):
            raise ValueError(f"forced_acceptance: the highest published is {highest.value:g}")
        if len(set(self.cells)) != len(self.cells):
            raise ValueError("block: a cell is there twice")
        return self

    @property
    def cells(self) -> tuple[ServingCell, ...]:
        """Every cell, in the order in which they are shown."""
        return tuple(cell for block in self.block for cell in block.cells())


class Planned(Frozen):
    """A cell, and why it cannot run on a machine; None where it can."""

    cell: ServingCell
    excluded: str | None


def serving_grid(contract: str) -> ServingGrid:
    """The grid of a contract. Raises UserError where it has none, or one that does not fit."""
    path = files(__package__.rpartition(".")[0]) / "contracts" / contract / _FILE
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UserError(f"{contract} has no grid of a server", f"add {_FILE} to its contract") from error
    grid = strict.parse(text, ServingGrid, _FILE)
    datasheet(grid.hardware)
    return grid


def plan(grid: ServingGrid, hardware: str, gpus: int) -> tuple[Planned, ...]:
    """Every cell with why it cannot run on `gpus` cards of this kind that are linked to each other. Nothing is carried
    over from another machine: a cell that is excluded is not measured."""
    card = datasheet(hardware)

    def why(cell: ServingCell) -> str | None:
        if hardware != grid.hardware:
            return f"the grid is about {grid.hardware}, this machine has {hardware}"
        if cell.tp > card.link_domain:
            return f"needs {cell.tp} linked GPUs, links of {hardware} connect {card.link_domain}"
        return f"needs {cell.tp} {hardware}, this machine has {gpus}" if cell.tp > gpus else None

    return tuple(Planned(cell=cell, excluded=why(cell)) for cell in grid.cells)
