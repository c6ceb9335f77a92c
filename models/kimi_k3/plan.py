"""Whether one decode step runs on the specialised path, and on which prepared size. Decided once, before a capture."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """Why a step is left to the stock path."""

    PREFILL = "prefill"
    EMPTY = "empty"
    ROWS = "rows"
    SLOWER = "slower"
    RAGGED = "ragged"
    VERIFY = "verify"
    UNPREPARED = "unprepared"
    PAGES = "pages"
    CACHES = "caches"
    PIPELINE = "pipeline"
    PIECEWISE = "piecewise"


MOST_ROWS = 64


@dataclass(frozen=True)
class Step:
    """One step as the scheduler has it. `counts[i]` rows of the batch are request i's, padding requests included."""

    counts: tuple[int, ...]
    prefills: int = 0
    """Requests of the step that are still reading their prompt"""
    pages: int = 1
    """Entries of the longest page table"""
    intermediate: bool = False
    """Hidden states come from another pipeline stage"""
    piecewise: bool = False
    """The engine captures pieces of the forward pass between its attention layers"""

    @property
    def rows(self) -> int:
        """Rows of the step."""
        return sum(self.counts)


@dataclass(frozen=True)
class Plan:
    """The step runs on the executor that was prepared for `bucket` rows of requests that bring `tokens` each; requests
    behind the step's own are padding."""

    rows: int
    bucket: int
    tokens: int = 1

    @property
    def padding(self) -> int:
        """Rows that only fill the bucket."""
        return self.bucket - self.rows


@dataclass(frozen=True)
class Fallback:
    """The step is the stock path's."""

    why: Why
    text: str


@dataclass(frozen=True)
class Prepared:
    """What an executor is prepared for."""

    buckets: tuple[int, ...]
    """Requests, increasing. Where they bring several tokens each, those with no more rows than the largest"""
    verify_width: int
    """Tokens of a request at most"""
    pages: int
    """Entries of the page table that captured steps read at most"""
    bound: bool = True
    """The caches that the engine has now are those that the executor knows"""
    faster: Mapping[int, int] | None = None
    """Tokens of a request -> rows up to which this path was measured to be faster; None: nothing was measured here"""
    widths: tuple[int, ...] | None = None
    """Tokens of a request that there are executors for; None: any up to `verify_width`"""

    def rows(self, tokens: int) -> tuple[int, ...]:
        """Rows of the sizes that are prepared for requests of `tokens`, increasing."""
        if tokens > self.verify_width or (self.widths is not None and tokens not in self.widths):
            return ()
        return tuple(tokens * requests for requests in self.buckets if tokens * requests <= self.buckets[-1])


def plan(step: Step, prepared: Prepared) -> Plan | Fallback:
    """How `step` runs: on the smallest prepared size that holds it.

    The answer depends on what every rank knows alike. The first reason in the order of the checks is given.
    """
    if step.prefills:
        return Fallback(Why.PREFILL, f"{step.prefills} requests of the step are prefills")
    if not step.rows:
        return Fallback(Why.EMPTY, "the step has no rows")
    if step.rows > MOST_ROWS:
        return Fallback(Why.ROWS, f"{step.rows} rows; the kernels are for {MOST_ROWS} at most")
    if len(set(step.counts)) > 1:
        return Fallback(Why.RAGGED, f"requests bring {min(step.counts)} to {max(step.counts)} tokens")
    tokens = step.counts[0]
    if tokens > prepared.verify_width:
        return Fallback(Why.VERIFY, f"{tokens} tokens a request; prepared: {prepared.verify_width}")
    most = MOST_ROWS if prepared.faster is None else prepared.faster.get(tokens, 0)
    if step.rows > most:
        return Fallback(
            Why.SLOWER, f"{step.rows} rows, {tokens} a request; measured to be faster than the stock path: up to {most} rows"
        )
    sizes = prepared.rows(tokens)
    buckets = [rows for rows in sizes if rows >= step.rows]
    if not buckets:
        known = ", ".join(map(str, sizes)) or "none"
        return Fallback(Why.UNPREPARED, f"{step.rows} rows, {tokens} a request; prepared: {known}")
    if step.pages > prepared.pages:
        return Fallback(Why.PAGES, f"page tables of {step.pages} entries; prepared: {prepared.pages}")
    if not prepared.bound:
        return Fallback(Why.CACHES, "the engine's caches are not bound: call bind() after they were allocated")
    if step.intermediate:
        return Fallback(Why.PIPELINE, "hidden states come from another pipeline stage")
    if step.piecewise:
        return Fallback(Why.PIECEWISE, "the forward pass is captured in pieces")
    return Plan(step.rows, buckets[0], step.counts[0])
