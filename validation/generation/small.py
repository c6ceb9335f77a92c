"""The small model that stands for a model here: its tokenizer, its checkpoint, its reference paths."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Protocol, cast

from ..contracts import models
from ..errors import UserError
from .paths import Path, Setup


class SmallModel(Protocol):
    """A module `served` beside a contract's nano model."""

    CHECKPOINT: FilePath
    """Where the checkpoint that is kept lies"""
    SYMBOLS: Sequence[str]
    """Text of every token id"""
    BOS: int
    EOS: int
    MARKS: int
    """Ids below this are marks, which have no text"""

    def encode(self, text: str) -> list[int]:
        """Token ids without marks. Raises UserError for what cannot be encoded."""
        ...

    def chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """The text that stands for messages of (role, content)."""
        ...

    def path(self, setup: Setup) -> Path:
        """The oracle, the plain or the stock path."""
        ...


def small_model(model: str) -> SmallModel:
    """Of `model`. Raises UserError where there is none."""
    if model not in models():
        raise UserError(f"no model is called {model!r}", f"known: {', '.join(models())}")
    name = f"{__package__.rpartition('.')[0]}.contracts.{model}.nano"
    if find_spec(name) is None:
        raise UserError(f"{model} has no small model to serve", "give its contract a nano/ with a served.py")
    return cast(SmallModel, import_module(f"{name}.served"))
