"""What a unit of work does with requests, action by action. Plain data: every path carries out the same."""

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import StrEnum

PADDING = -1
ORACLES = -1


class Kind(StrEnum):
    """What an action is."""

    PREFILL = "prefill"
    DECODE = "decode"
    RELEASE = "release"


@dataclass(frozen=True)
class Action:
    """One step of an engine, or the end of a request."""

    kind: Kind
    requests: tuple[int, ...]
    """Of the batch, in order; -1 is padding. Of a release: those that end"""
    counts: tuple[int, ...] = ()
    """Rows of each request"""
    tokens: tuple[int, ...] = ()
    """[rows]"""
    targets: tuple[int | None, ...] = ()
    """[rows]: the token that follows in the stream; ORACLES where that is the oracle's choice, None where nobody looks
    at the row"""
    accepted: tuple[int, ...] = ()
    """Of a decode step: tokens that each request keeps"""
    judged: bool = True
    """Whether rows that somebody looks at are held to anything. Those of a prompt's end may be there for what is behind them"""


Actions = Generator[Action, tuple[int, ...], None]
"""Yields actions and is sent the oracle's likeliest next token of every row that somebody looks at"""


class RungName(StrEnum):
    """The ladder."""

    OP = "op"
    TEACHER_FORCED = "teacher_forced"
    BATCH_SWEEP = "batch_sweep"
    GREEDY = "greedy"
    LONG_CONTEXT = "long_context"


@dataclass(frozen=True)
class Unit:
    """A piece of work that starts from nothing and does not depend on others."""

    rung: RungName
    name: str
    tp: int
    requests: int
    max_tokens: int
    """Of the longest request, candidates of a last step included"""
    width: int = 1
    """Tokens that a request brings to a step at most"""
    buckets: tuple[int, ...] = (1,)
    """Row counts that a decode path shall be prepared for"""
    settings: dict = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Unique in a run; a file name."""
        return f"{self.rung}-tp{self.tp}-{self.name}"
