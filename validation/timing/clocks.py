"""What the card was doing while it was timed: NVML clocks, temperature, power, throttling, other processes."""

from collections.abc import Sequence
from importlib.util import find_spec
from statistics import median

from ..records import Frozen

# NVML's clocksEventReasons bits that mean "slower than it could be" (nvml.h): software and hardware power caps and
# slowdowns. Idle, application clocks and sync boost are not among them.
THROTTLES = {
    0x4: "software power cap", 0x8: "hardware slowdown", 0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown", 0x80: "hardware power brake",
}  # fmt: skip

# Of these, what the card decides on for itself and a figure cannot stand beside. A power budget that software sets is how
# a card is run: it is recorded.
SPOILING = frozenset(THROTTLES.values()) - {"software power cap"}


class CardState(Frozen):
    """One look at the card."""

    sm_mhz: int
    memory_mhz: int
    celsius: int
    watts: float
    throttles: tuple[str, ...]
    processes: int


class Conditions(Frozen):
    """What was seen over a session, or why nothing was."""

    seen: int
    sm_mhz_median: float | None = None
    sm_mhz_lowest: int | None = None
    memory_mhz_lowest: int | None = None
    celsius_highest: int | None = None
    watts_highest: float | None = None
    throttles: tuple[str, ...] = ()
    processes_most: int | None = None
    unavailable: str | None = None


class Card:
    """NVML's view of one GPU. Without NVML `look` gives None and `unavailable` says why."""

    def __init__(self, index: int = 0) -> None:
        self.unavailable: str | None = None
        self._handle = None
        if find_spec("pynvml") is None:
            self.unavailable = "nvidia-ml-py is not installed"
            return
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:
            self.unavailable = f"NVML: {error}"

    def look(self) -> CardState | None:
        """The state now; None when NVML cannot say."""
        if self._handle is None:
            return None
        nvml, handle = self._nvml, self._handle
        try:
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            return CardState(
                sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                memory_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                celsius=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
                watts=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                throttles=tuple(name for bit, name in THROTTLES.items() if reasons & bit),
                processes=len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            )  # fmt: skip
        except nvml.NVMLError as error:
            self.unavailable = f"NVML: {error}"
            return None


def conditions(states: Sequence[CardState], unavailable: str | None = None) -> Conditions:
    """The extremes over a session."""
    if not states:
        return Conditions(seen=0, unavailable=unavailable or "the card was never looked at")
    return Conditions(
        seen=len(states),
        sm_mhz_median=median(s.sm_mhz for s in states),
        sm_mhz_lowest=min(s.sm_mhz for s in states),
        memory_mhz_lowest=min(s.memory_mhz for s in states),
        celsius_highest=max(s.celsius for s in states),
        watts_highest=max(s.watts for s in states),
        throttles=tuple(sorted({name for s in states for name in s.throttles})),
        processes_most=max(s.processes for s in states),
    )


def disturbance(seen: Conditions, own: int) -> str | None:
    """Why times taken under these conditions are no measurement, or None: the card slowed itself, or served others.

    `own` is how many compute processes are the judge's. A machine that lists none cannot say (containers, no NVML).
    """
    if seen.processes_most is not None and seen.processes_most > own:
        return f"device is shared: {seen.processes_most} compute processes, {own} of them the judge's"
    if spoiled := sorted(SPOILING.intersection(seen.throttles)):
        return f"the card slowed itself while it was timed: {', '.join(spoiled)}"
    return None
