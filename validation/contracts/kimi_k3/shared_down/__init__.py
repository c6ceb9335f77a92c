"""The second product of the shared expert."""

from .contract import SharedDown as Contract

__all__ = ["Contract"]
