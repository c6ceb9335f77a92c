"""Which launches are ordered, and in which orders they may run: worked out by hand."""

import pytest
from fasttrack_validation.judge.happens_before import launch_orders, schedule
from fasttrack_validation.judge.pack import KernelPack


def plan(*launches: tuple) -> KernelPack:
    """Launches as (stream, waits) or (stream, waits, "pdl")."""
    def variant(pdl: bool) -> dict:
        return {"file": "k.py", "function": "k", "signature": {}, "constexprs": {}, "divisible_by_16": (),
                "options": {"launch_pdl": pdl}}  # fmt: skip

    return KernelPack.model_validate({
        "op": "op", "workload": "w", "candidate_digest": "0", "scratch": {}, "prepared": {}, "toolchain": {},
        "kernels": {"plain": variant(False), "pdl": variant(True)},
        "launches": [
            {"kernel": kind[0] if kind else "plain", "grid": (1, 1, 1), "arguments": {}, "stream": stream, "waits": waits}
            for stream, waits, *kind in launches
        ],
    })  # fmt: skip


def test_a_stream_is_in_order_and_a_wait_takes_everything_before():
    orders = launch_orders(plan(("a", ()), ("b", ()), ("a", ()), ("b", ("a",)), ("a", ("b",))))
    assert [sorted(order.entry) for order in orders] == [[], [], [0], [0, 1, 2], [0, 1, 2, 3]]
    assert all(order.entry == order.waited for order in orders)


def test_a_wait_takes_only_what_was_launched_before_it():
    orders = launch_orders(plan(("a", ()), ("b", ("a",)), ("a", ()), ("b", ())))
    assert sorted(orders[3].entry) == [0, 1]


def test_a_dependent_launch_starts_with_its_predecessor():
    orders = launch_orders(plan(("a", ()), ("a", (), "pdl"), ("a", (), "pdl"), ("a", ())))
    assert [sorted(order.entry) for order in orders] == [[], [], [], [0, 1, 2]]
    assert [sorted(order.waited) for order in orders] == [[], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled:3", "shuffled:4"])
def test_schedules_are_legal_and_complete(order):
    pack = plan(("a", ()), ("b", ()), ("a", ()), ("b", ("a",)), ("c", ()))
    done = schedule(pack, order)
    assert sorted(done) == [0, 1, 2, 3, 4]
    for number, needed in enumerate(launch_orders(pack)):
        assert all(done.index(one) < done.index(number) for one in needed.waited)


def test_the_schedule_of_a_twin_is_another_one_where_there_is_another():
    assert schedule(plan(("a", ()), ("b", ()), ("c", ())), "descending") == [2, 1, 0]
    assert schedule(plan(("a", ()), ("a", ()), ("a", ())), "descending") == [0, 1, 2]
