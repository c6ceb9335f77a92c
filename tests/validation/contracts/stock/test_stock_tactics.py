"""How expert launches are cut: every chunk and row block is covered, whatever the size."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack_validation.contracts.kimi_k3.stock import tactics


@given(st.integers(1, 64))
def test_slices_of_k_are_whole_scale_vectors_and_cover_it(count):
    tactic = tactics.first(count)
    share, rest = divmod(count, tactic.warps)
    assert rest == 0
    assert share % tactics.vector(count) == 0
    assert tactic.depth % tactics.vector(count) == 0
    assert 1 <= tactic.depth <= share


@given(st.integers(1, 64), st.integers(1, 448))
def test_walks_cover_all_row_blocks(count, blocks):
    tactic = tactics.second(count, blocks)
    for units in (1, 32, 33, 1000):
        assert blocks % tactic.each(units) == 0
    assert tactic.depth % tactics.vector(count) == 0
    assert 1 <= tactic.depth <= tactic.few * count


@pytest.mark.parametrize(("k", "count"), [(1, 1), (64, 1), (65, 2), (192, 3), (3584, 56)])
def test_columns_are_padded_to_whole_chunks(k, count):
    assert tactics.chunks(k) == count


@given(st.integers(1, 60), st.integers(1, 4), st.integers(4, 12), st.integers(0, 2**32))
def test_no_routing_needs_more_units_than_there_are(rows, top_k, experts, seed):
    """Routed at random with some experts preferred; units counted one by one."""
    rng = random.Random(seed)
    tokens = dict.fromkeys(range(experts), 0)
    for _ in range(rows):
        for expert in sorted(tokens, key=lambda e: rng.random() ** (1 + e % 3))[:top_k]:
            tokens[expert] += 1
    units = sum(-(-count // 8) for count in tokens.values())
    assert units <= tactics.max_units(rows, top_k, experts)
    assert 1 <= tactics.expected_units(rows, top_k, experts) <= tactics.max_units(rows, top_k, experts)


def test_units_of_the_real_model():
    """One token: its 16 experts. 64 tokens: 896 (1 - (1 - 16 / 896)^64) = 613.3 experts under uniform routing."""
    assert tactics.max_units(1, 16, 896) == tactics.expected_units(1, 16, 896) == 16
    assert tactics.max_units(64, 16, 896) == 1024
    assert tactics.expected_units(64, 16, 896) == round(896 * (1 - (55 / 56) ** 64)) + 1
