"""Candidates that were recorded elsewhere go through the lane as if they had been recorded here."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import lane_fakes as fakes
import pytest
from test_lane_run import options, table_of

from fasttrack import lane, packed
from fasttrack.voice import Voice
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge import pack_file
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.recorded import Recorded

NEW = "# new\n" + fakes.KERNEL
FILES = {"kernels/copy.py": NEW, "kernels/extra.py": ""}


def recorded(config: dict, **fields) -> Recorded:
    candidate = Candidate(op="copy", entry="kernels/copy.py", files=FILES, config=config)
    facts = {
        "model": "toy", "candidate": candidate, "hardware": "h200", "contract_digest": "c", "judge_digest": "j",
        "checked": ("tp8-r1",), "declared": ("tp8-r1", "tp8-r4"), "unseen": {"tp8-r1": (1,), "tp8-r4": (2,)},
        "far_base": None, "toolchain": {}, "sandbox": "none", "unsafe": False, "seconds": {},
    }  # fmt: skip
    return Recorded(**{**facts, **fields})


@pytest.fixture
def pack(tmp_path):
    def write(**config) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pack"
        pack_file.write(recorded({"flip": False, "num_warps": 1, **config}), path)
        return path

    return write


class Ruling(fakes.Judge):
    """Rules on records: that of a candidate is as good as the candidate."""

    def rule(self, record: Recorded):
        if record.declared == ("tp8-r1", "tp8-r4"):
            return self.screen(record.candidate)
        return self.confirm(record.candidate, record.declared)


def services(judge, asked: list | None = None):
    @contextmanager
    def enter(contract, unsafe, device):
        judge.model = SimpleNamespace(op=lambda name: contract.op(name))
        if asked is not None:
            asked.append(device)
        yield judge

    return replace(fakes.services(judge), judge=enter)


@pytest.fixture(autouse=True)
def _parts_of_records(monkeypatch):
    """The toy op has no plans: which part of a record is ruled on is what matters here."""
    monkeypatch.setattr(Recorded, "only", lambda self, contract, names: self.model_copy(update={"declared": names}))
    monkeypatch.setattr(packed, "require_whole", lambda record, contract: None)


def test_packs_are_ruled_on_confirmed_and_installed(checkout, pack):
    asked: list[str] = []
    packs = (pack(BLOCK=16), pack(BLOCK=32, num_warps=4))
    chosen = options(checkout, packs=packs, device="gpu")
    outcome = lane.propose(chosen, services(Ruling(), asked), Voice(quiet=True))
    assert (outcome.exit_code, asked) == (0, ["gpu"]), outcome
    assert fakes.git(checkout, "show", f"{outcome.branch}:models/toy/kernels/copy.py").startswith("# new")
    assert table_of(checkout, outcome.branch).at("h200", 8, 1).config["BLOCK"] == 16


def test_the_run_keeps_the_packs_that_it_may_have_to_rule_on_again(checkout, pack, tmp_path):
    path = pack(BLOCK=16)
    packed.keep([path], tmp_path / "run")
    path.unlink()
    judge = Ruling()
    judge.model = SimpleNamespace(op=lambda name: None)
    verdict = packed.Packed(judge, tmp_path / "run").screen(recorded({"flip": False, "num_warps": 1, "BLOCK": 16}).candidate)
    assert verdict.status == "accepted"


def test_a_configuration_that_may_have_to_stand_must_be_recorded(checkout, pack):
    """The table holds BLOCK 32: with the new sources it would have to be judged, and could not be."""
    with pytest.raises(UserError, match="1 configurations of the dispatch table are not recorded") as refused:
        lane.propose(options(checkout, packs=(pack(BLOCK=16),)), services(Ruling()), Voice(quiet=True))
    assert '"BLOCK":32' in refused.value.how.replace(" ", "")


def test_a_pack_of_another_op_is_refused(checkout, tmp_path):
    other = Candidate(op="other", entry="kernels/copy.py", files=FILES)
    path = tmp_path / "other.pack"
    pack_file.write(recorded({}, candidate=other), path)
    with pytest.raises(UserError, match="a record of other, not of copy"):
        lane.propose(options(checkout, packs=(path,)), services(Ruling()), Voice(quiet=True))


def test_other_file_names_than_the_trees_are_refused(checkout, tmp_path):
    path = tmp_path / "mine.pack"
    pack_file.write(recorded({}, candidate=Candidate(op="copy", entry="mine.py", files={"mine.py": NEW})), path)
    with pytest.raises(UserError, match="other names than in the tree"):
        lane.propose(options(checkout, packs=(path,)), services(Ruling()), Voice(quiet=True))
