"""What serves tokens: a path over one checkpoint, and what it says of itself."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path as FilePath
from typing import Protocol

from pydantic import Field
from torch import Tensor

from ..records import Frozen


class Backend(StrEnum):
    """Which path computes decode steps."""

    ORACLE = "oracle"
    """float64, nothing rounded"""
    PLAIN = "plain"
    """Readable PyTorch with the published rounding points"""
    STOCK = "stock"
    """The best public pieces for the card; needs a GPU"""
    LATENCY_SPECIALIZED = "latency_specialized"
    """The model directory's own decode path: its kernels on a GPU, interpreted without one"""


class Setup(Frozen):
    """All that decides a path, save the machine."""

    model: str
    backend: Backend
    checkpoint: FilePath
    directory: FilePath | None = Field(default=None, description="the model directory, for its own decode path")
    device: str = Field(default="cpu", description="cpu or cuda")
    tp: int = Field(default=1, ge=1, description="simulated ranks: sums over ranks are rounded as a group would round")
    context: int | None = Field(
        default=None, ge=2, description="tokens of a request at most, generated ones included; None: all positions"
    )
    sessions: int = Field(default=8, ge=1, description="requests that hold a state at once")


class Card(Frozen):
    """What a path is, for the people and programs that compare servers."""

    backend: Backend
    dtype: str = Field(description="type of activations between modules")
    prefill: str = Field(description="which path computes prompts")
    decode: str = Field(description="which path computes generated tokens")
    revision: str = Field(description="SHA-256 over the checkpoint's files")
    tokenizer: str = Field(description="SHA-256 over every symbol in the order of ids")
    tp: int
    device: str
    context: int
    vocabulary: int = Field(description="symbols; logits of ids behind them are dropped")
    sources: str = Field(description="SHA-256 over the packages' files that compute")
    libraries: dict[str, str]


class Path(Protocol):
    """A model with room for `sessions` requests. One call at a time."""

    card: Card

    launches: Mapping[str, int]
    """How often kernels of the model directory have been launched, by op"""

    def open(self, session: int) -> None:
        """Empties the state of a session, 0 to `sessions` - 1."""
        ...

    def prefill(self, session: int, tokens: Sequence[int]) -> Tensor:
        """Logits [tokens, vocabulary] on the CPU, float32 or float64; the state has moved past all of them."""
        ...

    def decode(self, session: int, token: int) -> Tensor:
        """The same for one token, [1, vocabulary], by the decode step."""
        ...
