"""The fused in-projection of a KDA layer."""

from .contract import InProjection as Contract

__all__ = ["Contract"]
