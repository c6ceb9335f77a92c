"""Those of every output projection."""

from ..o_proj_residual.maths import DISTRIBUTIONS, MISTAKES, Oracle, plain

__all__ = ["DISTRIBUTIONS", "MISTAKES", "Oracle", "plain"]
