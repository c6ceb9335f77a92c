"""Cells of the rank-shard grid as a claim: by hand, with what no cell measures withheld; and cells that stand apart."""

from math import sqrt

import pytest
from grid_records import record

from fasttrack_validation.claims import grids, shards
from fasttrack_validation.claims.check import check
from fasttrack_validation.claims.conditions import unknown
from fasttrack_validation.claims.findings import Status
from fasttrack_validation.claims.render import title
from fasttrack_validation.errors import UserError
from fasttrack_validation.timing.clocks import Conditions

SEEN = {"seen": 8, "sm_mhz_median": 1980.0, "sm_mhz_lowest": 1980, "memory_mhz_lowest": 3201}
CLOCKS = Conditions(**SEEN)
MACHINE = {"device": "NVIDIA H200", "driver": "13000", "torch": "2.11", "triton": "3.6", "cuda": "13.0"}
FAST = [100.0, 101.0, 101.0, 100.0, 99.0, 100.0, 100.0, 99.0, 100.0, 102.0, 102.0, 100.0]
LOCKED = {"hardware": {"clocks_locked": True}}


def cell(**changes):
    return record(**{"machine": MACHINE, "clocks": CLOCKS, "rows": 4, "samples": FAST, "stock_samples": [2 * x for x in FAST], **changes})


def made(*records, stated=None):
    return shards.claim("rank", "One rank", "kimi_k3", records or [cell()], stated)


def test_a_cell_by_hand():
    claim = made(stated=LOCKED)
    found = check(claim)
    (row,), (pair,) = found.rows, claim.pairs
    assert [one.rule for one in found.findings] == ["P6"] and found.status is Status.PASSES
    # Both arms' samples are in proportion, so that every quad has the same ratio.
    assert row.ratio.value == pytest.approx(2) and row.ratio.repetitions == 6
    assert row.ratio.low == pytest.approx(2) == row.ratio.high
    assert pair.candidate.result.repetitions.series.values == pytest.approx(
        [sqrt(100 * other) for other in (101, 101, 99, 99, 102, 102)]
    )
    assert "one rank, exchange bytes local, no communication" in title(found)
    hardware = pair.candidate.hardware
    assert (hardware.sku, hardware.gpus, hardware.sm_clock_mhz, hardware.memory_clock_mhz) == ("h200", 1, 1980, 3201)
    assert hardware.throttled is False and hardware.driver == "CUDA driver 13000" and pair.candidate.topology.tp == 8
    assert pair.candidate.identity.commit != pair.baseline.identity.commit
    assert "launches of its captured graph: a" == pair.candidate.identity.candidate_active


def test_what_no_cell_measures_is_unknown_until_it_is_stated():
    claim = made()
    assert unknown(claim.pairs[0], claim.metric) == (
        "candidate: hardware.clocks_locked", "baseline: hardware.clocks_locked",
    )  # fmt: skip
    assert check(claim).rows[0].ratio is None and check(claim).status is Status.WITHHELD
    blind = made(cell(clocks=Conditions(seen=0, unavailable="no NVML")), stated=LOCKED)
    assert {"candidate: hardware.sm_clock_mhz", "candidate: hardware.throttled"} <= set(unknown(blind.pairs[0], blind.metric))
    with pytest.raises(UserError, match="hardware.sm_clock_mhz was measured"):
        made(stated={"hardware": {"sm_clock_mhz": 1}})
    with pytest.raises(UserError, match="hardware.wheels"):
        made(stated={"hardware": {"wheels": 4}})


@pytest.mark.parametrize(("reasons", "throttled"), [((), False), (("hardware slowdown",), True), (("software power cap",), False)])
def test_throttling_is_what_the_card_decides_for_itself(reasons, throttled):
    found = made(cell(clocks=Conditions(**SEEN, throttles=reasons)), stated=LOCKED)
    assert found.pairs[0].candidate.hardware.throttled is throttled
    assert ("P19" in {one.rule for one in check(found).findings}) is throttled


def test_the_swap_test_takes_the_arm_that_its_place_moved_most():
    # A is first in the first half of A B B A, B first in the second half: 3 % for whoever is first, in every quad
    fast, slow = [103.0, 100.0] * 6, [200.0, 206.0] * 6
    swap = made(cell(samples=fast, stock_samples=slow), stated=LOCKED).pairs[0].swap
    assert swap.bias == pytest.approx(0.03)
    assert "P16" in {one.rule for one in check(made(cell(samples=fast, stock_samples=slow), stated=LOCKED)).findings}
    # One disturbed sample is noise and no bias.
    noisy = [150.0, *FAST[1:]]
    assert made(cell(samples=noisy), stated=LOCKED).pairs[0].swap.bias < 0.011


def test_a_time_below_the_floor_is_invalid():
    found = check(made(cell(samples=[1e-6] * 12), stated=LOCKED))
    assert "P17" in {one.rule for one in found.findings} and found.rows[0].ratio is None


def test_only_measured_cells_are_claimed():
    with pytest.raises(UserError, match="nothing to claim"):
        made(record(failed="off by 3"))
    with pytest.raises(UserError, match="does not say what its shards are"):
        shards.constant("nobody")
    assert [pair.cell for pair in made(cell(), cell(rows=8), stated=LOCKED).pairs] == ["tp8-kda_moe-r4", "tp8-kda_moe-r8"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"machine": {**MACHINE, "driver": "12090"}}, "driver"), ({"machine": {**MACHINE, "torch": "2.12"}}, "torch"),
        ({"clocks": CLOCKS.model_copy(update={"sm_mhz_median": 1500.0})}, "1500"),
        ({"clocks": CLOCKS.model_copy(update={"memory_mhz_lowest": 1600})}, "1600"),
        ({"clocks": Conditions(seen=0, unavailable="no NVML")}, "unknown"),
    ],
)  # fmt: skip
def test_a_cell_of_another_driver_or_clock_state_stands_apart(other, said):
    kept = {"a": cell(), "b": cell(rows=2), "c": cell(rows=4, **other)}
    found = grids.apart(kept)
    assert set(found) == {"c"} and said in found["c"]
    assert grids.apart({"a": cell(), "b": cell(clocks=CLOCKS.model_copy(update={"sm_mhz_median": 1950.0}))}) == {}
    # Compared with an earlier grid it is not either.
    (one,) = grids.compare({"c": cell()}, {"c": cell(**other)})
    assert one.change is grids.Change.APART and said in one.reason
    assert grids.apart({}) == grids.apart({"a": record(failed="x")}) == {}
