"""An output projection, the sum over ranks and the residual addition."""

from .contract import OProjResidual as Contract

__all__ = ["Contract"]
