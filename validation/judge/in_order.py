"""Work on several threads whose results are taken in order, and which can be stopped between two of them."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    pool: Executor, work: Callable[[Item], Result], items: Sequence[Item], ahead: int, *, alone: int = 0
) -> Iterator[Result]:
    """`work` of each item, in order; at most `ahead` are under way or finished and not yet taken.

    The first `alone` items are worked on one by one, before any other is begun. When the caller stops asking, what has
    not begun never does. An exception of `work` is raised where its result would have been given.
    """
    for item in items[:alone]:
        yield pool.submit(work, item).result()
    waiting = iter(items[alone:])
    begun: deque[Future[Result]] = deque()
    try:
        while True:
            while len(begun) < ahead and (item := next(waiting, _END)) is not _END:
                begun.append(pool.submit(work, item))
            if not begun:
                return
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


_END = object()
