"""Pieces that are no units: stopped anywhere they go on to the same bytes, and nothing that is kept is computed again."""

import errno
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.numerics import long_state, material
from fasttrack_validation.contracts.kimi_k3.numerics.weights import WeightsOf
from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import long_sections, long_steps, op_rung, stage
from fasttrack_validation.numerics.whole_model.lines import Lines, writing
from fasttrack_validation.numerics.whole_model.long_rung import Point
from fasttrack_validation.numerics.whole_model.pieces import Job, Pieces
from fasttrack_validation.numerics.whole_model.plan import Settings
from fasttrack_validation.numerics.whole_model.verdict import Subject

STEPS, MARKS = 230, (1, 10, 100, 230)


class Stop(Exception):
    pass


# Lines


@pytest.mark.parametrize("cut", [b'{"n":2}', b'{"n"', b""])
def test_what_a_stop_cut_off_is_written_again(tmp_path, cut):
    file = tmp_path / "a.jsonl"
    with Lines(file, '{"of":1}') as lines:
        lines.append('{"n":1}')
    with file.open("ab") as end:
        end.write(cut)
    with Lines(file, '{"of":1}') as lines:
        assert lines.lines == ['{"n":1}']
        lines.append('{"n":2}')
    assert file.read_text() == '{"of":1}\n{"n":1}\n{"n":2}\n'


@pytest.mark.parametrize(
    "data",
    [b'{"of":1}\nno json\n', b'{"of":1}\n\xff\n', b'{"of":1}\n{}\n', b'{"of":1}\nnull\n', b"\0\0\0\0\n", b"\n"],
    ids=["no json", "no text", "another record", "nothing", "no first line", "an empty one"],
)
def test_lines_that_nobody_wrote_are_damage(tmp_path, data):
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(UserError, match="a.jsonl is damaged"):
        Lines(tmp_path / "a.jsonl", '{"of":1}', Point)


def test_lines_about_something_else_are_refused(tmp_path):
    for first, other in (('{"of":1}', '{"of":2}'), ("a" * 64, "b" * 64)):
        with Lines(tmp_path / "a.jsonl", first):
            pass
        with pytest.raises(UserError, match="another checkpoint"):
            Lines(tmp_path / "a.jsonl", other)
        (tmp_path / "a.jsonl").unlink()


def test_every_line_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append((tmp_path / "a.jsonl").read_text()), fsync(handle)))
    with Lines(tmp_path / "a.jsonl", "{}") as lines:
        lines.append('{"n":1}')
    # The directory, where its name is new; then the file, each time.
    assert synced == ["", "{}\n", '{}\n{"n":1}\n']
    before = (tmp_path / "a.jsonl").stat().st_ino
    with Lines(tmp_path / "a.jsonl", "{}"):
        pass
    assert (tmp_path / "a.jsonl").stat().st_ino == before, "what is on disk stays there"


def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Lines(tmp_path / "a.jsonl", "{}") as lines:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*a.jsonl'"):
            lines.append("{}")
    assert lines.lines == []
    for said in ("I/O error: No space left on device (os error 28)", "out of paper"):
        with pytest.raises(Exception, match="b.safetensors" if "space" in said else "out of paper"), writing(Path("b.safetensors")):
            raise RuntimeError(said)


# Many steps


class Counted:
    """A path that counts its steps."""

    def __init__(self, path):
        self.path, self.steps = path, 0
        self.window, self.state = path.window, path.state

    def step(self, projected):
        self.path.window, self.path.state = self.window, self.state
        out = self.path.step(projected)
        self.window, self.state = self.path.window, self.path.state
        self.steps += 1
        return out


def recurrences():
    drift = long_state.Drift(Architecture.from_config(), 48, 3)
    return drift, {"oracle": Counted(drift.oracle()), "stock": Counted(drift.plain()), "again-1": Counted(drift.again(1))}


def until(step):
    def say(done):
        if done == step:
            raise Stop

    return say


