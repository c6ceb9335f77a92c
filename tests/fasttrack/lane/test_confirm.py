"""What stands in the tree before the judge: which candidates, at which places, and what is written when."""

import json

import lane_fakes as fakes
import pytest

from fasttrack import cli, confirm, dispatch, evidence, model_dir, packed, services
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.recorded import Recorded
from fasttrack_validation.judge.verdict import Status

MEASURED = (("h200", "tp8-r1"), ("h200", "tp8-r4"))


@pytest.fixture
def directory(checkout):
    """The toy model, whose table has another configuration for one row than for four."""
    path = checkout / "models/toy/dispatch/copy.toml"
    table = dispatch.parse(path.read_text(), path)
    entries = [
        entry.model_copy(update={"config": {**entry.config, "BLOCK": 16, "num_warps": 1}}) if entry.rows == (1, 1) else entry
        for entry in table.entry
    ]
    path.write_text(dispatch.render(dispatch.Table(entry=tuple(entries))))
    return model_dir.load("toy", checkout)


class Judge(fakes.Judge):
    """What `confirm` asks of a judge on a card."""

    def __init__(self, **options):
        super().__init__(measured=MEASURED, **options)
        self.device, self.timed_on = "gpu", "h200"


def confirmed(directory, judge, *, root=None, **options):
    return list(
        confirm.confirm(
            directory, fakes.Contract(), ("copy",), ("h200",), judge, services.statement, root or directory.path, **options
        )
    )


def test_each_configuration_is_judged_once_at_its_own_places(directory):
    judge = Judge()
    (done,) = confirmed(directory, judge)
    assert [(stage, workloads) for stage, _, workloads in judge.calls] == [("confirm", ("tp8-r1",)), ("confirm", ("tp8-r4",))]
    # By hand from the fake's formula: 100 + |16 - 16| + 1 at one row, 100 + |32 - 128| + 4 at four.
    assert done.status is Status.ACCEPTED and done.places == {"h200/tp8/1-1": 101.0, "h200/tp8/2-4": 200.0}


def test_a_statement_and_measured_times_are_written(directory):
    (done,) = confirmed(directory, Judge())
    assert done.written == ("evidence/statements/copy.judge.json", "dispatch/copy.toml")
    table = model_dir.load("toy", directory.checkout).table("copy")
    here, elsewhere = table.at("h200", 8, 3), table.at("gb300", 8, 3)
    assert (here.basis, here.microseconds, here.evidence, here.config["BLOCK"]) == ("measured", 200.0, done.written[0], 32)
    assert (elsewhere.basis, elsewhere.evidence) == ("modelled", None), "entries of other hardware are as they were"
    files = {path.relative_to(directory.path).as_posix(): path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}
    statement = evidence.parse(files[done.written[0]], done.written[0])
    assert isinstance(evidence.freshness(statement, files, "c" * 64, "d" * 64), evidence.Fresh)
    cells = {(cell.hardware, cell.bucket): cell.candidate.microseconds for cell in statement.predicate.performance}
    assert cells == {("h200", "1-1"): 101.0, ("h200", "2-4"): 200.0}
    files["kernels/copy.py"] += b"# changed"
    assert isinstance(evidence.freshness(statement, files, "c" * 64, "d" * 64), evidence.Stale)


def test_what_is_rejected_leaves_everything_as_it_was_and_says_why(directory):
    judge, before = Judge(), (directory.path / "dispatch/copy.toml").read_bytes()
    judge.refuse_confirmation = lambda candidate, workloads: "tp8-r4" in workloads
    (done,) = confirmed(directory, judge)
    assert (done.status, done.message, done.written) == (Status.REJECTED, "C10.wrong: off by 3", ())
    assert (directory.path / "dispatch/copy.toml").read_bytes() == before and not (directory.path / "evidence").exists()


def test_a_run_that_was_cut_off_judges_nothing_twice(directory):
    judge = Judge()
    judge.interrupt_after = 1
    with pytest.raises(KeyboardInterrupt):
        confirmed(directory, judge)
    again = Judge()
    (done,) = confirmed(directory, again)
    assert [workloads for _, _, workloads in again.calls] == [("tp8-r4",)] and done.status is Status.ACCEPTED
    fresh = Judge()
    confirmed(directory, fresh, fresh=True)
    assert len(fresh.calls) == 2


