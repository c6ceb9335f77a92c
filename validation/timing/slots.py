"""How many copies of an op's memory take turns, so that every call finds a cold L2. Pure."""

from math import ceil

# Copies must exceed the L2 this many times: replacement is not strictly least-recently-used.
L2_MULTIPLE = 3
MOST_SLOTS = 512
FEWEST_SLOTS = 4


def rotation(call_bytes: int, l2_bytes: int, *, slot_bytes: int, memory_bytes: int) -> int:
    """How many copies of `slot_bytes` an op needs that touches `call_bytes` of them a call, all in bytes.

    They take turns in one CUDA graph. Raises ValueError when `memory_bytes` cannot hold the fewest.
    """
    possible = memory_bytes // max(slot_bytes, 1)
    if possible < FEWEST_SLOTS:
        raise ValueError(f"{FEWEST_SLOTS} copies of {slot_bytes} bytes do not fit into {memory_bytes} bytes of device memory")
    wanted = ceil(L2_MULTIPLE * l2_bytes / max(call_bytes, 1))
    return max(FEWEST_SLOTS, min(wanted, MOST_SLOTS, possible))
