"""The first product of the dense layer and its activation."""

from .contract import DenseUp as Contract

__all__ = ["Contract"]
