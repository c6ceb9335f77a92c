"""From judged candidates to one pick for each place of the dispatch table. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import floor, log

from fasttrack_validation.claims.cells import Measured
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status, Verdict
from fasttrack_validation.records import digest_files

from .dispatch import Entry, Rows, Table
from .model_dir import Bucket

Place = tuple[str, int, Rows]

# Modelled times that differ by less are no difference.
RESOLUTION = 0.05


@dataclass(frozen=True)
class Time:
    """Microseconds of a candidate at one workload on one hardware, and whether they were measured.

    None: a configuration of the table goes on, and this run has no time for it there.
    """

    microseconds: float | None
    measured: bool

    @property
    def basis(self) -> str:
        """The word in the dispatch table."""
        return "measured" if self.measured else "modelled"


@dataclass(frozen=True)
class Judged:
    """A candidate with the verdict of its screening, where it had one."""

    candidate: Candidate
    verdict: Verdict | None

    @property
    def sources(self) -> str:
        """One digest over the candidate's files, whatever its configuration."""
        return digest_files({name: text.encode() for name, text in self.candidate.files.items()})


@dataclass(frozen=True)
class Option:
    """A candidate that may be picked at a place, and its time there."""

    judged: Judged
    time: Time

    def key(self, best: float) -> tuple[bool, float, float, str]:
        """Measured before modelled, then fast before slow, then by the sum over all places, then by digest.

        `best` is the least modelled time at the place. Modelled times are compared in steps of `RESOLUTION`: a model
        that is blind to smaller differences must not scatter a table over configurations that it cannot tell apart.
        """
        time = self.time.microseconds
        if not self.time.measured:
            time = floor(log(time / best) / log(1 + RESOLUTION))
        total = sum(one.microseconds for one in times(self.judged.verdict).values())
        return (not self.time.measured, time, total, self.judged.candidate.digest())


@dataclass(frozen=True)
class Selection:
    """Candidates that share their sources, ranked at every place where they have a time."""

    sources: str
    ranking: dict[Place, tuple[Option, ...]]


def times(verdict: Verdict) -> dict[tuple[str, str], Time]:
    """(hardware, workload) -> time, measured or modelled, from the verdict's cells."""
    result = {}
    for timed in verdict.cells:
        cell = timed.cell
        if isinstance(cell, Measured):
            result[timed.hardware, timed.workload] = Time(cell.microseconds, measured=True)
        elif cell.modelled is not None:
            result[timed.hardware, timed.workload] = Time(cell.modelled.microseconds, measured=False)
    return result


def objective(verdict: Verdict, buckets: Sequence[Bucket]) -> float | None:
    """Summed microseconds over the places that the verdict has a time for; None unless accepted and timed."""
    known = times(verdict)
    found = [known[key].microseconds for b in buckets if (key := (b.hardware, b.workload)) in known]
    return sum(found) if found and verdict.status is Status.ACCEPTED else None


def select(
    judged: Sequence[Judged], buckets: Sequence[Bucket], table: Table, current_sources: str, hardware: Collection[str]
) -> list[Selection]:
    """Selections, best first, one for each set of sources that may be installed.

    One op has one set of sources in the tree, so picks of different sets cannot stand side by side: a set is taken
    whole. Picks are made for `hardware`; elsewhere the table's entries go on. Only accepted candidates count. Where the
    table holds a measured entry, a modelled time never replaces it: there the set must be the current one (the entry
    stays), or bring a measurement (else the set is out).
    """
    by_sources: dict[str, list[Judged]] = {}
    for one in judged:
        if one.verdict.status is Status.ACCEPTED:
            by_sources.setdefault(one.sources, []).append(one)
    selections = []
    for sources, members in by_sources.items():
        stays = sources == current_sources
        ranking = {b.place: _rank(members, b) for b in buckets if b.hardware in hardware}
        eligible = True
        for entry in (entry for entry in table.entry if entry.basis == "measured"):
            places = [bucket.place for bucket in buckets if _within(bucket.place, entry)]
            for place in places:
                ranking[place] = tuple(o for o in ranking.get(place, ()) if o.time.measured and _beats(o, entry, stays))
            if not stays and not (places and all(ranking[place] for place in places)):
                eligible = False
        ranking = {place: options for place, options in ranking.items() if options}
        if eligible and ranking:
            selections.append(Selection(sources, ranking))
    return sorted(selections, key=_total)


def _rank(members: Sequence[Judged], bucket: Bucket) -> tuple[Option, ...]:
    options = {}
    for member in members:
        time = times(member.verdict).get((bucket.hardware, bucket.workload))
        if time is not None:
            options[member.candidate.digest()] = Option(member, time)
    modelled = [option.time.microseconds for option in options.values() if not option.time.measured]
    return tuple(sorted(options.values(), key=lambda option: option.key(min(modelled, default=0.0))))


def _beats(option: Option, entry: Entry, stays: bool) -> bool:
    """Whether a measured option replaces a measured entry, whose time is void once its sources change."""
    return not stays or option.time.microseconds < entry.microseconds


def _within(place: Place, entry: Entry) -> bool:
    hardware, tp, (low, high) = place
    return (hardware, tp) == (entry.hardware, entry.tp) and low <= entry.rows[1] and entry.rows[0] <= high


def _total(selection: Selection) -> tuple[int, float, str]:
    best = [options[0].time.microseconds for options in selection.ranking.values()]
    return (-len(best), sum(best), selection.sources)
