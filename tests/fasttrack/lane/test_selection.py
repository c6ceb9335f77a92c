import lane_fakes as fakes
from hypothesis import given
from hypothesis import strategies as st

from fasttrack.dispatch import Entry, Table
from fasttrack.model_dir import Bucket
from fasttrack.picks import Settled, new_table, settle
from fasttrack.selection import Judged, objective, select, times
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status

ONE = Bucket("h200", 8, (1, 1), "tp8-r1")
FOUR = Bucket("h200", 8, (2, 4), "tp8-r4")
OTHER = Bucket("gb300", 8, (1, 4), "tp8-r4")
BUCKETS = (ONE, FOUR, OTHER)


def judged(block, *, sources="old", warps=1, status=Status.ACCEPTED, **judge):
    config = {"BLOCK": block, "num_warps": warps, "flip": False}
    candidate = Candidate(op="copy", entry="k.py", files={"k.py": f"# {sources}"}, config=config)
    fake = fakes.Judge(**judge)
    fake.status = lambda _: None if status is Status.ACCEPTED else status
    return Judged(candidate, fake.screen(candidate, "copy", 0))


OLD, NEW = judged(16).sources, judged(16, sources="new").sources


def table(**measured):
    """Entries for the three buckets; `measured` maps names of buckets to microseconds."""
    entries = []
    for name, bucket in (("one", ONE), ("four", FOUR), ("other", OTHER)):
        extra = {"basis": "modelled"}
        if name in measured:
            extra = {"basis": "measured", "microseconds": measured[name], "evidence": "evidence/e.json"}
        entries.append(Entry(hardware=bucket.hardware, tp=8, rows=bucket.rows, kernel="k.py", config={"old": 1}, **extra))
    return Table(entry=tuple(entries))


def best(selection, bucket):
    options = selection.ranking.get(bucket.place)
    return options[0].judged.candidate.config["BLOCK"] if options else None


def choose(members, current=OLD, hardware=("h200", "gb300"), **measured):
    return select(members, BUCKETS, table(**measured), current, hardware)


def test_times_and_objective_by_hand():
    one = judged(16)
    # |16-16| and |16-128| above 100, plus one warp.
    assert {key: time.microseconds for key, time in times(one.verdict).items()} == {
        ("h200", "tp8-r1"): 101.0, ("h200", "tp8-r4"): 213.0}  # fmt: skip
    assert objective(one.verdict, BUCKETS) == 314.0
    assert objective(one.verdict, (OTHER,)) is None
    assert objective(judged(16, status=Status.REJECTED).verdict, BUCKETS) is None


def test_each_bucket_gets_its_best():
    (found,) = choose([judged(16), judged(64), judged(128)])
    assert (best(found, ONE), best(found, FOUR), best(found, OTHER)) == (16, 128, None)


def test_only_accepted_candidates_count():
    rejected = [judged(16, status=status) for status in Status if status is not Status.ACCEPTED]
    assert choose(rejected) == []
    (found,) = choose([*rejected, judged(32)])
    assert best(found, ONE) == 32


def test_ties_go_by_digest():
    left, right = judged(15), judged(17)
    (found,) = choose([left, right])
    assert found == choose([right, left])[0]
    assert found.ranking[ONE.place][0].judged.candidate.digest() == min(j.candidate.digest() for j in (left, right))


def test_measured_ranks_before_modelled():
    (found,) = choose([judged(16), judged(32, measured={("h200", "tp8-r1")})])
    assert best(found, ONE) == 32


def test_a_measured_entry_stands_against_modelled_times():
    (found,) = choose([judged(16), judged(128)], one=500.0)
    assert best(found, ONE) is None and best(found, FOUR) == 128
    slower = judged(64, measured={("h200", "tp8-r1")})
    assert best(choose([slower], one=100.0)[0], ONE) is None
    assert best(choose([slower], one=500.0)[0], ONE) == 64


def test_new_sources_may_not_replace_what_a_measured_entry_was_measured_with():
    new = [judged(16, sources="new"), judged(128, sources="new")]
    assert [s.sources for s in choose(new)] == [NEW]
    assert choose(new, one=500.0) == []
    # Also where the entry's hardware was not asked for, or has no time.
    assert choose(new, other=500.0) == []
    assert choose(new, hardware=("h200",), other=500.0) == []
    measured = judged(16, sources="new", measured={("h200", "tp8-r1")})
    assert [s.sources for s in choose([measured], one=1.0)] == [NEW]


def test_sources_are_taken_as_a_set_and_the_better_set_comes_first():
    old = [judged(16), judged(64)]
    new = [judged(32, sources="new"), judged(128, sources="new")]
    # Sums of the best: old 101 + 165, new 117 + 101.
    assert [s.sources for s in choose(old + new)] == [NEW, OLD]


@given(st.permutations(range(6)))
def test_order_of_judging_does_not_matter(order):
    members = [judged(16), judged(32), judged(64), judged(16, sources="new"), judged(128), judged(16, warps=2)]
    assert choose([members[i] for i in order]) == choose(members)


def accept(_candidate, _workloads):
    return judged(16).verdict


def test_settle_confirms_each_candidate_once_for_all_its_places():
    asked = []

    def confirm(candidate, workloads):
        asked.append((candidate.config["BLOCK"], workloads))
        return accept(candidate, workloads)

    settled = settle(choose([judged(64)]), BUCKETS, table(), OLD, confirm)
    assert asked == [(64, ("tp8-r1", "tp8-r4"))]
    assert [sorted(pick.times) for pick in settled.picks] == [[ONE.place, FOUR.place]]


def test_settle_confirms_a_fallback_on_the_place_it_inherits():
    asked = []

    def confirm(candidate, workloads):
        asked.append((candidate.config["BLOCK"], workloads))
        return accept(candidate, workloads) if candidate.config["BLOCK"] != 16 else judged(16, status=Status.REJECTED).verdict

    settled = settle(choose([judged(16), judged(128)]), BUCKETS, table(), OLD, confirm)
    assert sorted(asked) == [(16, ("tp8-r1",)), (128, ("tp8-r1",)), (128, ("tp8-r4",))] or sorted(asked) == [
        (16, ("tp8-r1",)), (128, ("tp8-r1", "tp8-r4"))]  # fmt: skip
    (pick,) = settled.picks
    assert set(pick.times) == {ONE.place, FOUR.place} and len(settled.dropped) == 1


def test_settle_gives_up_new_sources_that_break_a_kept_entry():
    old, new = judged(64), [judged(16, sources="new"), judged(128, sources="new")]
    broken = judged(16, status=Status.REJECTED).verdict

    def confirm(candidate, workloads):
        return broken if candidate.config == {"old": 1} else accept(candidate, workloads)

    settled = settle(choose([old, *new]), BUCKETS, table(), OLD, confirm)
    assert isinstance(settled, Settled) and settled.sources == {"k.py": "# old"}
    assert settle(choose(new), BUCKETS, table(), OLD, confirm) == settled.dropped


def test_new_table_keeps_what_was_not_picked():
    settled = settle(choose([judged(16)]), BUCKETS, table(), OLD, accept)
    digest = settled.picks[0].candidate.digest()
    found = new_table(settled, BUCKETS, table(), {digest: "evidence/new.json"})
    assert found.at("h200", 8, 1).evidence == "evidence/new.json" and found.at("h200", 8, 1).microseconds == 101.0
    assert found.at("gb300", 8, 1) == table().at("gb300", 8, 1)
