"""The exchange explored to its last state: the protocol of the kernels holds, and each rule that it drops is missed.

Counts of states are no claim; that an exploration came to an end, and what it found, is.
"""

import itertools

import pytest

from fasttrack_validation.contracts.kimi_k3.exchange import SENTINEL, Faults, Plan, Protocol, exploration, explore

KERNELS = Protocol()
ODD = Plan(ranks=2, batches=(1, 1, 1), exchanges=1)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(ranks=2, batches=(1, 2, 1), exchanges=2),
        Plan(ranks=2, batches=(1, 1), exchanges=3),
        Plan(ranks=2, batches=(2, 2, 1, 1, 2), exchanges=1),
        Plan(ranks=3, batches=(1, 1), exchanges=1),
        Plan(ranks=3, batches=(1,), exchanges=3),
    ],
    ids=str,
)
def test_every_share_is_taken_once_and_for_what_it_is(plan):
    found = explore(KERNELS, plan)
    assert found.violation is None and found.ends == 1


@pytest.mark.parametrize("batches", list(itertools.product((1, 2), repeat=5)))
def test_rows_that_come_and_go_are_never_taken_for_older_ones(batches):
    """Tags of two bits, so that every count wraps: a row's own count differs between any two uses of a slot."""
    assert explore(Protocol(tag_bits=2), Plan(ranks=2, batches=batches, exchanges=1)).violation is None


# A rule dropped, a plan that needs it, and what then happens.
DROPPED = {
    "one slot: a fast rank stores over what a slow one has not taken": (Protocol(depth=1), ODD, "stuck"),
    "slots by place in the step: an odd number of exchanges meets its own slot at the next step": (
        Protocol(slot_by_row=False), ODD, "stuck",
    ),
    "tags count exchanges, not rows: a row that was away finds an old tag again": (
        Protocol(tag_by_row=False, tag_bits=2), Plan(ranks=2, batches=(2, 2, 1, 1, 2), exchanges=1), "wrong_value",
    ),
    "tag and data in two stores": (Protocol(torn=True), ODD, "wrong_value"),
    "the next exchange is published before this one was taken": (Protocol(early_publish=True), ODD, "stuck"),
    "armed slots without a fence: an arming arrives after the next share, or not before it is looked at": (
        Protocol(kind=SENTINEL, fence=False), Plan(ranks=2, batches=(1, 1), exchanges=2), "wrong_value",
    ),
    "armed slots by place in the step": (
        Protocol(kind=SENTINEL, slot_by_row=False), Plan(ranks=2, batches=(1, 1), exchanges=3), "wrong_value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", DROPPED)
def test_a_dropped_rule_is_missed(rule):
    protocol, plan, kind = DROPPED[rule]
    found = explore(protocol, plan).violation
    assert found is not None and found.kind == kind
    assert found.trace, "the way there is told"
    # The plan itself is no trap: the kernels' protocol gets through it.
    assert explore(KERNELS, plan).violation is None


@pytest.mark.parametrize(
    "plan",
    [
        Plan(ranks=2, batches=(2, 2), exchanges=3, uses=((0, 1), (0,), (1,))),
        Plan(ranks=2, batches=(2, 2), exchanges=2, uses=((0,), (1,))),
        Plan(ranks=3, batches=(2,), exchanges=2, uses=((0,), (1,))),
    ],
    ids=str,
)
def test_exchanges_may_use_other_words_than_the_one_before(plan):
    assert explore(KERNELS, plan).violation is None


def test_a_word_that_lies_idle_until_its_tag_comes_round_is_taken_for_another():
    """Tags of two bits come round after four exchanges, the kernels' after 65,536."""
    few = Protocol(tag_bits=2)
    idle = Plan(ranks=2, batches=(2, 2), exchanges=4, uses=((0, 1), (1,), (1,), (1,)))
    assert explore(few, idle).violation.kind == "wrong_value"
    assert explore(KERNELS, idle).violation is None
    sooner = Plan(ranks=2, batches=(2, 2), exchanges=3, uses=((0, 1), (1,), (1,)))
    assert explore(few, sooner).violation is None


def test_armed_slots_with_a_fence_hold_too():
    """The public path's protocol, with the fence and the slots that it needs: the model refuses no honest one."""
    assert explore(Protocol(kind=SENTINEL), Plan(ranks=2, batches=(1, 2, 1), exchanges=2)).violation is None


def test_a_killed_rank_stops_the_others_where_waits_are_bounded():
    plan = Plan(ranks=2, batches=(1, 1), exchanges=2)
    assert explore(KERNELS, plan, Faults(killed=0)).violation.kind == "stuck"
    for killed in range(plan.ranks):
        assert explore(KERNELS, plan, Faults(killed=killed, give_up=True)).violation is None


def test_ranks_that_replay_different_batches_stop_and_take_nothing_wrong():
    plan = Plan(ranks=2, batches=(1, 1), exchanges=1, other=(1, (2, 1)))
    assert explore(KERNELS, plan).violation.kind == "stuck"
    assert explore(KERNELS, plan, Faults(give_up=True)).violation is None


def test_giving_up_too_early_costs_a_step_and_no_value():
    """A bound that is too short for an honest delay, with three ranks: everyone stops or is through."""
    assert explore(KERNELS, Plan(ranks=3, batches=(1,), exchanges=1), Faults(give_up=True)).violation is None


def test_an_exploration_that_is_cut_off_shows_nothing(monkeypatch):
    monkeypatch.setattr(exploration, "MOST", 10)
    with pytest.raises(MemoryError, match="explore fewer"):
        explore(KERNELS, ODD)
