"""Faults planted in the real kernel of verify steps, at true shapes: each is rejected; so is none of the honest ones."""

import pytest
from judged import at_smallest_shard, skip_compiling
from judging import replaced
from long_tests import long

from fasttrack import model_dir
from fasttrack_validation import contracts
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Status

WHOLE, TILES = {"block_v": 128, "num_warps": 8}, {"block_v": 32, "num_warps": 4}
FILE = "kernels/kda_verify.py"


@pytest.fixture(scope="module")
def directory():
    return model_dir.load("kimi_k3")


@pytest.fixture(scope="module")
def judge(tmp_path_factory, kept_sandboxes):
    with Judge(contracts.load("kimi_k3"), cache=tmp_path_factory.mktemp("kernels")) as made:
        yield made


@pytest.fixture
def at_tp16(judge, monkeypatch):
    return at_smallest_shard(judge, monkeypatch, "kda_verify")


PAGE = "page = tl.load(table + 1 + t).to(tl.int64)"

# name -> (edits, reason id or None, words that the message must hold)
FAULTS = {
    "accepted count 0 read as index -1": (
        [("    state = tl.load(recurrent_state + slot * state_page",
          "    slot = tl.load(table + tokens).to(tl.int64)\n    state = tl.load(recurrent_state + slot * state_page")],
        None, ("index -1", "committed"),
    ),
    "state not rolled back": (
        [(PAGE, "page = tl.load(table + tl.where(t + 1 == tokens, 0, 1 + t)).to(tl.int64)")],
        "state.foreign_page", (),
    ),
    "state behind a token in the page before its own": (
        [(PAGE, "page = tl.load(table + t).to(tl.int64)")], "state.foreign_page", (),
    ),
    "window not moved on between tokens": ([("        k0, k1, k2 = k1, k2, k3\n", "")], None, ("conv_state",)),
    "window of the wrong token": (
        [("_store_window(window, q0, q1, q2, key,", "_store_window(window, q1, q2, q2, key,")], None, ("conv_state",),
    ),
    "every token from the committed state": (
        [("state, o = _advance(state, v,", "left, o = _advance(state, v,"), ("+ tile, state)\n        window", "+ tile, left)\n        window")],
        None, ("recurrent_state",),
    ),
    "table as wide as its tokens": (
        [("table = slots + request * slots_stride", "table = slots + request * (1 + tokens)")], None, (),
    ),
    "null page read as live": ([("    if slot <= 0:\n        if WHOLE", "    if slot < 0:\n        if WHOLE")], None, ()),
    "page offsets of 32 bits": ([(PAGE, PAGE.removesuffix(".to(tl.int64)"))], "execution.out_of_bounds", ("64 bits",)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_rejected(at_tp16, directory, name, monkeypatch):
    skip_compiling(monkeypatch)
    edits, reason, words = FAULTS[name]
    text = directory.sources("kda_verify")[FILE]
    for old, new in edits:
        text = replaced(text, old, new)
    verdict = at_tp16.screen(directory.candidate("kda_verify", WHOLE, files={FILE: text}))
    assert verdict.status is Status.REJECTED, verdict.checks
    assert reason in (None, verdict.reason), (verdict.reason, verdict.message)
    for word in words:
        assert word in verdict.message, verdict.message


@pytest.mark.slow
def test_honest_kernel_is_accepted(at_tp16, directory):
    accepted(at_tp16, directory, WHOLE)


@long
@pytest.mark.parametrize("config", [WHOLE, TILES], ids=["whole", "tiles"])
def test_honest_kernel_is_accepted_at_every_tp(judge, directory, config):
    accepted(judge, directory, config)


def accepted(judge, directory, config):
    verdict = judge.screen(directory.candidate("kda_verify", config))
    assert verdict.status is Status.ACCEPTED, (verdict.reason, verdict.message)
    assert {audit.target for audit in verdict.audits} == {"sm_90", "sm_103"}
    assert all(not audit.spills for audit in verdict.audits if hasattr(audit, "spills"))


@pytest.mark.slow
def test_confirmation_covers_requests_of_eight_tokens(at_tp16, directory):
    verdict = at_tp16.confirm(directory.candidate("kda_verify", WHOLE), ["tp16-b16"])
    assert verdict.status is Status.ACCEPTED, (verdict.reason, verdict.message)
    assert ("tp16-b16", 8) in {(result.workload, result.axes["tokens"]) for result in verdict.workloads}