def test_what_was_not_measured_stays_modelled_with_the_statement_behind_it(directory):
    judge = fakes.Judge()
    (done,) = confirmed(directory, judge)
    entry = model_dir.load("toy", directory.checkout).table("copy").at("h200", 8, 1)
    assert (entry.basis, entry.microseconds, entry.evidence) == ("modelled", None, done.written[0])
    assert set(done.places.values()) == {None}


def test_what_was_measured_before_is_not_taken_away_by_a_run_that_measures_nothing(directory):
    (first,) = confirmed(directory, Judge())
    kept = [(directory.path / name).read_bytes() for name in first.written]
    (done,) = confirmed(model_dir.load("toy", directory.checkout), fakes.Judge())
    assert done.status is Status.NOT_RUN and "h200/tp8/1-1 was measured before" in done.message
    assert [(directory.path / name).read_bytes() for name in first.written] == kept


def test_another_root_gets_the_files_and_the_tree_none(directory, tmp_path):
    (done,) = confirmed(directory, Judge(), root=tmp_path / "out")
    assert all((tmp_path / "out" / name).is_file() for name in done.written)
    assert not (directory.path / "evidence").exists()


def test_hardware_that_the_model_is_not_claimed_for_is_refused(directory):
    with pytest.raises(UserError, match="not claimed for 'b200'"):
        confirm.require_known(directory, ("copy",), ("b200",))
    with pytest.raises(UserError, match="no op 'paste'"):
        confirm.require_known(directory, ("paste",), ("h200",))


def test_records_of_the_tree_stand_in_for_recording(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(Recorded, "only", lambda self, contract, names: self.model_copy(update={"declared": names}))
    monkeypatch.setattr(packed, "require_whole", lambda *_: None)
    paths = []
    for one in confirm.standing(directory, "copy", fakes.Op(), ("h200",)):
        record = Recorded(
            model="toy", candidate=one.candidate, hardware="h200", contract_digest="c" * 64, judge_digest="d" * 64,
            checked=one.workloads, declared=one.workloads, unseen={}, far_base=None, toolchain={}, sandbox="none",
            unsafe=False, seconds={},
        )  # fmt: skip
        paths.append(tmp_path / f"{len(paths)}.pack")
        pack_file.write(record, paths[-1])

    class Ruling(Judge):
        model = fakes.Contract()

        def rule(self, record, *, timed, thorough=True):
            return self.confirm(record.candidate, record.declared, timed)

    files = packed.by_candidate(paths)
    (done,) = confirmed(directory, packed.Packed(Ruling(), files))
    assert done.places == {"h200/tp8/1-1": 101.0, "h200/tp8/2-4": 200.0}
    # A verdict that is kept is one on these records, not on the same candidate recorded by other tools.
    again, other = Ruling(), Ruling()
    confirmed(directory, packed.Packed(again, files))
    pack_file.write(pack_file.read(paths[0]).model_copy(update={"toolchain": {"triton": "another"}}), paths[0])
    confirmed(directory, packed.Packed(other, files))
    assert (len(again.calls), len(other.calls)) == (0, 2)
    with pytest.raises(UserError, match="no record of copy with the configuration"):
        confirmed(directory, packed.Packed(Ruling(), packed.by_candidate(paths[:1])), fresh=True)


@pytest.fixture
def command(directory, monkeypatch):
    monkeypatch.chdir(directory.checkout)
    judge = Judge()
    monkeypatch.setattr(services, "default", lambda **_: fakes.services(judge))
    return judge


def test_the_command_says_what_became_of_each_op(command, capsys):
    assert cli.run(["confirm", "toy"]) == 0
    shown = capsys.readouterr().out
    assert "accepted: copy" in shown and "h200/tp8/1-1 101.00 us, h200/tp8/2-4 200.00 us" in shown
    assert cli.run(["confirm", "toy", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["places"] == {"h200/tp8/1-1": 101.0, "h200/tp8/2-4": 200.0}


def test_the_command_fails_with_what_is_rejected(command, capsys):
    command.refuse_confirmation = lambda candidate, workloads: True
    assert cli.run(["confirm", "toy"]) == 1
    assert "rejected: copy" in capsys.readouterr().out


def test_the_command_wants_hardware_that_the_tables_name(command, capsys):
    assert cli.run(["confirm", "toy", "--hardware", "mi355x"]) == 2
    assert "it is for gb300, h200" in capsys.readouterr().err