@pytest.mark.parametrize(("stopped", "again"), [(50, 230), (100, 130), (200, 30), (230, 0)])
def test_steps_go_on_where_they_were_written_down(tmp_path, monkeypatch, stopped, again):
    monkeypatch.setattr(long_steps, "KEPT_EVERY", 100)
    drift, paths = recurrences()
    whole = long_steps.states(drift, paths, STEPS, MARKS)
    file = tmp_path / "deep" / "paths.safetensors"
    drift, paths = recurrences()
    with pytest.raises(Stop):
        long_steps.states(drift, paths, STEPS, MARKS, file, until(stopped))
    drift, paths = recurrences()
    found = long_steps.states(drift, paths, STEPS, MARKS, file)
    assert {path.steps for path in paths.values()} == {again}
    assert tuple(found) == MARKS == tuple(whole)
    for mark in MARKS:
        for name in paths:
            assert all(torch.equal(*pair) for pair in zip(found[mark][name], whole[mark][name], strict=True))


@pytest.mark.parametrize("damage", [lambda data: data[:99], lambda data: b"", lambda data: data[:-4096] + bytes(4096)])
def test_what_is_no_longer_as_it_was_written_down_is_not_taken_up(tmp_path, monkeypatch, damage):
    monkeypatch.setattr(long_steps, "KEPT_EVERY", 100)
    file = tmp_path / "a.safetensors"
    drift, paths = recurrences()
    whole = long_steps.states(drift, paths, STEPS, MARKS, file)
    file.write_bytes(damage(file.read_bytes()))
    drift, paths = recurrences()
    found = long_steps.states(drift, paths, STEPS, MARKS, file)
    assert {path.steps for path in paths.values()} == {STEPS}
    assert all(torch.equal(*pair) for pair in zip(found[STEPS]["stock"], whole[STEPS]["stock"], strict=True))


def test_a_state_that_is_not_taken_up_shows(tmp_path, monkeypatch):
    """The inverse: with the state left as it was at first, what comes out differs."""
    monkeypatch.setattr(long_steps, "KEPT_EVERY", 100)
    drift, paths = recurrences()
    whole = long_steps.states(drift, paths, STEPS, MARKS, tmp_path / "a.safetensors")
    monkeypatch.setattr(long_steps._Moved, "hold", lambda self, held: None)
    drift, paths = recurrences()
    with pytest.raises(Stop):
        long_steps.states(drift, paths, STEPS, MARKS, tmp_path / "b.safetensors", until(100))
    found = long_steps.states(drift, recurrences()[1], STEPS, MARKS, tmp_path / "b.safetensors")
    assert not torch.equal(found[STEPS]["stock"][0], whole[STEPS]["stock"][0])


def test_a_kernels_pools_are_put_back_in_place():
    kernel = long_steps.Kernel.__new__(long_steps.Kernel)
    kernel.window, kernel._pool, kernel._slots = torch.zeros(4, 3), torch.zeros(6, 2), 1 + torch.arange(4)
    places = kernel.window.data_ptr(), kernel._pool.data_ptr()
    moved = long_steps._Moved(kernel)
    moved.hold({"window": torch.ones(4, 3), "state": torch.ones(4, 2)})
    assert (kernel.window.data_ptr(), kernel._pool.data_ptr()) == places
    assert kernel.window.eq(1).all() and kernel._pool[:, 0].tolist() == [0, 1, 1, 1, 1, 0]
    held = moved.held()
    kernel._pool.zero_()
    assert held["state"].eq(1).all()


# Pieces


def pieces(out) -> Pieces:
    settings = Settings(candidate="plain:twin", tps=(1, 8), tokens=8, steps=3, context=(256, 320), replicas=2)
    subject = Subject(model="m", checkpoint="c", candidate="d", harness="h", settings=settings)
    out.mkdir(parents=True, exist_ok=True)
    weights = WeightsOf(checkpoint=material.CHECKPOINT)
    return Pieces(Job(subject=subject, out=out, weights=weights, device="cpu", contract="kimi_k3", directory=out))


