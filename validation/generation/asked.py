"""What is asked of the engine, and what comes of it."""

from dataclasses import dataclass, field
from typing import Literal

ScoredBy = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Sampling:
    """How one token is chosen from its logits. Temperature 0 takes the likeliest, the lowest id of equals."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all"""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are left out"""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)"""
    seed: int = 0


@dataclass(frozen=True)
class Asked:
    """One text to go on with."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    ignore_eos: bool = False
    keep_stop: bool = False
    """Whether the text keeps the stop string that ended it"""
    top: int = 0
    """Candidates to give beside each generated token"""
    prompt_top: int | None = None
    """Candidates to give beside each token of the prompt; None: no scores of the prompt"""
    prompt_from: int = 0
    """The first token of the prompt that is scored; the very first of a text has no score"""
    scored_by: ScoredBy = "prefill"
    """What computes the scores of the prompt"""


@dataclass(frozen=True)
class Score:
    """The log-probability of one token of a text, given all before it; before temperature, penalties and cuts."""

    token: int
    log_prob: float
    rank: int
    """1 for the likeliest"""
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability) of the likeliest, best first, the lower id of equals first"""


@dataclass(frozen=True)
class Prompt:
    """Scores of the prompt's tokens from `start` on; None for the first token of the text."""

    start: int
    scores: tuple[Score | None, ...]


@dataclass(frozen=True)
class Token:
    """One generated token. `text` is what can be given out now: what may yet become a stop string is held back."""

    score: Score
    text: str


@dataclass(frozen=True)
class Done:
    """The end of an answer. `text` is what had been held back."""

    reason: Literal["stop", "length"]
    matched: str | int | None = None
    """The stop string or token that ended it"""
    text: str = ""


@dataclass(frozen=True)
class Failed:
    """No answer, or no whole one: the path failed."""

    what: str
    details: str = field(default="", repr=False)


Event = Prompt | Token | Done | Failed
