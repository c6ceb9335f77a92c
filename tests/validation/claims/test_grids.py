"""Two grids against each other: by hand, and what keeps figures apart that look alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from grid_records import record

from fasttrack_validation.claims.grids import Change, compare, ratio_of_medians


def changes(before, after):
    return {one.cell: (one.change, one.reason) for one in compare(before, after)}


def test_ratio_by_hand():
    found = ratio_of_medians((10.0, 12.0, 11.0), (5.0, 5.5, 6.0))
    assert found.value == 2.0 and 10 / 6 <= found.low <= 2.0 <= found.high <= 12 / 5


@given(st.lists(st.floats(1, 100), min_size=3, max_size=12), st.lists(st.floats(1, 100), min_size=3, max_size=12))
def test_swapping_the_sets_inverts_the_ratio(one, other):
    there, back = ratio_of_medians(tuple(one), tuple(other)), ratio_of_medians(tuple(other), tuple(one))
    assert there.value * back.value == pytest.approx(1) and there.low <= there.high


@pytest.mark.parametrize(
    ("fast", "change"),
    [(90.0, Change.FASTER), (110.0, Change.SLOWER), (100.2, Change.SAME), (99.8, Change.SAME)],
)
def test_what_became_of_a_cell(fast, change):
    assert changes({"c": record()}, {"c": record(fast=fast)}) == {"c": (change, "")}


def test_differences_within_the_noise_are_none():
    noisy = [(100.0 + d, 100.0 - d) for d in (0, 8, -8, 5, -5, 3)]
    before = {"c": record(samples=[a for a, _ in noisy])}
    assert changes(before, {"c": record(samples=[b - 1.5 for _, b in noisy])})["c"][0] is Change.SAME


APART = {
    "another card": (record(machine={"device": "NVIDIA H100"}), "device NVIDIA H200 and NVIDIA H100"),
    "another version": (record(machine={"device": "NVIDIA H200", "torch": "2.12"}), "torch unknown and 2.12"),
    "another harness": (record(harness="b" * 64), "measured by other means"),
    "another scope": (record(scope="eight ranks"), "'one rank' and 'eight ranks'"),
    "a card in another state": (record(stock=205.0, fast=104.0), "the stock path's time moved by 2.5%"),
    "no measurement": (record(failed="out of memory"), "the second set has no measurement"),
}


@pytest.mark.parametrize("case", APART)
def test_what_is_not_compared(case):
    other, words = APART[case]
    change, reason = changes({"c": record()}, {"c": other})["c"]
    assert change is Change.APART and words in reason


def test_a_cell_of_one_set_alone_is_named():
    assert changes({"a": record()}, {"b": record()}) == {
        "a": (Change.APART, "the second set has no measurement of it"),
        "b": (Change.APART, "the first set has no measurement of it"),
    }
