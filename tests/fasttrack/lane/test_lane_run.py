"""The lane from end to end, with a judge whose times can be worked out by hand."""

import hashlib
import subprocess
import sys
from pathlib import Path

import lane_fakes as fakes
import pytest

from fasttrack import dispatch, lane
from fasttrack.archive import Archive
from fasttrack.package import cells
from fasttrack.voice import Voice
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.verdict import Status


def options(checkout, **changes):
    return lane.Options(**{"model": "toy", "op": "copy", "checkout": checkout, "seed": 7, "rounds": 20, **changes})


def table_of(checkout, branch):
    text = fakes.git(checkout, "show", f"{branch}:models/toy/dispatch/copy.toml")
    return dispatch.parse(text, Path("table"))


def fingerprint(root: Path) -> dict[str, str]:
    """Everything a user would miss: the working tree, HEAD, the index, the stash, the configuration."""
    files = [p for p in root.rglob("*") if p.is_file() and ".git" not in p.relative_to(root).parts]
    files += [root / ".git" / name for name in ("HEAD", "index", "config", "refs/stash", "refs/heads/main")]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.exists()}


def test_picks_the_best_for_each_bucket(checkout):
    outcome = lane.propose(options(checkout), fakes.services(fakes.Judge()), Voice(quiet=True))
    assert outcome.exit_code == 0 and outcome.branch == f"fasttrack/toy/copy/{outcome.run}"
    table = table_of(checkout, outcome.branch)
    # By hand from fakes.microseconds: at one row BLOCK 16 with 1 warp, 101; at four rows BLOCK 128 with 1 warp, 101.
    assert table.at("h200", 8, 1).config == {"BLOCK": 16, "flip": False, "num_warps": 1}
    assert table.at("h200", 8, 3).config == {"BLOCK": 128, "flip": False, "num_warps": 1}
    assert (table.at("h200", 8, 1).basis, table.at("h200", 8, 1).microseconds) == ("modelled", 101.0)
    # Nothing has timed gb300: its entries are as they were.
    assert table.at("gb300", 8, 1).config == {"BLOCK": 32, "flip": False, "num_warps": 4}
    assert Path(outcome.report).read_text().startswith("# copy")
    assert Path(outcome.body).read_text().startswith("Faster copy\n")


def test_the_writers_get_a_cell_for_every_place_and_the_reason_where_there_is_none(checkout):
    parts, seen = fakes.services(fakes.Judge()), []
    parts.packager.evidence = lambda bundle: (seen.extend(cells(bundle)), fakes.Document("evidence/e.json", "{}"))[1]
    assert lane.propose(options(checkout, rounds=2), parts, Voice(quiet=True)).exit_code == 0
    found = {place: (mine, stock) for place, mine, stock in seen}
    assert set(found) == {(h, 8, rows) for h in ("h200", "gb300") for rows in ((1, 1), (2, 4))}
    mine, stock = found["h200", 8, (1, 1)]
    assert mine.modelled.hardware == "h200" and stock.reason == "no GPU here"
    assert found["gb300", 8, (2, 4)][0].reason == "this run has no time for gb300 at tp8-r4"


def test_a_run_for_one_workload_times_and_picks_there_and_confirms_the_rest_of_the_table(checkout):
    judge = fakes.Judge(measured={("h200", "tp8-r4"), ("h200", "tp8-r1")})
    outcome = lane.propose(options(checkout, workloads=("tp8-r4",)), fakes.services(judge), Voice(quiet=True))
    table = table_of(checkout, outcome.branch)
    assert (table.at("h200", 8, 4).config["BLOCK"], table.at("h200", 8, 4).basis) == (128, "measured")
    assert table.at("h200", 8, 1).config == {"BLOCK": 32, "flip": False, "num_warps": 4}
    assert {call[2] for call in judge.calls if call[0] == "screen"} == {("tp8-r4",)}
    with Archive(Path(outcome.directory)) as archive:
        confirmed = {claim.workloads: verdict for claim, verdict in archive.confirmed()}
    # gb300 keeps the hand-picked entry at four rows, so it is timed there, beside what was found.
    assert {names: [c.workload for c in v.cells] for names, v in confirmed.items()} == {
        ("tp8-r1", "tp8-r4"): ["tp8-r4"], ("tp8-r4",): ["tp8-r4"],
    }  # fmt: skip


def test_a_workload_that_no_place_has_is_refused(checkout):
    with pytest.raises(UserError, match="no place of copy is judged at 'tp8-r2'") as refused:
        lane.propose(options(checkout, workloads=("tp8-r2",)), fakes.services(fakes.Judge()), Voice(quiet=True))
    assert refused.value.how == "it has tp8-r1, tp8-r4"


