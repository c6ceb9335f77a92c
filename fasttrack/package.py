"""What a run hands to the writers of evidence, report and pull request, and what they hand back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fasttrack_validation.claims.cells import Cell
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Verdict

from .agents.protocol import Evaluation
from .archive import Request
from .dispatch import Table
from .model_dir import Bucket, ModelDirectory
from .selection import Place, Time

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract


@dataclass(frozen=True)
class Pick:
    """A candidate that goes into the dispatch table, with all that was ruled on it."""

    candidate: Candidate
    times: Mapping[Place, Time]
    screen: Verdict | None
    confirmations: tuple[Verdict, ...]


@dataclass(frozen=True)
class Baseline:
    """What a place is held against: the contract's bytes, their time at datasheet bandwidth, the stock path."""

    bucket: Bucket
    bytes: int
    floor_microseconds: float | None
    stock: Cell


@dataclass(frozen=True)
class Bundle:
    """A run with its outcome: everything that evidence, report and pull request are made from."""

    request: Request
    directory: ModelDirectory
    contract: "ModelContract"
    baselines: tuple[Baseline, ...]
    evaluations: tuple[Evaluation, ...]
    stopped: str
    dropped: tuple[str, ...]
    picks: tuple[Pick, ...]
    table_before: Table
    not_run: tuple[tuple[str, str], ...]
    seconds: float


@dataclass(frozen=True)
class Document:
    """A text file of the model directory; `path` is relative to it."""

    path: str
    text: str


@dataclass(frozen=True)
class PullRequest:
    """Title and body of the draft."""

    title: str
    body: str


class Packager(Protocol):
    """Writes for people. Gets records, returns text, touches no file."""

    def evidence(self, bundle: Bundle, pick: Pick) -> Document:
        """The statement about one pick, below `evidence/`."""

    def report(self, bundle: Bundle, table: Table, evidence: Sequence[Document]) -> tuple[Document, ...]:
        """The design report below `report/`; the first document is the page that a reviewer opens."""

    def pull_request(self, bundle: Bundle, table: Table, evidence: Sequence[Document]) -> PullRequest:
        """The draft's text."""


class Confine(Protocol):
    """Proves what a change touched."""

    def __call__(self, checkout, base: str, head: str, model: str) -> Sequence[str]:
        """One line for each rule that the change from `base` to `head` breaks; empty when it is confined."""
