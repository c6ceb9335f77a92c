"""Confirms what was selected, afresh, and writes the dispatch table that follows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status, Verdict

from .dispatch import Entry, Table
from .model_dir import Bucket
from .package import Pick
from .selection import Judged, Option, Place, Selection, Time

Confirm = Callable[[Candidate, tuple[str, ...]], Verdict]


@dataclass(frozen=True)
class Settled:
    """The picks that stand. Places without one keep the table's entry."""

    picks: tuple[Pick, ...]
    dropped: tuple[str, ...]

    @property
    def sources(self) -> dict[str, str]:
        """The files that the picks share: path -> text."""
        return self.picks[0].candidate.files


def settle(
    selections: Sequence[Selection], buckets: Sequence[Bucket], table: Table, current_sources: str, confirm: Confirm
) -> Settled | tuple[str, ...]:
    """Confirms every pick of the best selection on the workloads of its places.

    A pick that fails is dropped everywhere and the next best of its place is tried; when a place runs out of
    candidates it keeps the table's entry, if that is for the same sources, else the selection as a whole is given up
    for the next one. With new sources, an entry that is kept has to pass with them. Returns what stands, or, when
    nothing does, what was dropped and why.
    """
    dropped: list[str] = []
    for selection in selections:
        picks = _confirm_all(selection, buckets, table, selection.sources == current_sources, confirm, dropped)
        if picks:
            return Settled(picks, tuple(dropped))
    return tuple(dropped)


def new_table(settled: Settled, buckets: Sequence[Bucket], table: Table, evidence: dict[str, str]) -> Table:
    """The dispatch table after the run; `evidence` maps candidate digests to paths."""
    entries = []
    for bucket in buckets:
        picked = next((pick for pick in settled.picks if bucket.place in pick.times), None)
        if picked is None:
            kept = table.at(bucket.hardware, bucket.tp, bucket.rows[1])
            entries.append(kept.model_copy(update={"rows": bucket.rows}))
            continue
        time = picked.times[bucket.place]
        entries.append(
            Entry(
                hardware=bucket.hardware, tp=bucket.tp, rows=bucket.rows, kernel=picked.candidate.entry,
                config=picked.candidate.config, basis=time.basis,
                microseconds=None if time.microseconds is None else round(time.microseconds, 3),
                evidence=evidence[picked.candidate.digest()],
            )  # fmt: skip
        )
    return Table(entry=tuple(sorted(entries, key=lambda entry: entry.place)))


def _confirm_all(
    selection: Selection, buckets: Sequence[Bucket], table: Table, stays: bool, confirm: Confirm, dropped: list[str]
) -> tuple[Pick, ...]:
    options = dict(selection.ranking)
    if not stays:
        options = {**_kept(selection, buckets, table), **options}
    workload = {bucket.place: bucket.workload for bucket in buckets}
    confirmed: dict[str, list[Verdict]] = {}
    proved: dict[str, set[Place]] = {}
    while True:
        if not stays and not all(options.values()):
            return ()
        chosen: dict[str, list[Place]] = {}
        for place, ranked in options.items():
            if ranked:
                chosen.setdefault(ranked[0].judged.candidate.digest(), []).append(place)
        todo = {digest: [p for p in places if p not in proved.get(digest, ())] for digest, places in chosen.items()}
        digest = min((digest for digest, places in todo.items() if places), default=None)
        if digest is None:
            break
        candidate = options[todo[digest][0]][0].judged.candidate
        names = tuple(sorted({workload[place] for place in todo[digest]}))
        verdict = confirm(candidate, names)
        if verdict.status is Status.ACCEPTED:
            confirmed.setdefault(digest, []).append(verdict)
            proved.setdefault(digest, set()).update(todo[digest])
            continue
        dropped.append(f"{digest[:12]} was not confirmed: {verdict.status}: {verdict.reason}: {verdict.message}")
        options = {
            place: tuple(o for o in ranked if o.judged.candidate.digest() != digest)
            for place, ranked in options.items()
        }
    return tuple(_pick(digest, places, options, confirmed[digest]) for digest, places in sorted(chosen.items()))


def _pick(digest: str, places: list[Place], options: dict[Place, tuple[Option, ...]], verdicts: list[Verdict]) -> Pick:
    judged = [options[place][0].judged for place in places]
    screen = next((one.verdict for one in judged if one.verdict is not None), None)
    times: dict[Place, Time] = {place: options[place][0].time for place in places}
    return Pick(judged[0].candidate, times, screen, tuple(verdicts))


def _kept(selection: Selection, buckets: Sequence[Bucket], table: Table) -> dict[Place, tuple[Option, ...]]:
    """The table's entries at places without a time, as options with the new sources."""
    sample = next(iter(selection.ranking.values()))[0].judged
    result = {}
    for bucket in buckets:
        if bucket.place not in selection.ranking:
            entry = table.at(bucket.hardware, bucket.tp, bucket.rows[1])
            update = {"config": entry.config, "entry": entry.kernel}
            judged = Judged(sample.candidate.model_copy(update=update), None)
            result[bucket.place] = (Option(judged, Time(None, measured=False)),)
    return result
