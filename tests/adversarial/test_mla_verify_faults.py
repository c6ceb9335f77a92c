"""Faults planted in the real kernel of MLA verify steps, at true shapes: each is rejected; so is none of the honest ones."""

import re

import pytest
from judged import at_smallest_shard, skip_compiling
from judging import replaced
from long_tests import long

from fasttrack import model_dir
from fasttrack_validation import contracts
from fasttrack_validation.judge.judge import Judge
from fasttrack_validation.judge.verdict import Status

FILE = "kernels/mla_verify.py"


@pytest.fixture(scope="module")
def directory():
    return model_dir.load("kimi_k3")


@pytest.fixture(scope="module")
def judge(tmp_path_factory, kept_sandboxes):
    with Judge(contracts.load("kimi_k3"), cache=tmp_path_factory.mktemp("kernels")) as made:
        yield made


@pytest.fixture
def at_tp16(judge, monkeypatch):
    return at_smallest_shard(judge, monkeypatch, "mla_verify")


MASK = "seen = there[None, :] & (token[None, :] < length[:, None])"
PAGE = "page = tl.load(table + token // PAGE, mask=there, other=0).to(tl.int64)"
LENGTH = "length = tl.load(lengths + row, mask=inside, other=0)"

# What is seen too early is explained by the mask, or seen to move another row when it changes, whichever is drawn first.
EARLY = "mask|changing only row"

# name -> (edits, reason id or None, what the message must match)
FAULTS = {
    "every token sees the next one": ([(MASK, MASK.replace("<", "<="))], None, EARLY),
    "no token sees itself": (
        [(MASK, MASK.replace("length[:, None]", "tl.maximum(length - (row % tokens > 0), 1)[:, None]"))],
        None, "the mask is off by one",
    ),
    "no mask among a request's tokens": ([(MASK, "seen = there[None, :] & (length[:, None] > 0)")], None, EARLY),
    "another request's table": (
        [("table = page_table + request * tokens * table_stride", "table = page_table + request * table_stride")], None, "",
    ),
    "padding sees what a token of its place would": (
        [(LENGTH, "length = tl.load(lengths + request * tokens) + (index // HEADS) * inside")], None, "",
    ),
    "a slice in which a token sees nothing": (
        [('base = tl.where(new == float("-inf"), 0.0, new)', "base = new")], None, "",
    ),
    "tables as wide as what is seen": (
        [("buffers.page_table.stride(0), buffers", 'axes["table_width"], buffers')], None, "",
    ),
    "page offsets of 32 bits": ([(PAGE, PAGE.removesuffix(".to(tl.int64)"))], "execution.out_of_bounds", "64 bits"),
}  # fmt: skip
# What a verify step adds; the rest takes its minutes.
FIRST = ("every token sees the next one", "another request's table", "padding sees what a token of its place would")


def rejected(judge, directory, name):
    edits, reason, says = FAULTS[name]
    text = directory.sources("mla_verify")[FILE]
    for old, new in edits:
        text = replaced(text, old, new)
    files = directory.sources("mla_verify") | {FILE: text}
    verdict = judge.screen(directory.candidate("mla_verify", directory.space("mla_verify").default, files=files))
    assert verdict.status is Status.REJECTED, verdict.checks
    assert reason in (None, verdict.reason), (verdict.reason, verdict.message)
    assert re.search(says, verdict.message), verdict.message


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
def test_planted_fault_is_rejected(at_tp16, directory, name, monkeypatch):
    skip_compiling(monkeypatch)
    rejected(at_tp16, directory, name)


@long
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in FIRST])
def test_further_planted_fault_is_rejected(at_tp16, directory, name, monkeypatch):
    skip_compiling(monkeypatch)
    rejected(at_tp16, directory, name)


@long
@pytest.mark.parametrize("queries", [16, 32, 64])
def test_honest_kernel_is_accepted_at_every_tp(judge, directory, queries):
    config = directory.space("mla_verify").default | {"block_q": queries}
    verdict = judge.screen(directory.candidate("mla_verify", config))
    assert verdict.status is Status.ACCEPTED, (verdict.reason, verdict.message)
    assert {audit.target for audit in verdict.audits} == {"sm_90", "sm_103"}
    # Sums of 64 queries take all the registers that there are.
    assert queries == 64 or not any(audit.spill_store_bytes for audit in verdict.audits)
    assert all(audit.mma_types for audit in verdict.audits if audit.kernel.startswith("_attend"))


@long
def test_confirmation_covers_requests_of_eight_tokens(at_tp16, directory):
    verdict = at_tp16.confirm(
        directory.candidate("mla_verify", directory.space("mla_verify").default), ["tp16-b16"]
    )
    assert verdict.status is Status.ACCEPTED, (verdict.reason, verdict.message)
    assert ("tp16-b16", 8) in {(result.workload, result.axes["tokens"]) for result in verdict.workloads}
