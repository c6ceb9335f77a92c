"""What an arm's model is asked and what it gives, whoever generates: a server over HTTP, or a function in this process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from ..records import Frozen
from .answers import Sampling
from .frozen import Message


class Generation(Frozen):
    """One answer of a model, whole."""

    model: str
    """Who says that it answered."""
    text: str | None
    reasoning: str = ""
    finish_reason: str
    tokens: int | None = Field(default=None, ge=0)
    """Output tokens, reasoning included."""
    prompt_tokens: int | None = Field(default=None, ge=0)


class Counters(Frozen):
    """What a model's process counts of itself, since it started."""

    kernels: dict[str, int] | None = None
    """Launches of each specialised kernel; {} where none is installed, None where nobody counts."""
    acceptance_forced: bool | None = None


class Unanswered(Exception):
    """No whole answer came. Asking again may help; `wait` is how many seconds the server wants to be left alone."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class Model(Protocol):
    """One arm's model. Called from several threads at a time."""

    @property
    def name(self) -> str:
        """Who is to answer: an answer of another model is none."""

    def generate(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> Generation:
        """One answer. Raises Unanswered, or UserError where no further request can succeed."""

    def counters(self) -> Counters:
        """Never raises: what cannot be learnt is None, and a guard refuses it."""


Generate = Callable[[Sequence[Message], Sampling, int], Generation]


@dataclass(frozen=True)
class InProcess:
    """A model in this process: a function that generates, and one that counts."""

    name: str
    function: Generate
    count: Callable[[], Counters] = Counters

    def generate(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> Generation:
        """One answer of the function."""
        return self.function(messages, sampling, seed)

    def counters(self) -> Counters:
        """What it counted."""
        return self.count()
