"""A stated model of how long a launch plan takes. It ranks candidates where no GPU can; it is never a measurement.

For each launch, with B blocks of which R are resident on the card at once (occupancy from registers, shared memory and
threads), W = ceil(B / R) waves, D bytes moved (loads and stores that one interpreted run issued, scaled to the grid,
plus spills):

    t = launch + W * latency + D / min(ceiling(D), R_used * in_flight / latency)

* launch: cost of a dependent launch in a CUDA graph; measured where the profile has a ceiling, 1 us assumed elsewhere.
* latency: 0.7 us, one dependent chain of global loads and the arithmetic behind it for one block.
* in_flight (Little's law): bytes that a block keeps outstanding, a quarter of its register file, as loaded values must
  land somewhere; R_used = min(B, R).
* ceiling: the measured read ceiling where the profile has one, the datasheet's rate elsewhere.

The constants are order-of-magnitude choices, the same for every candidate: the model orders designs by launches, waves,
occupancy, spills and bytes, and knows nothing of instruction mix or cache reuse.
"""

from math import ceil

from ..claims.cells import Modelled
from ..performance.hardware import Hardware
from ..records import Frozen

MODEL = "launch-waves-bytes/1"
BLOCK_LATENCY_SECONDS = 0.7e-6
ASSUMED_LAUNCH_SECONDS = 1.0e-6
IN_FLIGHT_FRACTION = 0.25


class LaunchShape(Frozen):
    """What the model needs to know of one launch."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    moved_bytes: int
    spill_bytes_per_thread: int = 0


def resident_blocks(shape: LaunchShape, hardware: Hardware) -> int:
    """Blocks that fit on the card at once: CUDA's occupancy rules at register granularity of 8 per thread.

    At least one block a multiprocessor is assumed: a kernel that does not fit is refused at compile time.
    """
    registers = ceil(max(shape.registers, 16) / 8) * 8 * shape.threads
    limits = [
        hardware.blocks_per_multiprocessor,
        hardware.threads_per_multiprocessor // shape.threads,
        hardware.registers_per_multiprocessor // registers,
    ]
    if shape.shared_bytes:
        # The driver reserves 1 KiB of shared memory for each resident block.
        limits.append(hardware.shared_per_multiprocessor // (shape.shared_bytes + 1024))
    return max(1, min(limits)) * hardware.multiprocessors


def model_plan(shapes: tuple[LaunchShape, ...], hardware: Hardware) -> Modelled:
    """The modelled time of a plan whose launches follow each other on one stream."""
    total, parts = 0.0, {"launch": 0.0, "latency": 0.0, "bytes": 0.0}
    for shape in shapes:
        resident = resident_blocks(shape, hardware)
        waves = ceil(shape.blocks / resident)
        moved = shape.moved_bytes + shape.spill_bytes_per_thread * shape.threads * shape.blocks
        in_flight = min(shape.blocks, resident) * shape.threads * shape.registers * 4 * IN_FLIGHT_FRACTION
        ceiling = hardware.ceiling.read_rate(moved) if hardware.ceiling else hardware.datasheet_bytes_per_second
        rate = min(ceiling, in_flight / BLOCK_LATENCY_SECONDS)
        launch = hardware.ceiling.launch_seconds if hardware.ceiling else ASSUMED_LAUNCH_SECONDS
        for part, seconds in (("launch", launch), ("latency", waves * BLOCK_LATENCY_SECONDS), ("bytes", moved / rate)):
            parts[part] += seconds
            total += seconds
    return Modelled(
        microseconds=round(total * 1e6, 3), model=MODEL, hardware=hardware.name, bound=max(parts, key=parts.__getitem__)
    )
