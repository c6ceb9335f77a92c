from dataclasses import replace

import lane_fakes as fakes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack.dispatch import Entry, Table
from fasttrack.model_dir import Bucket
from fasttrack.package import Pick, combined
from fasttrack.picks import Settled, new_table, settle
from fasttrack.selection import Judged, Time, objective, select, times
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import CheckResult, Outcome, Status

ONE = Bucket("h200", 8, (1, 1), "tp8-r1")
FOUR = Bucket("h200", 8, (2, 4), "tp8-r4")
OTHER = Bucket("gb300", 8, (1, 4), "tp8-r4")
BUCKETS = (ONE, FOUR, OTHER)


def judged(block, *, sources="old", warps=1, status=Status.ACCEPTED, **judge):
    config = {"BLOCK": block, "num_warps": warps, "flip": False}
    candidate = Candidate(op="copy", entry="k.py", files={"k.py": f"# {sources}"}, config=config)
    fake = fakes.Judge(**judge)
    fake.status = lambda _: None if status is Status.ACCEPTED else status
    return Judged(candidate, fake.screen(candidate))


OLD, NEW = judged(16).sources, judged(16, sources="new").sources


def table(**measured):
    """Entries for the three buckets; `measured` maps names of buckets to microseconds."""
    entries = []
    for name, bucket in (("one", ONE), ("four", FOUR), ("other", OTHER)):
        extra = {"basis": "modelled"}
        if name in measured:
            extra = {"basis": "measured", "microseconds": measured[name], "evidence": "evidence/e.json"}
        where = {"hardware": bucket.hardware, "tp": 8, "rows": bucket.rows}
        entries.append(Entry(**where, kernel="k.py", config={"old": 1}, **extra))
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


def test_modelled_ties_go_by_the_whole_table_then_by_digest():
    # 100 and 101 us at one row are within the model's resolution; at four rows 17 is the better one by 2 us.
    left, right = judged(15), judged(17)
    (found,) = choose([left, right])
    assert found == choose([right, left])[0]
    assert best(found, ONE) == best(found, FOUR) == 17
    # Beyond the resolution the better one wins, whatever the rest of the table says.
    (found,) = choose([judged(16), judged(72)])
    assert (best(found, ONE), best(found, FOUR)) == (16, 72)
    # Nothing but a digest between them.
    twins = [judged(16, warps=1), judged(16, warps=1, sources="old")]
    assert choose(twins)[0].ranking[ONE.place][0].judged.candidate.digest() == twins[0].candidate.digest()


def test_measured_times_have_no_ties():
    measured = {("h200", "tp8-r1")}
    (found,) = choose([judged(15, measured=measured), judged(16, measured=measured)])
    assert best(found, ONE) == 16


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


KEPT = {"old": 1}


def confirming(refuse=lambda config: False):
    """A confirmation that keeps a log of (configuration's block, workloads)."""
    log = []

    def confirm(candidate, workloads):
        log.append((candidate.config.get("BLOCK", "kept"), workloads))
        status = Status.REJECTED if refuse(candidate) else Status.ACCEPTED
        return judged(16, status=status).verdict

    return confirm, log


def test_settle_confirms_each_candidate_once_for_all_its_places_and_what_the_table_keeps():
    confirm, log = confirming()
    settled = settle(choose([judged(64)]), BUCKETS, table(), OLD, confirm)
    # Nothing timed the third bucket; the table's own configuration has to pass there.
    assert sorted(log, key=str) == sorted([(64, ("tp8-r1", "tp8-r4")), ("kept", ("tp8-r4",))], key=str)
    assert sorted(sorted(pick.times) for pick in settled.picks) == [[OTHER.place], [ONE.place, FOUR.place]]


def test_settle_confirms_a_fallback_on_the_place_it_inherits():
    confirm, log = confirming(lambda candidate: candidate.config.get("BLOCK") == 16)
    settled = settle(choose([judged(16), judged(128)]), BUCKETS, table(), OLD, confirm)
    asked = {name for block, names in log if block == 128 for name in names}
    assert asked == {"tp8-r1", "tp8-r4"} and (16, ("tp8-r1",)) in log and len(settled.dropped) == 1
    assert {frozenset(pick.times) for pick in settled.picks} == {
        frozenset({ONE.place, FOUR.place}), frozenset({OTHER.place})}  # fmt: skip


MEASURED = {("h200", "tp8-r1")}


def again(block):
    """A confirmation that measures what BLOCK `block` takes, whoever is confirmed."""
    return lambda candidate, workloads: judged(block, measured=MEASURED).verdict


def time_at_one(block):
    return times(judged(block, measured=MEASURED).verdict)["h200", "tp8-r1"].microseconds


def test_a_time_that_was_measured_is_that_of_the_confirmation():
    """The best of many was partly lucky when it was chosen."""
    settled = settle(choose([judged(16, measured=MEASURED)]), BUCKETS, table(), OLD, again(64))
    pick = next(pick for pick in settled.picks if ONE.place in pick.times)
    assert pick.times[ONE.place] == Time(time_at_one(64), measured=True) and time_at_one(64) > time_at_one(16)


