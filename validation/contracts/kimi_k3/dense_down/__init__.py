"""The second product of the dense layer, the sum over ranks and the residual addition."""

from .contract import DenseDown as Contract

__all__ = ["Contract"]