def test_every_pick_is_confirmed_on_its_own_buckets(checkout):
    judge = fakes.Judge()
    lane.propose(options(checkout), fakes.services(judge), Voice(quiet=True))
    confirmations = [call for call in judge.calls if call[0] == "confirm"]
    # Two picks for h200, and the configuration that gb300 keeps.
    assert sorted(call[2] for call in confirmations) == [("tp8-r1",), ("tp8-r1", "tp8-r4"), ("tp8-r4",)]
    digests = [call[1] for call in judge.calls if call[0] == "screen"]
    assert len(digests) == len(set(digests))


def test_commit_has_trailers_the_fallback_identity_and_one_parent(checkout):
    outcome = lane.propose(options(checkout), fakes.services(fakes.Judge()), Voice(quiet=True))
    shown = fakes.git(checkout, "log", "-1", "--format=%an <%ae>%n%P%n%B", outcome.branch).splitlines()
    assert shown[0] == "fasttrack <fasttrack@localhost>"
    assert shown[1] == fakes.git(checkout, "rev-parse", "main")
    assert f"Fasttrack-Run: {outcome.run}" in shown and "Fasttrack-Op: copy" in shown
    assert fakes.git(checkout, "worktree", "list").count("\n") == 0


def test_the_users_checkout_is_not_touched(checkout):
    (checkout / "models/toy/kernels/copy.py").write_text("# my unfinished work\n")
    (checkout / "notes.txt").write_text("untracked\n")
    fakes.git(checkout, "add", "notes.txt")
    hook = checkout / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch $GIT_DIR/../hooked\n")
    hook.chmod(0o755)
    before = fingerprint(checkout)
    outcome = lane.propose(options(checkout), fakes.services(fakes.Judge()), Voice(quiet=True))
    assert outcome.exit_code == 0
    assert fingerprint(checkout) == before
    # What was judged and committed is the base commit's kernel, not the unfinished one.
    assert fakes.git(checkout, "show", f"{outcome.branch}:models/toy/kernels/copy.py") == fakes.KERNEL.strip()


def test_same_seed_same_choice_and_a_transcript_replays_to_it(checkout, tmp_path):
    first = lane.propose(options(checkout, rounds=8), fakes.services(fakes.Judge()), Voice(quiet=True))
    judge = fakes.Judge()
    second = lane.propose(options(checkout, rounds=8), fakes.services(judge), Voice(quiet=True))
    transcript = Path(first.directory) / "transcript.jsonl"
    replayed = lane.propose(
        options(checkout, rounds=8, agent="replay", transcript=transcript), fakes.services(fakes.Judge()),
        Voice(quiet=True),
    )  # fmt: skip
    assert table_of(checkout, first.branch) == table_of(checkout, second.branch) == table_of(checkout, replayed.branch)
    assert transcript.read_text() == (Path(replayed.directory) / "transcript.jsonl").read_text()


def test_dry_run_touches_nothing(checkout, tmp_path, capsys):
    before = fingerprint(checkout)
    outcome = lane.propose(options(checkout, dry_run=True), fakes.services(fakes.Judge()), Voice())
    printed = capsys.readouterr().out.splitlines()
    assert outcome.exit_code == 0 and printed[0].startswith("agent search: ")
    assert fingerprint(checkout) == before and not (tmp_path / "state").exists()
    assert fakes.git(checkout, "branch", "--list", "fasttrack/*") == ""


def test_a_pick_that_fails_confirmation_gives_way_to_the_next_best(checkout):
    judge = fakes.Judge()
    judge.refuse_confirmation = lambda candidate, workloads: candidate.config["BLOCK"] == 16
    outcome = lane.propose(options(checkout), fakes.services(judge), Voice(quiet=True))
    # Without BLOCK 16 the best at one row is BLOCK 32 with 1 warp.
    assert table_of(checkout, outcome.branch).at("h200", 8, 1).config == {"BLOCK": 32, "flip": False, "num_warps": 1}
    assert outcome.exit_code == 0 and any("was not confirmed" in note for note in outcome.notes)


def test_nothing_confirmed_is_a_failure_without_a_branch(checkout):
    judge = fakes.Judge()
    judge.refuse_confirmation = lambda candidate, workloads: True
    outcome = lane.propose(options(checkout), fakes.services(judge), Voice(quiet=True))
    assert outcome.exit_code == 1 and outcome.branch is None
    assert fakes.git(checkout, "branch", "--list", "fasttrack/*") == ""