@pytest.mark.parametrize(("block", "stays"), [(128, True), (16, False)])
def test_what_was_faster_than_a_measured_entry_must_be_faster_again(block, stays):
    entry = time_at_one(16) + 0.5
    assert time_at_one(16) < entry < time_at_one(128)
    selections = choose([judged(16, measured=MEASURED)], one=entry)
    before = table(one=entry)
    settled = settle(selections, BUCKETS, before, OLD, again(block))
    found = new_table(settled, BUCKETS, before, "evidence/new.json").at("h200", 8, 1)
    assert (found == before.at("h200", 8, 1)) is stays
    assert any("the entry stands at" in line for line in settled.dropped) is stays


def test_the_tables_own_configuration_is_the_last_resort():
    confirm, log = confirming(lambda candidate: candidate.config != KEPT)
    settled = settle(choose([judged(16), judged(128)]), BUCKETS, table(), OLD, confirm)
    (pick,) = settled.picks
    assert pick.candidate.config == KEPT and set(pick.times) == {bucket.place for bucket in BUCKETS}
    assert pick.screen is None and len(settled.dropped) == 2


def test_a_table_that_would_name_a_broken_configuration_is_given_up():
    confirm, _ = confirming(lambda candidate: candidate.config == KEPT)
    dropped = settle(choose([judged(16), judged(128)]), BUCKETS, table(), OLD, confirm)
    assert isinstance(dropped, tuple) and "was not confirmed: rejected: C10.wrong: off by 3" in dropped[0]


def test_settle_gives_up_new_sources_for_old_ones_that_pass():
    confirm, _ = confirming(lambda candidate: "new" in candidate.files["k.py"] and candidate.config == KEPT)
    new = [judged(16, sources="new"), judged(128, sources="new")]
    settled = settle(choose([judged(64), *new]), BUCKETS, table(), OLD, confirm)
    assert isinstance(settled, Settled) and settled.sources == {"k.py": "# old"}


def test_a_measured_entry_is_no_last_resort_for_new_sources():
    new = [judged(16, sources="new", measured={("h200", "tp8-r1")}), judged(128, sources="new")]
    selections = choose(new, one=500.0)
    confirm, _ = confirming(lambda candidate: candidate.config.get("BLOCK") == 16)
    assert isinstance(settle(selections, BUCKETS, table(one=500.0), OLD, confirm), tuple)


def test_new_table():
    confirm, _ = confirming()
    before = table(other=70.0)
    settled = settle(choose([judged(16)], other=70.0), BUCKETS, before, OLD, confirm)
    found = new_table(settled, BUCKETS, before, "evidence/new.json")
    assert (found.at("h200", 8, 1).evidence, found.at("h200", 8, 1).microseconds) == ("evidence/new.json", 101.0)
    # A measured entry goes on with its own measurement and evidence.
    assert found.at("gb300", 8, 1) == before.at("gb300", 8, 1)


def pick(block, checks, place):
    one = judged(block)
    bad = next((c for c in checks if c.outcome is Outcome.FAIL), None)
    ruling = {"status": Status.REJECTED, "reason": bad.reason, "message": bad.message} if bad else {}
    verdict = one.verdict.model_copy(update={"checks": checks, "seconds": {"record": 2.0}, **ruling})
    return Pick(one.candidate, {place: Time(1.0, False)}, one.verdict, (verdict,))


def check(name, outcome, message=""):
    reason = None if outcome is Outcome.PASS else f"{name}.bad"
    return CheckResult(check=name, title=name, outcome=outcome, reason=reason, message=message)


def test_combined_takes_the_worst_of_each_check():
    good = (check("C4", Outcome.PASS), check("C10", Outcome.PASS))
    found = combined([pick(16, good, ONE.place), pick(128, good, FOUR.place)])
    assert found.status is Status.ACCEPTED and len(found.workloads) == 4 and found.seconds == {"record": 4.0}
    assert found.config["h200/tp8/2-4"] == '{"BLOCK":128,"flip":false,"num_warps":1}'
    bad = (check("C4", Outcome.PASS), check("C10", Outcome.FAIL, "off"))
    found = combined([pick(16, good, ONE.place), pick(128, bad, FOUR.place)])
    assert (found.status, found.reason, found.message) == (Status.REJECTED, "C10.bad", "off")
    # A check that the judge can do without stays visible as not run.
    partly = (check("C4", Outcome.PASS), check("C10", Outcome.NOT_RUN, "no SASS"))
    found = combined([pick(16, good, ONE.place), pick(128, partly, FOUR.place)])
    assert found.status is Status.ACCEPTED and [c.outcome for c in found.checks] == [Outcome.PASS, Outcome.NOT_RUN]


def test_combined_of_one_pick_is_about_that_candidate():
    one = pick(16, (check("C4", Outcome.PASS),), ONE.place)
    assert combined([one]).candidate_digest == one.candidate.digest() and combined([one]).config == one.candidate.config


def test_combined_refuses_verdicts_of_different_judges():
    one, two = (pick(block, (check("C4", Outcome.PASS),), ONE.place) for block in (16, 128))
    other = two.confirmations[0].model_copy(update={"judge_digest": "e" * 64})
    with pytest.raises(ValueError, match="judge_digest"):
        combined([one, replace(two, confirmations=(other,))])
