"""The stated model, against hand calculations and its own monotonicity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation.performance.hardware import profile
from fasttrack_validation.timing.model import LaunchShape, model_plan, resident_blocks

H200, GB300 = profile("h200"), profile("gb300")


def shape(**changes):
    fields = dict(blocks=12, threads=128, registers=64, shared_bytes=0, moved_bytes=1_600_000)
    return LaunchShape(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "per_multiprocessor"),
    [
        ({}, 8),  # 65536 / (64 * 128) = 8 by registers; 2048 / 128 = 16 by threads
        ({"registers": 32}, 16),  # threads and registers both allow 16
        ({"registers": 65}, 7),  # rounded up to 72: 65536 / 9216 = 7.1
        ({"registers": 16, "threads": 32}, 32),  # the block limit
        ({"shared_bytes": 100_000}, 2),  # 233472 / (100000 + 1024) = 2.3
        ({"registers": 255, "threads": 512}, 1),
    ],
)
def test_occupancy_by_hand(changes, per_multiprocessor):
    assert resident_blocks(shape(**changes), H200) == per_multiprocessor * 132


def test_small_launch_by_hand():
    # 12 blocks fit at once: one wave of 10 barriers among 4 warps, 0.72 us; 1.6 MB at 1.9 TB/s, 0.842 us; 1.04 us of launch.
    modelled = model_plan((shape(barriers=10),), H200)
    assert modelled.microseconds == pytest.approx(1.04 + 0.72 + 1.6e6 / 1.9e12 * 1e6, abs=2e-3)
    assert modelled.bound == "launch"


def test_waves_multiply_barriers():
    # 8 blocks of this shape fit on each of 132 multiprocessors: 1057 blocks take two waves.
    one, two = (model_plan((shape(blocks=b, barriers=100),), H200).microseconds for b in (1056, 1057))
    assert two - one == pytest.approx(100 * 4 * 0.018, abs=2e-3)


def test_a_card_without_a_measured_ceiling_uses_its_datasheet():
    big = shape(blocks=148 * 8, moved_bytes=8_000_000_000)
    # 8 GB at 8 TB/s is 1 ms.
    assert model_plan((big,), GB300).microseconds == pytest.approx(1000 + 1.0, abs=0.01)


def test_launches_add_up():
    one, two = model_plan((shape(),), H200), model_plan((shape(), shape()), H200)
    assert two.microseconds == pytest.approx(2 * one.microseconds, abs=2e-3)


@given(st.integers(1, 4096), st.integers(0, 10**8), st.integers(0, 64))
def test_more_bytes_or_spills_never_model_faster(blocks, moved, spill):
    base = shape(blocks=blocks, moved_bytes=moved)
    more = shape(blocks=blocks, moved_bytes=moved + 4096)
    spilling = shape(blocks=blocks, moved_bytes=moved, spill_bytes_per_thread=spill)
    low = model_plan((base,), H200).microseconds
    assert model_plan((spilling,), H200).microseconds >= low
    # The measured read ceiling rises with size, and never so fast that more bytes would take less time.
    assert model_plan((more,), H200).microseconds >= low - 1e-3
