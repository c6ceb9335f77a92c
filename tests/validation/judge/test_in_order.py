"""Results in order, a bounded number under way, and an end that leaves nothing running."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from fasttrack_validation.judge.in_order import in_order


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as made:
        yield made


def test_results_come_in_order_whatever_order_they_finish_in(pool):
    last = threading.Event()

    def work(item):
        if item == 3:
            last.set()
        if item == 0:
            assert last.wait(30)  # the first ends after the fourth has begun
        return item * item

    assert list(in_order(pool, work, range(10), 4)) == [item * item for item in range(10)]


@pytest.mark.parametrize("ahead", (1, 3))
def test_no_more_are_begun_than_allowed(pool, ahead):
    begun = []
    results = in_order(pool, lambda item: begun.append(item) or item, range(20), ahead)
    for taken in range(5):
        assert next(results) == taken
        assert len(begun) <= taken + ahead


def test_the_first_are_worked_on_alone(pool):
    under_way, most = [], []

    def work(item):
        under_way.append(item)
        most.append((item, len(under_way)))
        under_way.remove(item)
        return item

    results = in_order(pool, work, range(6), 4, alone=2)
    assert list(islice(results, 2)) == [0, 1] and [item for item, _ in most] == [0, 1]
    assert list(results) == [2, 3, 4, 5]


def test_what_has_not_begun_never_does_once_the_caller_stops(pool):
    begun = []
    results = in_order(pool, lambda item: begun.append(item) or item, range(100), 4)
    assert next(results) == 0
    results.close()
    pool.shutdown()
    assert set(begun) <= set(range(5))


def test_an_exception_comes_where_its_result_would_have(pool):
    def work(item):
        if item == 2:
            raise ValueError("two")
        return item

    results = in_order(pool, work, range(5), 3)
    assert list(islice(results, 2)) == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)
    assert list(in_order(pool, work, (), 3)) == []
