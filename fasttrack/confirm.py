"""The judge on what stands in the tree: each kernel and configuration that a dispatch table names, at the places where it does.

An op whose candidates are all accepted gets a statement as evidence, and its table the times that were measured. One at a
time, each written when it is known, so that a run that is cut off loses one op at most; verdicts are kept besides.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fasttrack_validation.claims.cells import Cell, NotMeasured
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status, Verdict
from fasttrack_validation.records import canonical_json

from . import dispatch, picks, storage, verdict_cache
from .model_dir import Bucket, ModelDirectory
from .package import Document, Pick
from .selection import Place, Time, times

if TYPE_CHECKING:
    from fasttrack_validation.contracts import ModelContract
    from fasttrack_validation.contracts.base import OpContract

NOT_TIMED = "this run has no time for that place"


class Judging(Protocol):
    """What is needed of a judge."""

    def confirm(self, candidate: Candidate, workloads: Sequence[str], timed: Collection[str]) -> Verdict:
        """The verdict at the named workloads, with fresh seeds."""

    def identity(self, op: str) -> dict[str, object]:
        """Who rules on `op`, and where."""


Write = Callable[[ModelDirectory, str, Sequence[Pick], Sequence[tuple[Place, Cell, Cell]]], Document]
"""(directory, op, picks, (place, own cell, stock path's) in the table's order) -> the statement."""


@dataclass(frozen=True)
class Standing:
    """A candidate of the tree, and the places of its op's dispatch table that name it."""

    candidate: Candidate
    buckets: tuple[Bucket, ...]

    @property
    def workloads(self) -> tuple[str, ...]:
        """The declared workloads that stand for its places, each once."""
        return tuple(dict.fromkeys(bucket.workload for bucket in self.buckets))


@dataclass(frozen=True)
class Confirmed:
    """What became of one op."""

    op: str
    status: Status
    message: str
    seconds: float
    places: dict[str, float | None] = field(default_factory=dict)
    """Place -> microseconds, or None where nothing was measured"""
    written: tuple[str, ...] = ()


def standing(
    directory: ModelDirectory, op: str, contract: "OpContract", hardware: Collection[str]
) -> tuple[Standing, ...]:
    """What the dispatch table of `op` names on `hardware`, in the order of its places. Fused ops have fewer places."""
    table = directory.table(op)
    found: dict[str, tuple[Candidate, list[Bucket]]] = {}
    for bucket in directory.buckets(contract):
        entry = table.at(bucket.hardware, bucket.tp, bucket.rows[1])
        if entry is None or bucket.hardware not in hardware:
            continue
        candidate = directory.candidate(op, entry.config, entry=entry.kernel)
        found.setdefault(candidate.digest(), (candidate, []))[1].append(bucket)
    return tuple(Standing(candidate, tuple(buckets)) for candidate, buckets in found.values())


def confirm(
    directory: ModelDirectory, contract: "ModelContract", ops: Sequence[str], hardware: Collection[str], judge: Judging,
    statement: Write, root: Path, *, fresh: bool = False, say: Callable[[str], None] = lambda line: None,
) -> Iterator[Confirmed]:  # fmt: skip
    """Judges `ops` one after the other. Statements and tables are written below `root`, in the place of the directory's own.

    `fresh`: whatever verdicts of earlier runs are kept. Yields each op as it is done; one that the tables do not name on
    `hardware` gives nothing.
    """
    for number, op in enumerate(ops, 1):
        began = time.monotonic()
        candidates = standing(directory, op, contract.op(op), hardware)
        verdicts: list[Verdict] = []
        for one in candidates:
            say(f"{op} ({number} of {len(ops)}): {canonical_json(one.candidate.config)} at {', '.join(one.workloads)}")
            verdict = _verdict(judge, one, fresh)
            verdicts.append(verdict)
            if verdict.status is not Status.ACCEPTED:
                yield Confirmed(op, verdict.status, f"{verdict.reason}: {verdict.message}", time.monotonic() - began)
                break
        else:
            if candidates:
                yield _write(directory, op, contract, candidates, verdicts, statement, root, began)


def _verdict(judge: Judging, one: Standing, fresh: bool) -> Verdict:
    identity = judge.identity(one.candidate.op)
    judged = {"candidate": one.candidate.model_dump(mode="json"), "asked": "confirm", "workloads": one.workloads}
    folder, name = storage.verdict_cache(), verdict_cache.key(judged, identity)
    if not fresh and (kept := verdict_cache.read(folder, name)) is not None:
        return kept
    verdict = judge.confirm(one.candidate, one.workloads, one.workloads)
    if verdict_cache.keeps(verdict, identity["timed_on"]):
        verdict_cache.write(folder, name, verdict)
    return verdict


def _write(
    directory: ModelDirectory, op: str, contract: "ModelContract", candidates: Sequence[Standing],
    verdicts: Sequence[Verdict], statement: Write, root: Path, began: float,
) -> Confirmed:  # fmt: skip
    found = {
        bucket.place: times(verdict).get((bucket.hardware, bucket.workload), Time(None, measured=False))
        for one, verdict in zip(candidates, verdicts, strict=True)
        for bucket in one.buckets
    }
    chosen = [
        Pick(one.candidate, {bucket.place: found[bucket.place] for bucket in one.buckets}, None, (verdict,))
        for one, verdict in zip(candidates, verdicts, strict=True)
    ]
    buckets = [bucket for bucket in directory.buckets(contract.op(op)) if bucket.place in found]
    before = directory.table(op)
    for bucket in buckets:
        # Their statement would be replaced by one without these times.
        if before.at(bucket.hardware, bucket.tp, bucket.rows[1]).basis == "measured" and not found[bucket.place].measured:
            message = f"{picks.place_name(bucket.place)} was measured before and is not here, so nothing was written"
            return Confirmed(op, Status.NOT_RUN, message, time.monotonic() - began)
    document = statement(directory, op, chosen, tuple(_cells(buckets, chosen)))
    table = _table(before, chosen, buckets, document.path)
    path = directory.manifest.op(op).dispatch
    dispatch.check_within(table, directory.envelope, root / path)
    for name, text in ((document.path, document.text), (path, dispatch.render(table))):
        storage.write_file(root / name, text.encode())
    places = {
        picks.place_name(place): one.microseconds if one.measured else None for place, one in found.items()
    }
    executor = verdicts[0].executor
    return Confirmed(op, Status.ACCEPTED, executor, time.monotonic() - began, places, (document.path, path))


def _table(table: dispatch.Table, chosen: Sequence[Pick], buckets: Sequence[Bucket], evidence: str) -> dispatch.Table:
    """The entries of these places with their times and evidence; those of other hardware as they are."""
    here = {bucket.hardware for bucket in buckets}
    kept = [entry for entry in table.entry if entry.hardware not in here]
    made = []
    for bucket in buckets:
        entry = table.at(bucket.hardware, bucket.tp, bucket.rows[1])
        found = next(pick.times[bucket.place] for pick in chosen if bucket.place in pick.times)
        new = {"rows": bucket.rows, "evidence": evidence}
        if found.measured:
            new |= {"basis": "measured", "microseconds": round(found.microseconds, 3)}
        made.append(entry.model_copy(update=new))
    return dispatch.Table(entry=tuple(sorted((*kept, *made), key=lambda entry: entry.place)))


def _cells(buckets: Sequence[Bucket], chosen: Sequence[Pick]) -> Iterator[tuple[Place, Cell, Cell]]:
    for bucket in buckets:
        pick = next(pick for pick in chosen if bucket.place in pick.times)
        timed = next(
            (cell for verdict in pick.confirmations for cell in verdict.cells
             if (cell.hardware, cell.workload) == (bucket.hardware, bucket.workload)), None,
        )  # fmt: skip
        missing = NotMeasured(reason=NOT_TIMED)
        stock = timed.timing.stock if timed is not None and timed.timing is not None else missing
        yield bucket.place, timed.cell if timed is not None else missing, stock


def require_known(directory: ModelDirectory, ops: Sequence[str], hardware: Sequence[str]) -> None:
    """Raises UserError for an op that the model does not have, or hardware that it is not claimed for."""
    for op in ops:
        directory.manifest.op(op)
    claimed = sorted({name for name, *_ in directory.envelope})
    for name in hardware:
        if name not in claimed:
            raise UserError(f"{directory.manifest.model.name} is not claimed for {name!r}", f"it is for {', '.join(claimed)}")
