"""Candidates that were recorded elsewhere go through the lane as if they had been recorded here."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
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
ASKED: list[tuple[int, tuple[str, ...]]] = []
"""(BLOCK, workloads) of each record that was held against what it is to be ruled on at"""
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
    def write(candidate: Candidate | None = None, **config) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pack"
        fields = {} if candidate is None else {"candidate": candidate}
        pack_file.write(recorded({"flip": False, "num_warps": 1, **config}, **fields), path)
        return path

    return write


class Ruling(fakes.Judge):
    """Rules on records: that of a candidate is as good as the candidate."""

    def rule(self, record: Recorded, *, timed=None, thorough=True):
        if not thorough:
            return self.screen(record.candidate, record.declared)
        return self.confirm(record.candidate, record.declared, record.declared if timed is None else timed)


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
    monkeypatch.setattr(packed, "require_whole", lambda record, contract, workloads: ASKED.append(
        (record.candidate.config["BLOCK"], tuple(sorted(workloads)))
    ))
    ASKED.clear()


def test_packs_are_ruled_on_confirmed_and_installed(checkout, pack):
    asked: list[str] = []
    packs = (pack(BLOCK=16), pack(BLOCK=32, num_warps=4))
    chosen = options(checkout, agent="single", packs=packs, device="gpu")
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
    verdict = packed.Packed(judge, packed.of_run(tmp_path / "run")).screen(recorded({"flip": False, "num_warps": 1, "BLOCK": 16}).candidate, ("tp8-r1",))
    assert verdict.status == "accepted"


def own(checkout, **config) -> Candidate:
    """The tree's kernel with a configuration."""
    files = {name: (checkout / "models/toy" / name).read_text() for name in FILES}
    return Candidate(op="copy", entry="kernels/copy.py", files=files, config={"flip": False, **config})


def test_a_search_draws_from_packs_and_picks_what_it_found(checkout, pack):
    found = [(16, 1), (64, 2), (32, 4)]
    packs = tuple(pack(candidate=own(checkout, BLOCK=block, num_warps=warps)) for block, warps in found)
    judge = Ruling()
    chosen = options(checkout, agent="search", packs=packs, workloads=("tp8-r1",), hardware=("h200",))
    outcome = lane.propose(chosen, services(judge), Voice(quiet=True))
    assert (outcome.exit_code, outcome.stopped) == (0, "every recorded configuration has been judged")
    screened = [digest for stage, digest, _ in judge.calls if stage == "screen"]
    # The table's first, and nothing that was not recorded.
    assert screened[0] == own(checkout, BLOCK=32, num_warps=4).digest()
    assert set(screened) == {own(checkout, BLOCK=b, num_warps=w).digest() for b, w in found}
    assert table_of(checkout, outcome.branch).at("h200", 8, 1).config["BLOCK"] == 16
    # Held against what each is ruled on at before anything runs: the table's may have to stand everywhere again.
    assert ASKED[:3] == [(16, ("tp8-r1",)), (64, ("tp8-r1",)), (32, ("tp8-r1", "tp8-r4"))]


def test_a_search_needs_records_of_the_trees_sources_and_of_the_table(checkout, pack):
    with pytest.raises(UserError, match="recorded from other sources than the tree's"):
        lane.propose(options(checkout, packs=(pack(BLOCK=16),)), services(Ruling()), Voice(quiet=True))
    packs = (pack(candidate=own(checkout, BLOCK=16, num_warps=1)),)
    with pytest.raises(UserError, match="1 configurations of the dispatch table are not recorded"):
        lane.propose(options(checkout, packs=packs), services(Ruling()), Voice(quiet=True))


def test_who_writes_candidates_has_no_use_for_packs(checkout, pack):
    with pytest.raises(UserError, match="agent chat writes candidates that no pack has"):
        lane.propose(options(checkout, agent="chat", packs=(pack(BLOCK=16),)), services(Ruling()), Voice(quiet=True))


def test_a_configuration_that_may_have_to_stand_must_be_recorded(checkout, pack):
    """The table holds BLOCK 32: with the new sources it would have to be judged, and could not be."""
    with pytest.raises(UserError, match="1 configurations of the dispatch table are not recorded") as refused:
        lane.propose(options(checkout, agent="single", packs=(pack(BLOCK=16),)), services(Ruling()), Voice(quiet=True))
    assert '"BLOCK":32' in refused.value.how.replace(" ", "")


def test_a_pack_of_another_op_is_refused(checkout, tmp_path):
    other = Candidate(op="other", entry="kernels/copy.py", files=FILES)
    path = tmp_path / "other.pack"
    pack_file.write(recorded({}, candidate=other), path)
    with pytest.raises(UserError, match="a record of other, not of copy"):
        lane.propose(options(checkout, agent="single", packs=(path,)), services(Ruling()), Voice(quiet=True))


def test_other_file_names_than_the_trees_are_refused(checkout, tmp_path):
    path = tmp_path / "mine.pack"
    pack_file.write(recorded({}, candidate=Candidate(op="copy", entry="mine.py", files={"mine.py": NEW})), path)
    with pytest.raises(UserError, match="other names than in the tree"):
        lane.propose(options(checkout, agent="single", packs=(path,)), services(Ruling()), Voice(quiet=True))