@pytest.mark.parametrize(("status", "code"), [(Status.REJECTED, 1), (Status.INVALID, 3), (Status.NOT_RUN, 3)])
def test_exit_code_when_nothing_is_accepted(checkout, status, code):
    judge = fakes.Judge()
    judge.status = lambda candidate: status
    outcome = lane.propose(options(checkout, rounds=6), fakes.services(judge), Voice(quiet=True))
    assert (outcome.exit_code, outcome.commit) == (code, None)
    # A judge that cannot rule is not asked for ever.
    assert outcome.rounds == (6 if status is Status.REJECTED else 3)


def test_a_modelled_time_does_not_replace_a_measured_entry(checkout):
    path = checkout / "models/toy/dispatch/copy.toml"
    table = dispatch.parse(path.read_text(), path)
    measured = {"basis": "measured", "microseconds": 500.0, "evidence": "evidence/copy/old.json"}
    entries = [e.model_copy(update=measured) if e.place == ("h200", 8, (1, 1)) else e for e in table.entry]
    path.write_text(dispatch.render(dispatch.Table(entry=tuple(entries))))
    fakes.commit_all(checkout, "measured")
    outcome = lane.propose(options(checkout), fakes.services(fakes.Judge()), Voice(quiet=True))
    after = table_of(checkout, outcome.branch)
    assert after.at("h200", 8, 1) == entries[2] and after.at("h200", 8, 4).config["BLOCK"] == 128
    # The honest twin: a measurement below the entry's replaces it.
    judge = fakes.Judge(measured={("h200", "tp8-r1")})
    outcome = lane.propose(options(checkout), fakes.services(judge), Voice(quiet=True))
    entry = table_of(checkout, outcome.branch).at("h200", 8, 1)
    assert (entry.basis, entry.microseconds, entry.config["BLOCK"]) == ("measured", 101.0, 16)


def test_submit_installs_what_was_judged_and_confirms_kept_entries(checkout):
    judge = fakes.Judge()
    candidate = Candidate(op="copy", entry="mine.py", files={"mine.py": "# new\n" + fakes.KERNEL}, config={
        "BLOCK": 16, "flip": False, "num_warps": 1})  # fmt: skip
    outcome = lane.propose(options(checkout, submitted=candidate), fakes.services(judge), Voice(quiet=True))
    assert outcome.exit_code == 0
    assert fakes.git(checkout, "show", f"{outcome.branch}:models/toy/kernels/copy.py").startswith("# new")
    table = table_of(checkout, outcome.branch)
    # At four rows BLOCK 16 costs 213 and the table's BLOCK 32 with the new sources 200.
    assert table.at("h200", 8, 1).config["BLOCK"] == 16 and table.at("h200", 8, 4).config["BLOCK"] == 32
    # gb300 was not timed: its old configuration had to pass with the new sources, at both workloads.
    confirmations = [call for call in judge.calls if call[0] == "confirm"]
    confirmed = {(digest, workload) for _, digest, names in confirmations for workload in names}
    kept = Candidate(
        op="copy", entry="kernels/copy.py", config=table.at("gb300", 8, 1).config,
        files={"kernels/copy.py": "# new\n" + fakes.KERNEL, "kernels/extra.py": ""},
    )  # fmt: skip
    assert {(kept.digest(), "tp8-r1"), (kept.digest(), "tp8-r4")} <= confirmed


def test_submit_of_a_wrong_kernel_says_why(checkout):
    candidate = Candidate(op="copy", entry="mine.py", files={"mine.py": "# WRONG\n"})
    outcome = lane.propose(options(checkout, submitted=candidate), fakes.services(fakes.Judge()), Voice(quiet=True))
    assert outcome.exit_code == 1 and outcome.notes == ("C10.wrong: off by 3",)


def test_submit_refuses_a_file_that_the_manifest_does_not_list(checkout):
    candidate = Candidate(op="copy", entry="mine.py", files={"mine.py": fakes.KERNEL, "more.py": ""})
    with pytest.raises(UserError, match="kernels/more.py"):
        lane.propose(options(checkout, submitted=candidate), fakes.services(fakes.Judge()), Voice(quiet=True))


def test_an_unconfined_change_leaves_no_branch(checkout):
    parts = fakes.services(fakes.Judge(), broken=("confinement.outside: fasttrack/lane.py: changed",))
    outcome = lane.propose(options(checkout), parts, Voice(quiet=True))
    assert outcome.exit_code == 1 and outcome.notes == ("confinement.outside: fasttrack/lane.py: changed",)
    assert fakes.git(checkout, "branch", "--list", "fasttrack/*") == ""


