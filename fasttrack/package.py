"""What a run hands to the writers of evidence, report and pull request, and what they hand back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fasttrack_validation.claims.cells import Cell, NotMeasured
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import CheckResult, Outcome, Status, Verdict
from fasttrack_validation.records import canonical_json, sha256

from .agents.protocol import Evaluation
from .archive import Request
from .dispatch import Table
from .model_dir import Bucket, ModelDirectory
from .selection import Place, Time

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract


_SEVERITY = {Outcome.PASS: 0, Outcome.NOT_RUN: 1, Outcome.FAIL: 2, Outcome.INVALID: 3}


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
    author: tuple[str, bool]
    """Name and address that the commit will carry, and whether they are the fallback."""
    base_files: frozenset[str]
    """Files of the model directory at the base, relative to it."""
    seconds: float
    bill: str | None = None
    """What requests to a model have cost, in words; None where none were made."""
    agent_model: str | None = None
    """The model that wrote the candidates, as its server calls it."""


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

    def evidence(self, bundle: Bundle) -> Document:
        """The judge's statement about the op as it is dispatched (see `combined`), below `evidence/`."""

    def report(self, bundle: Bundle, evidence: Document, written: Sequence[Document]) -> tuple[Document, ...]:
        """The design report below `report/` with its raw files; the first document is the page a reviewer opens.

        `written` are the other files that the run changes.
        """

    def pull_request(
        self, bundle: Bundle, evidence: Document, written: Sequence[Document], commit: str, gate: "Gated"
    ) -> PullRequest:
        """The draft's text, once the commit is there and the gate has seen it."""


@dataclass(frozen=True)
class Gated:
    """What the gate says of a commit. `answer` is the gate's own record, for the pull request's writer."""

    exit_code: int
    reasons: tuple[str, ...]
    answer: object


class Gate(Protocol):
    """Decides whether a commit may be proposed: confinement, manifest, evidence."""

    def __call__(self, checkout: Path, base: str, head: str, model: str) -> Gated:
        """The gate's answer to merging `head` into `base`."""


def combined(picks: Sequence[Pick]) -> Verdict:
    """The verdict on an op as it is dispatched, from the confirmations of all its picks.

    A check's outcome is the worst over them; the status is accepted only if all are. `config` maps each place
    (hardware/TP/rows) to the JSON of its configuration; with one pick, digest and configuration are the pick's own.
    Raises ValueError when the confirmations are not about one op, contract and judge.
    """
    verdicts = [verdict for pick in picks for verdict in pick.confirmations]
    first = verdicts[0]
    identity = ("model", "op", "contract_digest", "judge_digest", "executor", "sandbox", "toolchain")
    for name in identity:
        if any(getattr(verdict, name) != getattr(first, name) for verdict in verdicts):
            raise ValueError(f"confirmations differ in {name}")
    checks = tuple(
        max((check for v in verdicts for check in v.checks if check.check == name), key=_severity)
        for name in dict.fromkeys(c.check for v in verdicts for c in v.checks)
    )
    ruling = next((verdict for verdict in verdicts if verdict.status is not Status.ACCEPTED), first)
    config, digest = picks[0].candidate.config, picks[0].candidate.digest()
    if len(picks) > 1:
        config = {
            place_name(place): canonical_json(pick.candidate.config) for pick in picks for place in pick.times
        }
        digest = sha256("".join(sorted(pick.candidate.digest() for pick in picks)).encode())
    stages = {stage for verdict in verdicts for stage in verdict.seconds}
    return first.model_copy(
        update={
            "status": ruling.status, "reason": ruling.reason, "message": ruling.message,
            "candidate_digest": digest, "config": config, "checks": checks,
            "workloads": tuple(workload for verdict in verdicts for workload in verdict.workloads),
            "cells": (),
            "audits": tuple({audit.digest(): audit for v in verdicts for audit in v.audits}.values()),
            "seconds": {stage: sum(v.seconds.get(stage, 0.0) for v in verdicts) for stage in sorted(stages)},
        }
    )  # fmt: skip


def cells(bundle: Bundle) -> Iterator[tuple[Place, Cell, Cell]]:
    """(place, the pick's cell, the stock path's) for every place of the table, in its order.

    The pick's cell is the one of its confirmation on that hardware where that measured it, else of its screening; where
    there is none, not measured, and why. Where it was measured, so was the stock path, in the same session.
    """
    stock = {baseline.bucket.place: baseline.stock for baseline in bundle.baselines}
    contract = bundle.contract.op(bundle.request.op)
    for bucket in bundle.directory.buckets(contract):
        pick = next(pick for pick in bundle.picks if bucket.place in pick.times)
        again = [cell for verdict in reversed(pick.confirmations) for cell in verdict.cells if cell.timing is not None]
        timed = (*again, *(pick.screen.cells if pick.screen is not None else ()))
        one = next((t for t in timed if (t.hardware, t.workload) == (bucket.hardware, bucket.workload)), None)
        if one is None:
            mine = NotMeasured(reason=f"this run has no time for {bucket.hardware} at {bucket.workload}")
        else:
            mine = one.cell
        if one is not None and one.timing is not None:
            theirs = one.timing.stock
        else:
            theirs = stock.get(bucket.place, NotMeasured(reason="not asked for in this run"))
        yield bucket.place, mine, theirs


def _severity(check: CheckResult) -> int:
    return _SEVERITY[check.outcome]


def place_name(place: Place) -> str:
    """A place as one word: h200/tp8/2-4."""
    hardware, tp, (low, high) = place
    return f"{hardware}/tp{tp}/{low}-{high}"
