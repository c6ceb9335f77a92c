"""Two sets of records, cell by cell."""

import pytest
from claim_records import record, server

from fasttrack_validation.claims.check import check
from fasttrack_validation.claims.claim import UnderTest
from fasttrack_validation.claims.compare import match, regressions
from fasttrack_validation.claims.findings import Status
from fasttrack_validation.claims.measurement import Metric
from fasttrack_validation.errors import UserError

CODE = UnderTest(subject="code")
TWINS = [record(server(100.0)), record(server(100.2))]


def grid(commit, figures, **changes):
    return [
        record(server(value, identity__commit=commit, workload__concurrency=n, **changes))
        for n, value in figures.items()
    ]


def compared(before, after, under_test=CODE, twins=TWINS):
    return match("grid", "New against old", before, after, Metric.TOK_S_USER, under_test, twins)


def test_cells_regressions_and_what_is_in_one_set_only():
    found = compared(grid("a0", {1: 100, 8: 80, 64: 40, 128: 30}), grid("a1", {64: 36, 8: 96, 1: 150, 2: 90}))
    assert [(pair.cell, pair.baseline.identity.commit) for pair in found.claim.pairs] == [
        ("b64", "a0"), ("b8", "a0"), ("b1", "a0"),
    ]  # fmt: skip
    assert [one.split(" i")[0] for one in found.unmatched] == ["baseline tp8 b128", "candidate tp8 b2"]
    checked = check(found.claim)
    # 36 / 40, 96 / 80, 150 / 100
    assert [round(row.ratio.value, 2) for row in checked.rows] == [0.90, 1.20, 1.50]
    assert checked.status is Status.PASSES and regressions(checked) == ("b64",)


def test_another_driver_is_another_cell():
    with pytest.raises(UserError) as caught:
        compared(grid("a0", {1: 100}, hardware__driver="550"), grid("a1", {1: 100}))
    assert "hardware.driver '580.95' against '550'" in caught.value.how


def test_what_is_under_test_may_differ():
    before = grid("a0", {1: 100}, hardware__gpus=8)
    after = grid("a0", {1: 150}, hardware__gpus=16, topology__tp=16)
    (pair,) = compared(before, after, UnderTest(subject="topology")).claim.pairs
    assert (pair.candidate.topology.tp, pair.baseline.topology.tp) == (16, 8)
    with pytest.raises(UserError, match="no cell is in both"):
        compared(before, after)


def test_without_the_swap_test_it_is_withheld():
    found = compared(grid("a0", {1: 100}), grid("a1", {1: 150}), twins=())
    checked = check(found.claim)
    assert checked.rows[0].ratio is None and any("swap" in one.message for one in checked.findings if one.rule == "P1")
    biased = compared(grid("a0", {4: 100}), grid("a1", {4: 150}), twins=[TWINS[0], record(server(103.0))])
    assert "P16" in {one.rule for one in check(biased.claim).findings}
    with pytest.raises(UserError, match="needs two records"):
        compared(grid("a0", {1: 100}), grid("a1", {1: 150}), twins=TWINS[:1])


def test_a_cell_twice_is_refused():
    with pytest.raises(UserError, match="the candidate set has cell tp8 b1 i1024 off"):
        compared(grid("a0", {1: 100}), grid("a1", {1: 150}) + grid("a2", {1: 151}))
