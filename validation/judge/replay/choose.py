"""Whether plans can be launched on this machine, and why not where they cannot."""

import importlib.util

from ...errors import UserError
from ..device_code.records import TARGETS, target_name
from .device import Device
from .faults import DeviceLost

CHOICES = ("auto", "cpu", "gpu")


def choose(asked: str | Device) -> tuple[Device | None, str]:
    """A started device, or None and why there is none. Raises UserError where a GPU was asked for and cannot be had."""
    if isinstance(asked, Device):
        return asked, ""
    if asked not in CHOICES:
        raise UserError(f"unknown device {asked!r}", f"choose one of {', '.join(CHOICES)}")
    if asked == "cpu":
        return None, "told to use no GPU"
    why = _why_no_bindings()
    if not why:
        device = Device("cuda")
        try:
            capability = device.facts.capability
            if capability in TARGETS:
                return device, ""
            built = ", ".join(map(target_name, TARGETS))
            why = f"{device.facts.name} is {target_name(capability)}; code is compiled for {built}"
        except DeviceLost as lost:
            why = lost.what
        device.close()
    if asked == "gpu":
        raise UserError(f"no GPU to launch on: {why}", "pip install 'fasttrack[gpu]', and see `nvidia-smi`")
    return None, why


def _why_no_bindings() -> str:
    found = importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings")
    return "" if found else "cuda-bindings is not installed"
