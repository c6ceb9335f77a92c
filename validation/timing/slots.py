"""How many copies of an op's memory take turns, so that every call finds a cold L2. Pure."""

from math import ceil

from ..records import Frozen

# Copies must exceed the L2 this many times: replacement is not strictly least-recently-used.
L2_MULTIPLE = 3
MOST_SLOTS = 512
FEWEST_SLOTS = 4


class Rotation(Frozen):
    """`slots` copies of the op's memory, one after the other in one CUDA graph.

    Static tensors larger than the L2 several times over exist once (`shared_static`): a call that reads them all
    evicts them itself, and one that reads a part (chosen experts) reads another part with each slot's own inputs.
    """

    slots: int
    shared_static: bool


def rotation(call_bytes: int, static_bytes: int, l2_bytes: int, *, memory_bytes: int, slot_bytes: int) -> Rotation:
    """Copies for an op that touches `call_bytes` a call and takes `slot_bytes` of memory (`static_bytes` of it static).

    All sizes in bytes. Raises ValueError when `memory_bytes` cannot hold the fewest slots.
    """
    shared = static_bytes > L2_MULTIPLE * l2_bytes
    own = slot_bytes - (static_bytes if shared else 0)
    room = memory_bytes - (static_bytes if shared else 0)
    wanted = min(MOST_SLOTS, max(FEWEST_SLOTS, ceil(L2_MULTIPLE * l2_bytes / max(call_bytes, 1))))
    possible = room // max(own, 1)
    if possible < FEWEST_SLOTS:
        raise ValueError(f"{FEWEST_SLOTS} copies of {own} bytes do not fit into {room} bytes of device memory")
    return Rotation(slots=int(min(wanted, possible)), shared_static=shared)