def test_an_existing_branch_is_refused_before_any_work(checkout, tmp_path):
    fakes.git(checkout, "branch", "taken")
    judge = fakes.Judge()
    with pytest.raises(UserError, match="branch 'taken' exists already"):
        lane.propose(options(checkout, branch="taken"), fakes.services(judge), Voice(quiet=True))
    with pytest.raises(UserError, match="cannot be the name of a branch"):
        lane.propose(options(checkout, branch="a..b"), fakes.services(judge), Voice(quiet=True))
    assert not judge.calls and not (tmp_path / "state").exists()


def test_unknown_op_agent_and_hardware(checkout):
    for change, text in [
        ({"op": "kopy"}, "no op"), ({"agent": "orakel"}, "no agent 'orakel'"), ({"hardware": ("b200",)}, "hardware 'b200'"),
        ({"agent": "replay"}, "--transcript"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=text):
            lane.propose(options(checkout, **change), fakes.services(fakes.Judge()), Voice(quiet=True))


def test_state_directory_inside_the_checkout_is_refused(checkout, monkeypatch):
    monkeypatch.setenv("FASTTRACK_HOME", str(checkout / "runs"))
    with pytest.raises(UserError, match="lies inside the checkout"):
        lane.propose(options(checkout), fakes.services(fakes.Judge()), Voice(quiet=True))


def test_no_checkout(tmp_path):
    with pytest.raises(UserError, match="no checkout"):
        lane.propose(options(tmp_path), fakes.services(fakes.Judge()), Voice(quiet=True))


def test_ctrl_c_stops_cleanly_and_resume_makes_the_same_choices(checkout):
    whole = lane.propose(options(checkout, rounds=10), fakes.services(fakes.Judge()), Voice(quiet=True))
    judge = fakes.Judge()
    judge.interrupt_after = 7
    stopped = lane.propose(options(checkout, rounds=10), fakes.services(judge), Voice(quiet=True))
    assert stopped.exit_code == 3 and f"--resume {stopped.run}" in stopped.message and stopped.rounds == 7
    assert fakes.git(checkout, "branch", "--list", f"*{stopped.run}") == ""
    later = fakes.Judge()
    resumed = lane.resume("toy", None, None, checkout, fakes.services(later), Voice(quiet=True))
    assert resumed.run == stopped.run and resumed.exit_code == 0
    assert table_of(checkout, resumed.branch) == table_of(checkout, whole.branch)
    screens = [call[1] for call in judge.calls + later.calls if call[0] == "screen"]
    assert len(screens) == len(set(screens)) == 10
    transcripts = [(Path(o.directory) / "transcript.jsonl").read_text() for o in (whole, resumed)]
    assert transcripts[0] == transcripts[1]
    again = lane.resume("toy", "copy", stopped.run, checkout, fakes.services(later), Voice(quiet=True))
    assert again.exit_code == 0 and "is over" in again.message
    with pytest.raises(UserError, match="no unfinished run"):
        lane.resume("toy", None, None, checkout, fakes.services(later), Voice(quiet=True))


def test_kill_9_at_any_moment_loses_and_repeats_nothing(checkout, tmp_path):
    log = tmp_path / "log"
    driver = [sys.executable, str(Path(__file__).parent / "lane_driver.py"), str(checkout), str(log)]
    mode = "propose"
    for pause in (0.9, 1.5, 2.1, 2.7):
        child = subprocess.Popen([*driver, mode], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            child.wait(timeout=pause)
        except subprocess.TimeoutExpired:
            child.kill()
        child.wait()
        mode = "resume" if list((tmp_path / "state").glob("*/*/run.json")) else "propose"
    last = subprocess.run([*driver, "resume"], capture_output=True, text=True)
    ledger = next((tmp_path / "state").glob("*/*/ledger.jsonl")).read_text()
    assert '"event":"finish"' in ledger, last.stderr
    whole = lane.propose(options(checkout, rounds=10), fakes.services(fakes.Judge()), Voice(quiet=True))
    branch = fakes.git(checkout, "for-each-ref", "--format=%(refname:short)", "refs/heads/fasttrack").splitlines()[0]
    assert table_of(checkout, branch) == table_of(checkout, whole.branch)
    # A verdict that reached the ledger was asked for once; only one cut off by each kill may have been asked twice.
    closed = ledger.count('"event":"close"')
    assert closed == len({tuple(map(str, line.split(", ")[:-1])) for line in log.read_text().splitlines()})
    assert len(log.read_text().splitlines()) <= closed + 4
