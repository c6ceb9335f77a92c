"""The claim: two arms for each cell, what may differ between them, and by which figure they are compared.

A claim holds no multiplier. What it may say is derived from its records by `check`."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ..records import Frozen
from .measurement import Measurement, Metric
from .typed import typed
from .units import Quantity


def _without_figure(text: str) -> str:
    if found := next(typed(text), None):
        raise ValueError(f"{found.text!r} is typed: a claim's figures are derived")
    return text


Words = Annotated[str, Field(min_length=1), AfterValidator(_without_figure)]
ClaimId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=80)]


OF_REQUESTS = frozenset({Metric.REQUEST_LATENCY, Metric.TOK_S_USER, Metric.TOK_S_SYSTEM, Metric.TOK_S_GPU})


class Subject(StrEnum):
    """The one thing that a comparison is about."""

    CODE = "code"
    OPTION = "option"
    TOPOLOGY = "topology"
    HARDWARE = "hardware"
    SPECULATION = "speculation"
    PRECISION = "precision"


# What may differ between the arms, by what is under test. Workload, window and statistic never may.
MAY_DIFFER: dict[Subject, frozenset[str]] = {
    Subject.CODE: frozenset({
        "identity.commit", "identity.build", "identity.released", "identity.engine", "identity.engine_version",
    }),
    Subject.OPTION: frozenset(),
    Subject.TOPOLOGY: frozenset({
        "topology.tp", "topology.pp", "topology.ep", "topology.dp_attention", "topology.dcp", "topology.disaggregated",
        "hardware.gpus", "hardware.gpus_prefill", "hardware.gpus_decode", "hardware.nodes", "hardware.interconnect",
        "collectives",
    }),
    Subject.HARDWARE: frozenset({
        "hardware.sku", "hardware.interconnect", "hardware.sm_clock_mhz", "hardware.memory_clock_mhz",
        "hardware.driver", "identity.build",
    }),
    Subject.SPECULATION: frozenset({
        "speculation.method", "speculation.draft_tokens", "identity.draft", "identity.draft_revision",
        "identity.precision.draft",
    }),
    Subject.PRECISION: frozenset({
        "identity.precision.weights", "identity.precision.activations", "identity.precision.kv_cache",
        "identity.precision.state", "identity.model_revision",
    }),
}  # fmt: skip


class UnderTest(Frozen):
    """What may differ: one subject, and engine options by name (a path that is switched on, say)."""

    subject: Subject
    options: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _named(self) -> "UnderTest":
        if self.subject is Subject.OPTION and not self.options:
            raise ValueError("options: name the options under test")
        return self


class Headline(StrEnum):
    """What of a grid the text leads with."""

    ALL = "all"
    BEST = "best"
    WORST = "worst"
    RANGE = "range"


class Swap(Frozen):
    """One arm measured against itself, in the first place and in the second. Equal but for the harness's own bias."""

    first: Quantity
    second: Quantity

    @property
    def bias(self) -> float:
        """How far the two places are apart, relative."""
        return abs(self.first.base / self.second.base - 1)


class Pair(Frozen):
    """One cell: both arms under the same conditions."""

    cell: Words
    candidate: Measurement
    baseline: Measurement
    swap: Swap | None = None

    @model_validator(mode="after")
    def _scope(self) -> "Pair":
        if self.candidate.scope is not self.baseline.scope:
            raise ValueError(f"cell {self.cell}: a {self.candidate.scope} stands against a {self.baseline.scope}")
        return self


class Claim(Frozen):
    """A comparison that somebody wants to state."""

    schema_version: Literal["fasttrack.claim/1"] = "fasttrack.claim/1"
    id: ClaimId
    title: Words
    metric: Metric
    under_test: UnderTest
    headline: Headline = Headline.ALL
    cells: tuple[str, ...] = Field((), description="the range that the claim is about; () where it is the pairs'")
    pairs: tuple[Pair, ...] = Field(min_length=1)
    end_to_end: tuple[Pair, ...] = Field((), description="the same cells end to end, beside a claim about a phase")

    end_to_end_metric: Metric = Field(Metric.REQUEST_LATENCY, description="of whole requests: latency or a rate")

    @model_validator(mode="after")
    def _cells(self) -> "Claim":
        for pairs in (self.pairs, self.end_to_end):
            names = [pair.cell for pair in pairs]
            if len(set(names)) != len(names):
                raise ValueError(f"cell {next(n for n in names if names.count(n) > 1)} is there twice")
        if self.end_to_end_metric not in OF_REQUESTS:
            raise ValueError(f"end_to_end_metric: {self.end_to_end_metric} is not of whole requests")
        if len({pair.candidate.scope for pair in self.pairs}) > 1:
            raise ValueError("pairs: of one scope in one claim")
        return self

    def whole(self) -> "Claim | None":
        """The end-to-end rows as a comparison of their own; None where there are none."""
        if not self.end_to_end:
            return None
        own = {"pairs": self.end_to_end, "end_to_end": (), "metric": self.end_to_end_metric, "headline": Headline.ALL}
        return self.model_copy(update={**own, "cells": ()})

    def swapped(self) -> "Claim":
        """The same comparison with its arms exchanged."""

        def turn(pair: Pair) -> Pair:
            return pair.model_copy(update={"candidate": pair.baseline, "baseline": pair.candidate})

        turned = {name: tuple(map(turn, getattr(self, name))) for name in ("pairs", "end_to_end")}
        return self.model_copy(update=turned)
