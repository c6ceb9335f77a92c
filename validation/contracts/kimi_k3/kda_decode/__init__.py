"""One decode step of Kimi Delta Attention, from the fused in-projection's output to the gated norm."""

from .contract import KdaDecode as Contract

__all__ = ["Contract"]
