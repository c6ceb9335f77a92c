import errno
import os
import subprocess
import sys

import lane_fakes as fakes
import pytest

from fasttrack import archive as archives
from fasttrack.agents.protocol import Proposal
from fasttrack.archive import Archive, Request, find_run
from fasttrack.storage import AppendOnly, home, runs_directory, write_file
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate


def request(run="r1", **changes):
    values = {
        "run": run, "model": "toy", "op": "copy", "agent": "search", "why_agent": "default", "rounds": 4,
        "budget_minutes": 1.0, "seed": 1, "hardware": ("h200",), "branch": f"b/{run}", "base": "0" * 40,
    }  # fmt: skip
    return Request(**{**values, **changes})


def proposal(block=16):
    config = {"BLOCK": block, "num_warps": 1, "flip": False}
    return Proposal(Candidate(op="copy", entry="k.py", files={"k.py": ""}, config=config), f"block {block}")


def verdict(of):
    return fakes.Judge().screen(of.candidate)


def never():
    raise AssertionError("asked again")


def test_a_closed_evaluation_is_never_run_again(tmp_path):
    one, two = proposal(16), proposal(32)
    with Archive.create(tmp_path, request()) as archive:
        first = archive.evaluate("screen", one, (), lambda: verdict(one))
        archive.evaluate("screen", two, (), lambda: verdict(two))
        archive.evaluate("screen", one, (), never)
        confirmed = archive.evaluate("confirm", one, ("w",), lambda: verdict(one))
    with Archive(tmp_path / "r1") as archive:
        assert archive.evaluate("screen", two, (), never).candidate_digest == two.candidate.digest()
        assert archive.evaluate("confirm", one, ("w",), never) == confirmed
        screened = archive.screened()
        assert [p.candidate.config["BLOCK"] for p, _ in screened] == [16, 32, 16, 32]
        assert screened[0] == (one, first) and screened[2] == (one, first)
        # Other workloads are another question.
        with pytest.raises(AssertionError):
            archive.evaluate("confirm", one, ("w", "v"), never)