def test_exams_are_sat_once(tmp_path, monkeypatch):
    sat = []

    def sit(contract, at, distribution, seed, run):
        if len(sat) == left:
            raise Stop
        sat.append((contract.op, at.axes["tp"], at.axes["rows"], distribution))
        return op_rung.Exam(
            op=contract.op, tp=at.axes["tp"], rows=at.axes["rows"], distribution=distribution, workload=at.name, rulings=()
        )

    monkeypatch.setattr(op_rung, "sit", sit)
    left = -1
    with pieces(tmp_path / "whole") as one:
        one.run("op")
    every = list(sat)
    assert len(set(every)) == len(every) > 100 and {tp for _, tp, _, _ in every} == {1, 8}
    sat.clear()
    for left in (1, len(every) // 2 + 3, -1):
        with pieces(tmp_path / "parts") as one:
            if left < 0:
                one.run("op")
            else:
                with pytest.raises(Stop):
                    one.run("op")
    assert sorted(sat) == sorted(every)
    names = [file.name for file in (tmp_path / "parts").iterdir()]
    assert names == ["op.jsonl.gz"]
    assert (tmp_path / "parts/op.jsonl.gz").read_bytes() == (tmp_path / "whole/op.jsonl.gz").read_bytes()


def test_progress_counts_the_exams_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(
        op_rung, "sit",
        lambda contract, at, distribution, *rest: op_rung.Exam(
            op=contract.op, tp=at.axes["tp"], rows=at.axes["rows"], distribution=distribution, workload=at.name, rulings=()
        ),
    )  # fmt: skip
    told: list[int] = []

    def say(piece, done, of):
        told.append(done)
        if len(told) >= 4:
            raise Stop

    with pytest.raises(Stop), pieces(tmp_path) as one:
        one.run("op", say)
    kept = len((tmp_path / "op.jsonl").read_text().splitlines()) - 1  # a thread may have ended another exam meanwhile
    assert told == list(range(1, kept + 1)) and kept >= 4
    told.clear()
    with pytest.raises(Stop), pieces(tmp_path) as one:
        one.run("op", say)
    assert told[:4] == list(range(kept + 1, kept + 5))


def test_sections_of_the_long_rung_are_computed_once(tmp_path, monkeypatch):
    with pieces(tmp_path / "whole") as one:
        one.run("long_context")
    attended, computed = long_sections.long_attention.contexts, []

    def contexts(tp, context, seed, replicas):
        if context in computed or len(computed) == left:
            raise Stop
        computed.append(context)
        return attended(tp, context, seed, replicas)

    monkeypatch.setattr(long_sections.long_attention, "contexts", contexts)
    for left in (0, 1):
        with pytest.raises(Stop), pieces(tmp_path / "parts") as one:
            one.run("long_context")
    assert json.loads((tmp_path / "parts/long.jsonl").read_text().splitlines()[2])["name"] == "context of 256"
    monkeypatch.setattr(long_steps, "states", lambda *given: pytest.fail("the steps are kept"))
    left = 2
    with pieces(tmp_path / "parts") as one:
        one.run("long_context")
    assert computed == [256, 320]
    assert sorted(file.name for file in (tmp_path / "parts").iterdir()) == ["long.jsonl.gz"]
    assert (tmp_path / "parts/long.jsonl.gz").read_bytes() == (tmp_path / "whole/long.jsonl.gz").read_bytes()
    lines = gzip.decompress((tmp_path / "parts/long.jsonl.gz").read_bytes()).splitlines()
    points = [Point.model_validate_json(line) for line in lines[1:]]
    assert [p.what for p in points[:4]] == ["state", "output"] * 2 and points[-1].what == "context of 320"


def test_what_a_finished_piece_was_gone_on_with_is_removed(tmp_path):
    for name in ("op", "long", "greedy-tp1-free"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
        (tmp_path / f"{name}.states").mkdir()
        (tmp_path / f"{name}.states/a.safetensors").touch()
    (tmp_path / "op.jsonl.gz").touch()
    (tmp_path / "long.jsonl.gz").touch()
    stage._tidy(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["greedy-tp1-free.jsonl", "greedy-tp1-free.states", "long.jsonl.gz", "op.jsonl.gz"]


# Processes

CHILD = """
import os, sys, time
from fasttrack_validation.numerics.whole_model.orphans import end_with
end_with(os.getppid())
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_process_is_killed_with_who_started_it():
    """By SIGKILL, of which no handler knows, and although it looks at nothing."""
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(300):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("it lives on")
