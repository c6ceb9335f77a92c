"""Whether a time can be true: two clocks that must agree, and floors that physics sets. Pure."""

from collections.abc import Sequence
from statistics import median

from pydantic import Field

from ..performance.hardware import Hardware
from ..records import Frozen

# What the host's clock sees beyond the device's: the launch of a graph, the wake-up after the drain. Fixed part from
# an H200 under Firecracker, where an empty drain took up to 40 us; the share covers a host that is scheduled away.
HOST_OVERHEAD_NS = 100_000
HOST_OVERHEAD_SHARE = 0.10
# Event timestamps have a resolution of about half a microsecond (CUDA documentation of cudaEventElapsedTime).
EVENT_RESOLUTION_NS = 1_000


class Reading(Frozen):
    """One timed replay by two methods: device events round it, and the host's clock round a drain of the device."""

    event_ns: int = Field(gt=0)
    host_ns: int = Field(gt=0)


class Fault(Frozen):
    """A timing that cannot be believed."""

    reason: str
    message: str
    contestant: str = Field(default="", description="whose; set by the session")


def clocks_fault(readings: Sequence[Reading]) -> Fault | None:
    """The two clocks must tell the same story: the device cannot be busy for longer than the host waited, and what it
    was busy with must account for the wait but for a bounded overhead. Work outside of the events (another stream, a
    later launch) or a tampered clock breaks one or the other."""
    event = median(r.event_ns for r in readings)
    host = median(r.host_ns for r in readings)
    figures = f"events say {event / 1e3:.1f} us, the host {host / 1e3:.1f} us (medians of {len(readings)})"
    if event > host + EVENT_RESOLUTION_NS:
        return Fault(reason="timing.clocks_disagree", message=f"the device was busy for longer than the host waited: {figures}")
    if host - event > HOST_OVERHEAD_NS + HOST_OVERHEAD_SHARE * host:
        return Fault(reason="timing.clocks_disagree", message=f"the device worked on after the last event: {figures}")
    return None


def physical_floor_us(moved_bytes: int, flops: int, hardware: Hardware, *, cold: float = 1.0) -> float:
    """Microseconds that the datasheet's peaks allow at least; `cold` is the share of bytes that cannot be in L2."""
    return hardware.physical_floor_seconds(int(moved_bytes * cold), flops) * 1e6


def floor_fault(microseconds: float, floor_us: float) -> Fault | None:
    """A time below the physical floor is impossible: something was left out, or something else was timed."""
    if microseconds >= floor_us:
        return None
    return Fault(
        reason="timing.impossible",
        message=f"{microseconds:.3f} us is less than the {floor_us:.3f} us that the datasheet allows at best",
    )


def cold_share(call_bytes: int, slots: int, l2_bytes: int) -> float:
    """Share of a call's bytes that cannot still be in L2 when `slots` calls on distinct memory take turns: 0 to 1."""
    total = call_bytes * slots
    return max(0.0, 1.0 - l2_bytes / total) if total else 0.0
