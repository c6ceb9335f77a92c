"""Where to start a search: configurations that keep enough bytes in flight to reach memory's bandwidth.

Little's law: a memory that delivers W bytes a second with a latency of L seconds is only kept busy while W * L bytes
are under way. A decode kernel moves few bytes, so it meets that need, or all of its bytes at once where they are
fewer, by the number of programs and by what each of them has under way. These figures order proposals; they judge
nothing and are shown as nothing but a floor at datasheet bandwidth.
"""

import math
from dataclasses import dataclass

from fasttrack_validation.performance.hardware import profiles

from .space import Config, InFlight, Space

# What one multiprocessor can have under way: its loads land in registers (256 KiB) or shared memory (up to 227 KiB),
# and neither can be given to loads alone.
BYTES_PER_SM = 128 * 1024


@dataclass(frozen=True)
class Card:
    """Datasheet figures of one card."""

    bytes_per_second: float
    multiprocessors: int
    latency_seconds: float

    @property
    def bytes_under_way(self) -> float:
        """Bytes in flight that keep the memory busy: bandwidth times latency."""
        return self.bytes_per_second * self.latency_seconds


# A working figure for a loaded HBM read on both generations.
LATENCY_SECONDS = 0.8e-6

CARDS = {
    name: Card(card.datasheet_bytes_per_second, card.multiprocessors, LATENCY_SECONDS)
    for name, card in profiles().items()
}


def floor_microseconds(total_bytes: int, hardware: str) -> float:
    """The time that `total_bytes` take at the card's datasheet bandwidth, in microseconds. A bound, not an estimate."""
    return total_bytes / CARDS[hardware].bytes_per_second * 1e6


def bytes_in_flight(config: Config, layout: InFlight, total_bytes: int, card: Card) -> tuple[int, int]:
    """Bytes under way at once over the whole card, and the programs that share them.

    The op's `total_bytes` over what one program reads in all gives the number of programs; a multiprocessor holds as
    many as have their bytes under way fit into `BYTES_PER_SM`, at least one.
    """
    own = layout.unit_bytes * layout.ahead * math.prod(config[name] for name in (*layout.tile, *layout.stages))
    programs = math.ceil(total_bytes / (layout.program_bytes or own))
    resident = min(programs, card.multiprocessors * max(1, BYTES_PER_SM // own))
    return min(total_bytes, resident * own), resident


def seeds(space: Space, workload_bytes: dict[str, list[int]]) -> list[Config]:
    """One configuration for each (hardware, bytes that a workload reads), without repeats.

    Preferred, in this order: no shortfall of bytes in flight, no idle multiprocessor, fewest programs (each one pays
    for its own start), earliest in the space. Only configurations that say what they have in flight take part.
    """
    known = [(config, layout) for config in space.configurations() if (layout := space.layout(config))]
    result: list[Config] = []
    for hardware, sizes in workload_bytes.items() if known else ():
        card = CARDS[hardware]
        for total in sizes:

            def rank(entry: tuple[Config, InFlight], total: int = total, card: Card = card) -> tuple[float, int, int]:
                under_way, programs = bytes_in_flight(*entry, total, card)
                idle = max(0, card.multiprocessors - programs)
                return (max(0.0, min(total, card.bytes_under_way) - under_way), idle, programs)

            best = min(known, key=rank)[0]
            if best not in result:
                result.append(best)
    return result
