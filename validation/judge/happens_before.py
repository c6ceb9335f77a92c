"""Which launches of a plan must have finished before which: what streams, waits and the end of a step guarantee.

A stream runs its launches in order; a wait orders a launch after everything that was launched on another stream before
it. Nothing else orders two launches: not their place in the list, and not how long they take.

Programmatic dependent launch loosens the first rule. A launch with `launch_pdl` may start while its predecessor on the
stream still runs; its programs are ordered after that predecessor only once they have called `gdc_wait`.
"""

import random

from ..records import Frozen
from .pack import KernelPack


class Order(Frozen):
    """What is certain to have finished, by number of launch, before a launch touches memory."""

    entry: frozenset[int]
    """Before its first access."""
    waited: frozenset[int]
    """After `gdc_wait`; the same as `entry` for a launch that is not programmatic."""


def launch_orders(pack: KernelPack) -> tuple[Order, ...]:
    """The order of each launch of `pack` after the ones before it in the list.

    A programmatic launch starts with what its predecessor started with: that one may let it start at once.
    """
    orders: list[Order] = []
    last: dict[str, int] = {}
    for number, launch in enumerate(pack.launches):
        awaited: frozenset[int] = frozenset()
        for stream in launch.waits:
            awaited |= _through(last.get(stream), orders)
        before = last.get(launch.stream)
        waited = awaited | _through(before, orders)
        entry = waited
        if before is not None and pack.kernels[launch.kernel].options.get("launch_pdl"):
            entry = awaited | orders[before].entry
        orders.append(Order(entry=entry, waited=waited))
        last[launch.stream] = number
    return tuple(orders)


def _through(number: int | None, orders: list[Order]) -> frozenset[int]:
    """Launch `number` and everything before it."""
    return frozenset() if number is None else orders[number].waited | {number}


def schedule(pack: KernelPack, order: str) -> list[int]:
    """An order in which the launches may legally run, one after another.

    "ascending" is the plan's own order. Any other name of a program order gives one as unlike it as streams and waits
    allow: "descending" takes the latest launch that may run, "shuffled:<seed>" any.
    """
    numbers = list(range(len(pack.launches)))
    if order == "ascending":
        return numbers
    choose = max if order == "descending" else random.Random(order.partition(":")[2]).choice
    orders = launch_orders(pack)
    done: list[int] = []
    while numbers:
        ready = [number for number in numbers if orders[number].waited.issubset(done)]
        done.append(choose(ready))
        numbers.remove(done[-1])
    return done
