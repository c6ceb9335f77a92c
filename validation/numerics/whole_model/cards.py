"""What the decode path's host code runs on: the GPU of this process, or an interpreter that stands for one."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...errors import UserError

KNOWN = {(9, 0): "h200", (10, 3): "gb300"}
"""Compute capability -> name in dispatch tables"""
CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Card:
    """A card as kernels and their host code see it."""

    name: str
    """In dispatch tables"""
    capability: tuple[int, int]
    multiprocessors: int
    device: str
    """Of tensors"""
    context: Any
    """What kernels are launched with"""


def of(device: str, factory: ModuleType, directory: Any) -> Card:
    """The card that `device`, cpu or cuda, is. Raises UserError for a GPU that no kernel is made for."""
    return _interpreted() if device == CPU else _gpu(factory, directory)


def _interpreted() -> Card:
    from ...judge.interpreter.serving import InterpretingContext

    context = InterpretingContext()
    from . import quicker

    quicker.install()
    # Any card of the tables will do.
    return Card("h200", (9, 0), 132, CPU, context)


def _gpu(factory: ModuleType, directory: Any) -> Card:
    import torch

    capability = torch.cuda.get_device_capability()
    if capability not in KNOWN:
        known = ", ".join(f"{name} ({major}.{minor})" for (major, minor), name in KNOWN.items())
        raise UserError(
            f"compute capability {'.'.join(map(str, capability))}; there are kernels for {known}",
            "name --device cpu",
        )
    facts = factory.hardware(KNOWN[capability])
    context = factory.ServingContext(facts, directory.sources)
    return Card(KNOWN[capability], capability, facts.multiprocessors, CUDA, context)
