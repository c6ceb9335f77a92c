"""A run's pieces and the processes that take them: what is not kept, in which order, and what a failure leaves."""

import gzip
from collections import deque

import pytest
import token_records
from fasttrack_validation.contracts.kimi_k3.numerics import material
from fasttrack_validation.contracts.kimi_k3.numerics.weights import WeightsOf
from fasttrack_validation.numerics.whole_model import stage, verdict
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.pieces import Job
from fasttrack_validation.numerics.whole_model.plan import Settings, Work
from fasttrack_validation.numerics.whole_model.scenario import RungName, Unit
from fasttrack_validation.numerics.whole_model.verdict import Subject

ALL = 2 * 2 + 9 + 1 + 2
"""Streams and batches at two more TPs, nine batches and streams at the main one, a greedy run, ops and what is long"""


def job(out, *, candidate: str = "specialised", device: str = "cpu", weights: str = "cpu") -> Job:
    settings = Settings(candidate=candidate, device=device, tokens=8)
    subject = Subject(model="m", checkpoint="c", candidate="d", harness="h", settings=settings)
    named = WeightsOf(checkpoint=material.CHECKPOINT)
    return Job(subject=subject, out=out, weights=named, device=weights, contract="kimi_k3", directory=out)


def test_processes_share_all_pieces_where_paths_are_on_the_cpu(tmp_path):
    ((benches, pieces),) = stage.Stage(job(tmp_path, device="cuda"), jobs=3)._lanes()
    assert benches == 3 and pieces[:2] == ["long_context", "op"]
    assert len(set(pieces)) == len(pieces) == ALL + 1
    # Kernels are not interpreted over many steps; the plain path takes them.
    ((_, interpreted),) = stage.Stage(job(tmp_path), jobs=3)._lanes()
    assert "long_context" not in interpreted and len(interpreted) == ALL
    ((_, plain),) = stage.Stage(job(tmp_path, candidate="plain:twin"), jobs=3)._lanes()
    assert "long_context" in plain


def test_one_process_has_the_weights_on_a_gpu(tmp_path):
    lanes = stage.Stage(job(tmp_path, device="cuda", weights="cuda"), jobs=8)._lanes()
    assert [benches for benches, _ in lanes] == [1, 1, 1]
    assert [pieces for _, pieces in lanes[1:]] == [["long_context"], ["op"]]


def test_what_is_kept_is_not_begun_again(tmp_path):
    (tmp_path / "op.jsonl.gz").touch()
    (tmp_path / "greedy-tp1-free.jsonl.gz").touch()
    ((_, pieces),) = stage.Stage(job(tmp_path))._lanes()
    assert len(pieces) == ALL - 2 and not {"op", "greedy-tp1-free"} & set(pieces)


class Bench:
    """Fails at one piece."""

    restarts = 0
    ran: list[str] = []

    def __init__(self, job: Job) -> None:
        pass

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error) -> None:
        pass

    def run(self, piece, say, stopped) -> None:
        if piece == "bad":
            raise ValueError(piece)
        Bench.ran.append(piece)

    def restart(self) -> None:
        Bench.restarts += 1


def test_a_failure_does_not_take_what_comes_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "Bench", Bench)
    run = stage.Stage(job(tmp_path / "out"))
    monkeypatch.setattr(run, "_lanes", lambda: [(1, ["good", "bad", "better"])])
    monkeypatch.setattr(stage, "judge", lambda out: pytest.fail("there is nothing to judge"))
    with pytest.raises(ValueError, match="bad"):
        run.run()
    assert (Bench.ran, Bench.restarts) == (["good", "better"], 1)


def test_the_last_piece_may_be_anothers():
    assert stage._next(deque()) is None and stage._next(deque(["a"])) == "a"


def kept(out, subject: Subject, name: str) -> None:
    """Records of a made-up unit."""
    unit = token_records.unit(count=40)
    header = unit.header.model_copy(update={"unit": name, "subject": subject.digest()})
    lines = [header.canonical_json(), *(step.canonical_json() for step in unit.steps), unit.end.canonical_json()]
    with gzip.open(out / f"{name}.jsonl.gz", "wt") as file:
        file.write("".join(line + "\n" for line in lines))


def test_a_unit_that_is_missing_keeps_its_rung_open(tmp_path, monkeypatch):
    settings = Settings(candidate="plain:twin", rungs=(RungName.TEACHER_FORCED,), tps=(1,), tokens=8)
    subject = Subject(model="m", checkpoint="c", candidate="d", harness="h", settings=settings)
    (tmp_path / "run.json").write_text(subject.canonical_json() + "\n")
    units = [Unit(RungName.TEACHER_FORCED, name, 1, 1, 40) for name in ("one", "other")]
    monkeypatch.setattr(verdict, "works", lambda settings, material: [Work(unit, tuple) for unit in units])
    kept(tmp_path, subject, units[0].key)
    found = verdict.judge(tmp_path)
    assert found.result is Result.INCONCLUSIVE and [rung.result for rung in found.rungs] == [Result.PASS]
    missing = [entry for entry in found.not_run if entry.reason != "not asked for"]
    assert [(entry.rung, entry.tp) for entry in missing] == [(RungName.TEACHER_FORCED, 1)]
    assert missing[0].reason.startswith(f"{units[1].key} is missing")
    kept(tmp_path, subject, units[1].key)
    assert [entry for entry in verdict.judge(tmp_path).not_run if entry.reason != "not asked for"] == []
