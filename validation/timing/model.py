"""A stated model of how long a launch plan takes. It ranks candidates where no GPU can; it is never a measurement.

For each launch, with B blocks of which R are resident on the card at once (occupancy from registers, shared memory and
threads), W = ceil(B / R) waves, D bytes moved (loads and stores that one interpreted run issued, scaled to the grid,
plus spills), and N barrier instructions among w warps of a block (read from the machine code):

    t = launch + W * N * w * barrier + D / ceiling(D)

* launch: cost of a dependent launch in a CUDA graph; measured where the profile has a ceiling, 1 us assumed elsewhere.
* barrier: 18 ns for each warp that a block-wide barrier waits for. A decode step's blocks are short chains of
  reductions; the barriers between them are what most of their time goes into.
* ceiling: the measured read ceiling where the profile has one, the datasheet's rate elsewhere.

`barrier` was fitted to 21 configurations of kda_decode at 8 workloads on one H200 (benchmarks/kda_decode.py). Against
those measurements the model's median error is 19 %; its rank correlation with them is 0.84 and 0.87 at 16 and 64 rows
of TP8, 0.5 and 0.84 of TP16, and about none at 1 and 4 rows. So it orders designs at large batches, and at small ones
a pick by it is little better than a draw. An earlier form, which modelled bytes in flight per block instead of
barriers, correlated with the measurements at -0.4 to 0.3 and was dropped.
"""

from math import ceil

from ..claims.cells import Modelled
from ..performance.hardware import Hardware
from ..records import Frozen

MODEL = "launch-barriers-bytes/2"
BARRIER_SECONDS = 18e-9
ASSUMED_LAUNCH_SECONDS = 1.0e-6


class LaunchShape(Frozen):
    """What the model needs to know of one launch."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int
    moved_bytes: int
    barriers: int = 0
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
    parts = {"launch": 0.0, "barriers": 0.0, "bytes": 0.0}
    for shape in shapes:
        waves = ceil(shape.blocks / resident_blocks(shape, hardware))
        moved = shape.moved_bytes + shape.spill_bytes_per_thread * shape.threads * shape.blocks
        ceiling = hardware.ceiling.read_rate(moved) if hardware.ceiling else hardware.datasheet_bytes_per_second
        parts["launch"] += hardware.ceiling.launch_seconds if hardware.ceiling else ASSUMED_LAUNCH_SECONDS
        parts["barriers"] += waves * shape.barriers * (shape.threads / 32) * BARRIER_SECONDS
        parts["bytes"] += moved / ceiling
    return Modelled(
        microseconds=round(sum(parts.values()) * 1e6, 3), model=MODEL, hardware=hardware.name,
        bound=max(parts, key=parts.__getitem__),
    )  # fmt: skip
