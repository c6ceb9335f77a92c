"""The arena tells every byte that changed outside the write-set, and where it lies."""

import numpy as np
import pytest
import torch

from fasttrack_validation.contracts.base import TensorRole, TensorSpec
from fasttrack_validation.judge.arena import GUARD_BYTES, Arena
from fasttrack_validation.judge.pack import ScratchBuffer
from fasttrack_validation.tensors import DType


def spec(name, role, shape, strides, dtype=DType.F32):
    return TensorSpec(name=name, dtype=dtype, role=role, shape=shape, strides=strides)


@pytest.fixture
def arena():
    made = Arena(
        (
            spec("x", TensorRole.INPUT, (2, 3), (5, 1)),
            spec("pool", TensorRole.STATE, (3, 4), (7, 1)),
            spec("out", TensorRole.OUTPUT, (2, 3), (3, 1), DType.BF16),
        ),
        {"partial": ScratchBuffer(shape=(4,), dtype=DType.F32)},
        {},
        np.random.default_rng(1),
    )
    made.put("x", torch.arange(6.0).reshape(2, 3))
    made.put("pool", torch.zeros(3, 4))
    made.put("out", torch.zeros(2, 3))
    made.seal()
    yield made
    made.close()


def raw(arena):
    return arena._bytes


def test_untouched_arena_has_no_stray_writes(arena):
    assert arena.stray_writes() == ()


def test_writes_to_logical_elements_and_scratch_are_allowed(arena):
    arena.view("pool")[1] = 5.0
    arena.view("out")[:] = 1.0
    slot = arena.slots["partial"]
    raw(arena)[slot.offset : slot.offset + slot.size] = 7
    assert arena.stray_writes() == ()
    assert torch.equal(arena.take("pool")[1], torch.full((4,), 5.0))


def test_gap_between_pages_is_not_writable(arena):
    slot = arena.slots["pool"]
    raw(arena)[slot.offset + 4 * 4] ^= 0xFF  # the float behind the 4 logical ones of page 0
    (stray,) = arena.stray_writes()
    assert (stray.region, stray.count, stray.first_byte) == ("pool", 1, 16)
    assert "gap" in stray.where


def test_input_is_read_only(arena):
    arena.view("x")[1, 2] = 9.0
    (stray,) = arena.stray_writes()
    assert stray.region == "x" and "read-only" in stray.where


@pytest.mark.parametrize(("name", "side", "distance"), [("out", "after", 3), ("pool", "before", 1)])
def test_guard_band_names_the_nearest_buffer_and_distance(arena, name, side, distance):
    slot = arena.slots[name]
    at = slot.offset + slot.size + distance if side == "after" else slot.offset - distance
    raw(arena)[at] ^= 0x55
    (stray,) = arena.stray_writes()
    assert stray.region == "guard band"
    assert stray.where.startswith(f"{distance} bytes {side}") and stray.where.endswith(name)


def test_layouts_differ_and_keep_alignment():
    specs = (spec("a", TensorRole.INPUT, (5,), (1,)), spec("b", TensorRole.OUTPUT, (5,), (1,)))
    layouts = set()
    for seed in range(20):
        made = Arena(specs, {}, {}, np.random.default_rng(seed))
        offsets = {name: slot.offset for name, slot in made.slots.items()}
        assert all(offset % 256 == 0 and offset >= GUARD_BYTES for offset in offsets.values())
        layouts.add(tuple(sorted(offsets.items())))
        made.close()
    assert len(layouts) > 10
