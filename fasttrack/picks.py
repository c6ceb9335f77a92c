"""Confirms what was selected, afresh, and writes the dispatch table that follows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status, Verdict

from .dispatch import Entry, Table
from .model_dir import Bucket
from .package import Pick, place_name
from .selection import Judged, Option, Place, Selection, Time, times

Confirm = Callable[[Candidate, tuple[str, ...]], Verdict]


@dataclass(frozen=True)
class Settled:
    """The picks that stand: one for every place of the table."""

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

    A pick that fails is dropped everywhere and the next best of its place is tried. The last resort of every place is
    the configuration that the table has there, confirmed like any other: a table never names what is known to be
    wrong, nor a configuration that its own sources were not judged with. Where a place has nothing left, the
    selection as a whole is given up for the next one. Returns what stands, or what was dropped and why.

    The best of many was partly lucky. So a time that was measured is the confirmation's from here on, and what was chosen
    for being faster than a measured entry must be faster again, or is dropped at that place.
    """
    dropped: list[str] = []
    for selection in selections:
        stays = selection.sources == current_sources
        options = {bucket.place: _options(selection, bucket, table, stays) for bucket in buckets}
        entries = {bucket.place: table.at(bucket.hardware, bucket.tp, bucket.rows[1]) for bucket in buckets}
        stand = {place: entry.microseconds for place, entry in entries.items() if stays and entry.basis == "measured"}
        workloads = {bucket.place: bucket.workload for bucket in buckets}
        picks = _confirm_all(options, workloads, stand, confirm, dropped)
        if picks:
            return Settled(picks, tuple(dropped))
    return tuple(dropped)


def new_table(settled: Settled, buckets: Sequence[Bucket], table: Table, evidence: str) -> Table:
    """The dispatch table after the run; `evidence` is the path of the statement about its picks.

    An entry that goes on keeps its time and evidence where they were measured; an old estimate is left out.
    """
    entries = []
    for bucket in buckets:
        pick = next(pick for pick in settled.picks if bucket.place in pick.times)
        time = pick.times[bucket.place]
        if time.microseconds is None:
            kept = table.at(bucket.hardware, bucket.tp, bucket.rows[1])
            void = {} if kept.basis == "measured" else {"microseconds": None, "evidence": evidence}
            entries.append(kept.model_copy(update={"rows": bucket.rows, **void}))
            continue
        entries.append(
            Entry(
                hardware=bucket.hardware, tp=bucket.tp, rows=bucket.rows, kernel=pick.candidate.entry,
                config=pick.candidate.config, basis=time.basis, microseconds=round(time.microseconds, 3),
                evidence=evidence,
            )  # fmt: skip
        )
    return Table(entry=tuple(sorted(entries, key=lambda entry: entry.place)))


def _confirm_all(
    options: dict[Place, tuple[Option, ...]], workload: dict[Place, str], stand: dict[Place, float], confirm: Confirm,
    dropped: list[str],
) -> tuple[Pick, ...]:  # fmt: skip
    """`stand`: microseconds of the measured entries that a pick has to beat."""
    verdicts: dict[str, list[Verdict]] = {}
    proved: dict[str, set[str]] = {}
    while all(options.values()):
        chosen: dict[str, list[Place]] = {}
        for place, ranked in options.items():
            chosen.setdefault(ranked[0].judged.candidate.digest(), []).append(place)
        todo = {digest: {workload[p] for p in places} - proved.get(digest, set()) for digest, places in chosen.items()}
        digest = min((digest for digest, names in todo.items() if names), default=None)
        if digest is None:
            late = [
                place for digest, places in sorted(chosen.items()) for place in places
                if place in stand and options[place][0].time.measured
                and not confirmed(verdicts[digest], place, workload[place]).microseconds < stand[place]
            ]  # fmt: skip
            if not late:
                return tuple(
                    _pick(places, options, verdicts[digest], workload) for digest, places in sorted(chosen.items())
                )
            for place in late:
                option, *others = options[place]
                digest = option.judged.candidate.digest()
                again = confirmed(verdicts[digest], place, workload[place]).microseconds
                told = f"{again:g} us" if again < inf else "not measured"
                dropped.append(
                    f"{digest[:12]} at {place_name(place)}: {told} when confirmed, the entry stands at {stand[place]:g} us"
                )
                options[place] = tuple(others)
            continue
        names = tuple(sorted(todo[digest]))
        verdict = confirm(options[chosen[digest][0]][0].judged.candidate, names)
        if verdict.status is Status.ACCEPTED:
            verdicts.setdefault(digest, []).append(verdict)
            proved.setdefault(digest, set()).update(names)
            continue
        dropped.append(f"{digest[:12]} was not confirmed: {verdict.status}: {verdict.reason}: {verdict.message}")
        options = {
            place: tuple(o for o in ranked if o.judged.candidate.digest() != digest)
            for place, ranked in options.items()
        }
    return ()


def _options(selection: Selection, bucket: Bucket, table: Table, stays: bool) -> tuple[Option, ...]:
    """The ranking of a place, and behind it the table's configuration with the selection's sources.

    Not where that was measured with other sources: its time would say nothing about these.
    """
    ranked = selection.ranking.get(bucket.place, ())
    sample = next(iter(selection.ranking.values()))[0].judged.candidate
    entry = table.at(bucket.hardware, bucket.tp, bucket.rows[1])
    kept = sample.model_copy(update={"config": entry.config, "entry": entry.kernel})
    if entry.basis == "measured" and not stays:
        return ranked
    if any(option.judged.candidate.digest() == kept.digest() for option in ranked):
        return ranked
    return (*ranked, Option(Judged(kept, None), Time(None, measured=False)))


def confirmed(verdicts: Sequence[Verdict], place: Place, workload: str) -> Time:
    """The last measured time at the place; infinite where none was measured."""
    found = [times(verdict).get((place[0], workload)) for verdict in verdicts]
    return next((time for time in reversed(found) if time and time.measured), Time(inf, measured=True))


def _pick(
    places: list[Place], options: dict[Place, tuple[Option, ...]], verdicts: list[Verdict], workload: dict[Place, str]
) -> Pick:
    judged = [options[place][0].judged for place in places]
    screen = next((one.verdict for one in judged if one.verdict is not None), None)
    at: dict[Place, Time] = {}
    for place in places:
        again = confirmed(verdicts, place, workload[place])
        chosen = options[place][0].time
        at[place] = again if chosen.measured and again.microseconds < inf else chosen
    return Pick(judged[0].candidate, at, screen, tuple(verdicts))