def test_an_evaluation_cut_off_is_claimed_but_not_closed_and_runs_again(tmp_path):
    one = proposal()
    with Archive.create(tmp_path, request()) as archive, pytest.raises(KeyboardInterrupt):
        archive.evaluate("screen", one, (), lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with Archive(tmp_path / "r1") as archive:
        assert archive.screened() == []
        archive.evaluate("screen", one, (), lambda: verdict(one))
        assert len(archive.screened()) == 1


@pytest.mark.parametrize("keep", [1, 10, -1])
def test_a_torn_last_record_is_cut_off(tmp_path, keep):
    one, two = proposal(16), proposal(32)
    with Archive.create(tmp_path, request()) as archive:
        archive.evaluate("screen", one, (), lambda: verdict(one))
        before = (tmp_path / "r1/ledger.jsonl").read_bytes()
        archive.evaluate("screen", two, (), lambda: verdict(two))
    path = tmp_path / "r1/ledger.jsonl"
    added = path.read_bytes()[len(before) :]
    path.write_bytes(before + added[:keep])
    with Archive(tmp_path / "r1") as archive:
        assert archive.torn == len(added[:keep]) - (added[:keep].rfind(b"\n") + 1) > 0
        assert [p.candidate for p, _ in archive.screened()] == [one.candidate]
        archive.evaluate("screen", two, (), lambda: verdict(two))
    with Archive(tmp_path / "r1") as archive:
        assert archive.torn == 0 and len(archive.screened()) == 2


def test_damage_elsewhere_is_reported_with_its_line(tmp_path):
    with Archive.create(tmp_path, request()) as archive:
        archive.finish(0, "done")
    path = tmp_path / "r1/ledger.jsonl"
    path.write_bytes(b"\0\0\0\n" + path.read_bytes())
    with pytest.raises(UserError, match=r"ledger\.jsonl:1 is not a ledger record"):
        Archive(tmp_path / "r1")
    # The refusal lets go of the lock.
    path.write_bytes(path.read_bytes()[4:])
    Archive(tmp_path / "r1").close()


def test_two_processes_never_share_a_run(tmp_path):
    code = f"from pathlib import Path; from fasttrack.archive import Archive; Archive(Path({str(tmp_path / 'r1')!r}))"
    with Archive.create(tmp_path, request()):
        with pytest.raises(UserError, match="held by another process"):
            Archive(tmp_path / "r1")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "held by another process" in done.stderr
        with pytest.raises(UserError, match="cannot write"):
            Archive.create(tmp_path, request())
        Archive.create(tmp_path, request("r2")).close()
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_or_broken_disk_leaves_nothing_half_written(tmp_path, monkeypatch, code):
    one = proposal()
    with Archive.create(tmp_path, request()) as archive:
        archive.evaluate("screen", one, (), lambda: verdict(one))
        before = (tmp_path / "r1/ledger.jsonl").read_bytes()
        real = os.pwrite

        def partial(descriptor, data, offset):
            if offset > len(before):
                raise OSError(code, os.strerror(code))
            return real(descriptor, data[:3], offset)

        monkeypatch.setattr(os, "pwrite", partial)
        with pytest.raises(UserError, match="cannot write .*ledger.jsonl"):
            archive.finish(0, "done")
        monkeypatch.undo()
        assert (tmp_path / "r1/ledger.jsonl").read_bytes() == before and archive.finished is None
        archive.finish(0, "done")
    with Archive(tmp_path / "r1") as archive:
        assert archive.finished.message == "done"


def test_write_file_keeps_the_old_content_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_file(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UserError, match="No space left"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_an_altered_candidate_is_refused(tmp_path):
    one = proposal()
    with Archive.create(tmp_path, request()) as archive:
        archive.evaluate("screen", one, (), lambda: verdict(one))
        (file,) = (tmp_path / "r1/candidates").iterdir()
        file.write_text(file.read_text().replace("16", "17"))
        with pytest.raises(UserError, match="does not have the digest"):
            archive.screened()


def test_find_run_takes_the_latest_unfinished_one(tmp_path):
    for run, changes in [("a", {}), ("b", {"op": "other"}), ("c", {}), ("d", {"model": "else"})]:
        Archive.create(tmp_path, request(run, **changes)).close()
    (tmp_path / "e").mkdir()
    assert find_run(tmp_path, None, model="toy", op="copy").name == "c"
    with Archive(tmp_path / "c") as archive:
        archive.finish(0, "done")
    assert find_run(tmp_path, None, model="toy", op="copy").name == "a"
    assert find_run(tmp_path, None, model="toy", op=None).name == "b"
    assert find_run(tmp_path, "c", model="toy", op=None).name == "c"
    with pytest.raises(UserError, match="no run 'z'"):
        find_run(tmp_path, "z", model="toy", op=None)


def test_run_ids_sort_by_time_and_differ():
    ids = [archives.new_run_id() for _ in range(20)]
    assert len(set(ids)) > 1 and all(len(name) == 20 for name in ids)


def test_home_follows_the_environment(tmp_path):
    assert str(home({"FASTTRACK_HOME": "/a/b"})) == "/a/b"
    assert str(home({"XDG_STATE_HOME": "/s"})) == "/s/fasttrack"
    assert home({"XDG_STATE_HOME": "relative"}).parts[-3:] == (".local", "state", "fasttrack")
    with pytest.raises(UserError, match="not absolute"):
        home({"FASTTRACK_HOME": "relative"})


def test_runs_directory_tells_repositories_of_one_name_apart(tmp_path):
    environment = {"FASTTRACK_HOME": str(tmp_path / "state")}
    one, two = (runs_directory(tmp_path / where / "repo", environment) for where in ("a", "b"))
    assert one != two and one.parent == two.parent == tmp_path / "state"
    (tmp_path / "repo").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "repo")
    with pytest.raises(UserError, match="inside the checkout"):
        runs_directory(tmp_path / "repo", {"FASTTRACK_HOME": str(tmp_path / "link/state")})


def test_append_only_file_survives_reopening(tmp_path):
    file = AppendOnly(tmp_path / "f")
    for line in ("one", "zwei ü", ""):
        file.append(line)
    file.close()
    again = AppendOnly(tmp_path / "f")
    assert again.lines == ["one", "zwei ü", ""] and again.torn == 0
    again.close()
