"""How ranks hand rows to each other without a collective, as a model that can be explored to its last state."""

from .exploration import Explored, Violation, explore
from .protocol import SENTINEL, TAGGED, Faults, Plan, Protocol

__all__ = ["SENTINEL", "TAGGED", "Explored", "Faults", "Plan", "Protocol", "Violation", "explore"]
