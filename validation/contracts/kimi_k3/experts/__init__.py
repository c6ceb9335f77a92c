"""The routed experts of the rows of one step: this rank's share of the weighted sum."""

from .contract import Experts as Contract

__all__ = ["Contract"]
