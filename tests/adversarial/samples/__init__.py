"""Exploits as data (`SAMPLES`), honest twins (`HONEST`), and what is held elsewhere or cannot be held (`ELSEWHERE`)."""

from . import agents, caching, device, harness, numerics, outputs, plans, timing
from .elsewhere import ELSEWHERE
from .honest import HONEST
from .sample import Sample

SAMPLES: dict[str, Sample] = {
    sample.name: sample
    for room in (outputs, timing, caching, harness, numerics, agents, device, plans)
    for sample in room.SAMPLES
}

__all__ = ["ELSEWHERE", "HONEST", "SAMPLES", "Sample"]
