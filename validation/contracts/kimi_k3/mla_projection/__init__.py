"""The fused in-projection of an MLA layer."""

from .contract import MlaProjection as Contract

__all__ = ["Contract"]
