"""The model directory's own decode path over a small checkpoint; prompts are the plain path's, as in an engine.

Both work on the same pools. Without a GPU the kernels are interpreted (this process was started for that), for one rank
or for simulated ones, which takes seconds a token; with one they are compiled and launched.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath
from types import ModuleType
from typing import Any

from torch import Tensor

from ..errors import UserError
from ..numerics.whole_model import cards
from ..numerics.whole_model.simulated_ranks import Group
from ..numerics.whole_model.verdict import directory_digest
from ..performance.directory import load
from ..records import digest_files
from .paths import Backend, Setup
from .small import small_model

Step = Callable[[Mapping[str, Tensor]], Tensor]
"""A row's embedding, slots, page_table and lengths -> logits [1, vocabulary]"""


class Specialised:
    """As `Path`."""

    def __init__(self, setup: Setup) -> None:
        """Raises UserError for a GPU that no kernel is made for, or a directory without a decode path."""
        if setup.directory is None:
            raise UserError("no model directory is named", "give the directory whose decode path is served")
        self.plain = small_model(setup.model).path(setup.model_copy(update={"backend": Backend.PLAIN}))
        factory, directory = load(setup.directory)
        try:
            self._step, calls = _on_card(self.plain, factory, directory, cards.of(setup.device, factory, directory))
        except ValueError as error:
            what = f"the decode path cannot serve this checkpoint: {error}"
            raise UserError(what, "serve --backend plain") from error
        self._calls = Counter(call.op for call in calls)
        self.launches: Counter[str] = Counter()
        interpreted = ", interpreted" if setup.device == "cpu" else ""
        self.card = self.plain.card.model_copy(
            update={
                "backend": Backend.LATENCY_SPECIALIZED, "decode": f"{setup.directory.name}'s kernels{interpreted}",
                "sources": _sources(setup.directory, self.plain.card.sources),
                "libraries": {**self.plain.card.libraries, "triton": _triton()},
            }
        )  # fmt: skip

    def open(self, session: int) -> None:
        """As `Path`."""
        self.plain.open(session)

    def prefill(self, session: int, tokens: Sequence[int]) -> Tensor:
        """As `Path`, by the plain path."""
        return self.plain.prefill(session, tokens)

    def decode(self, session: int, token: int) -> Tensor:
        """As `Path`. The launches that it counts are those of every rank."""
        logits = self._step(self.plain.row(session, token))
        self.plain.moved_on(session)
        self.launches.update(self._calls)
        return logits.float()[:, : self.card.vocabulary].cpu().contiguous()


def _on_card(plain: Any, factory: ModuleType, directory: Any, card: cards.Card) -> tuple[Step, Sequence[Any]]:
    """The step of all ranks, and its calls."""
    group = Group(
        factory, directory, plain.ranks, plain.caches(), card=card, pages=plain.state.pages.shape[1], buckets=(1,),
        **plain.kernel_sizes(),
    )  # fmt: skip
    plan = group.plan((1,))
    if not group.runs_here(plan):
        raise ValueError(f"it leaves a step of one token to the stock path: {plan.why}")
    calls = [call for decoder in group.ranks for call in decoder.executors[1].calls]
    return (lambda row: group.step(plan, **row).logits), calls


def _sources(directory: FilePath, validation: str) -> str:
    """Of kernels, host code and the tables that choose between them, and of ours."""
    return digest_files({"directory": directory_digest(directory).encode(), "validation": validation.encode()})


def _triton() -> str:
    import triton

    return triton.__version__
