"""What checks, rungs and places are made of. Records alone."""

from enum import StrEnum

from ...records import Frozen


class Result(StrEnum):
    """Of a check, a rung, a run."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Where(Frozen):
    """A place in the model and in a stream."""

    unit: str
    layer: int | None = None
    position: int | None = None
    request: int | None = None
    pool: str | None = None


class Check(Frozen):
    """One comparison with its figures."""

    name: str
    band: str
    result: Result
    values: int
    candidate: float
    noise: float
    limit: float
    message: str = ""
    where: Where | None = None


class Flips(Frozen):
    """Tokens whose likeliest successor is not the oracle's."""

    tokens: int
    flips: dict[str, int]
    """Path -> all of them"""
    ties: int
    """Of the candidate's: the oracle's margin lies within the noise"""
    bugs: int
    margin_limit: float
    """How many times the noise of a token's logits the difference of two of them may move, where experts are the oracle's"""
    other_experts_limit: float = 0.0
    """How many times the size of a token's logits it may move elsewhere"""
    diverged: dict[str, int | None] = {}
    """Of a free run: path -> the position of its first other token, if there is one"""


class Spread(Frozen):
    """One metric of one path in one band of positions."""

    metric: str
    band: str
    path: str
    values: int
    median: float
    p999: float
    maximum: float


class RungVerdict(Frozen):
    """What came of one rung at one TP."""

    rung: str
    tp: int
    result: Result
    tokens: int
    checks: tuple[Check, ...]
    flips: Flips | None = None
    spreads: tuple[Spread, ...] = ()
    first: Where | None = None
    """Where the earliest thing is that is not right"""
    text: str = ""
