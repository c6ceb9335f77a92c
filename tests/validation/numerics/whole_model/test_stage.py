"""A run's pieces and the processes that take them: what is not kept, in which order, and what a failure leaves."""

import gzip
from collections import deque

import pytest
import token_records
from fasttrack_validation.contracts.kimi_k3.numerics import material
from fasttrack_validation.contracts.kimi_k3.numerics.long_state import places
from fasttrack_validation.contracts.kimi_k3.numerics.weights import WeightsOf
from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.whole_model import stage, verdict
from fasttrack_validation.numerics.whole_model.checks import Result
from fasttrack_validation.numerics.whole_model.long_rung import Point
from fasttrack_validation.numerics.whole_model.pieces import Job
from fasttrack_validation.numerics.whole_model.plan import Settings, Work
from fasttrack_validation.numerics.whole_model.scenario import RungName, Unit
from fasttrack_validation.numerics.whole_model.scenarios import decode
from fasttrack_validation.numerics.whole_model.verdict import Subject

ALL = 2 * 3 + 11 + 1 + 4
"""Three units at each of two TPs; the sweep, the free run, three streams and the ops at the main one"""
LARGER = 6 + 2 * 4
"""What nobody interprets: batches of more than eight rows; at other TPs two batches, accepted counts and a free run"""


def job(out, *, candidate: str = "specialised", device: str = "cpu", weights: str = "cpu") -> Job:
    settings = Settings(candidate=candidate, device=device, tokens=8)
    subject = Subject(model="m", checkpoint="c", candidate="d", harness="h", settings=settings)
    named = WeightsOf(checkpoint=material.CHECKPOINT)
    return Job(subject=subject, out=out, weights=named, device=weights, contract="kimi_k3", directory=out)


def test_processes_share_all_pieces_where_paths_are_on_the_cpu(tmp_path):
    ((benches, pieces),) = stage.Stage(job(tmp_path, device="cuda"), jobs=3)._lanes()
    assert benches == 3 and pieces[:2] == ["long_context", "op"]
    assert len(set(pieces)) == len(pieces) == ALL + LARGER + 1
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
    monkeypatch.setattr(verdict, "works", lambda settings, material: [Work(unit, forty) for unit in units])
    kept(tmp_path, subject, units[0].key)
    found = verdict.judge(tmp_path)
    assert found.result is Result.INCONCLUSIVE and [rung.result for rung in found.rungs] == [Result.PASS]
    missing = [entry for entry in found.not_run if entry.reason != "not asked for"]
    assert [(entry.rung, entry.tp) for entry in missing] == [(RungName.TEACHER_FORCED, 1)]
    assert missing[0].reason.startswith(f"{units[1].key} is missing")
    kept(tmp_path, subject, units[1].key)
    assert [entry for entry in verdict.judge(tmp_path).not_run if entry.reason != "not asked for"] == []


def test_two_processes_do_not_share_a_run(tmp_path):
    with stage.alone(tmp_path):
        with pytest.raises(UserError, match="another process runs the stage"), stage.alone(tmp_path):
            raise AssertionError
    with stage.alone(tmp_path):
        pass


def forty():
    """What made-up records are of."""
    for step in token_records.unit(count=40).steps:
        yield decode([(0, step.tokens[0].token, step.tokens[0].target)])


@pytest.fixture
def made_up(monkeypatch):
    """The plan is what made-up records are of."""
    unit = Unit(RungName.TEACHER_FORCED, "stream", 1, 1, 41)
    monkeypatch.setattr(verdict, "works", lambda settings, material: [Work(unit, forty)])


def open_run(out, rungs=(RungName.TEACHER_FORCED, RungName.LONG_CONTEXT)) -> Subject:
    settings = Settings(candidate="plain:twin", rungs=rungs, tps=(1,), tokens=8)
    subject = Subject(model="m", checkpoint="c", candidate="d", harness="h", settings=settings)
    (out / "run.json").write_text(subject.canonical_json() + "\n")
    return subject


def without(text: str, *numbers: int) -> str:
    return "".join(line for number, line in enumerate(text.splitlines(True)) if number not in numbers)


@pytest.mark.parametrize(
    "damage,said",
    [
        (lambda text: without(text, 41), "its end is missing"),
        (lambda text: without(text, 7), "steps are missing"),
        (lambda text: without(text, *range(1, 41)), "steps are missing"),
        (lambda text: without(text, 39, 40), "its last steps are missing"),
    ],
    ids=["end", "one step", "all steps", "last steps"],
)
def test_records_that_lack_something_are_no_unit(tmp_path, made_up, damage, said):
    subject = open_run(tmp_path)
    kept(tmp_path, subject, "teacher_forced-tp1-stream")
    file = tmp_path / "teacher_forced-tp1-stream.jsonl.gz"
    assert verdict.judge(tmp_path).rungs[0].result is Result.PASS
    with gzip.open(file, "rt") as whole:
        text = damage(whole.read())
    with gzip.open(file, "wt") as cut:
        cut.write(text)
    with pytest.raises(UserError, match=said) as error:
        verdict.judge(tmp_path)
    assert file.name in str(error.value)


def test_a_copy_of_a_unit_is_not_counted_twice(tmp_path, made_up):
    subject = open_run(tmp_path)
    kept(tmp_path, subject, "teacher_forced-tp1-stream")
    file = tmp_path / "teacher_forced-tp1-stream.jsonl.gz"
    (tmp_path / "teacher_forced-tp1-copy.jsonl.gz").write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="it is teacher_forced-tp1-stream's"):
        verdict.judge(tmp_path)


@pytest.mark.parametrize("name", ["teacher_forced-tp1-stream.jsonl.gz", "long.jsonl.gz", "op.jsonl.gz"])
@pytest.mark.parametrize("data", [b"", b"\x1f\x8b\x08", b"no gzip at all", gzip.compress(b"{\n")[:-4], gzip.compress(b"no json\n")])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, data):
    open_run(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=name):
        verdict.judge(tmp_path)


def test_what_is_kept_of_a_rung_without_units_is_whole_and_of_this_run(tmp_path):
    subject = open_run(tmp_path)
    other = subject.model_copy(update={"harness": "other"})
    file = tmp_path / "long.jsonl.gz"
    errors = {path: (1e-3,) for path in ("stock", "candidate", "again-1", "again-2", "again-3")}
    steps = [(what, at) for at in (1, 10, 100, 1000) for what in ("state", "output")]
    points = [Point(what=what, at=at, errors=errors) for what, at in (*steps, *(("context", at) for at in places(4096)))]
    verdict.write_lines(file, points, subject)
    assert [rung.rung for rung in verdict.judge(tmp_path).rungs] == ["long_context"]
    lines = gzip.decompress(file.read_bytes()).splitlines(True)
    for text in (b"".join(lines[:-1]), lines[0]):
        file.write_bytes(gzip.compress(text))
        with pytest.raises(UserError, match="damaged"):
            verdict.judge(tmp_path)
    verdict.write_lines(file, points, other)
    with pytest.raises(UserError, match="another subject"):
        verdict.judge(tmp_path)
