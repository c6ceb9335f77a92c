"""Those of every product."""

from ..linear_maths import DISTRIBUTIONS, MISTAKES, Oracle, plain

__all__ = ["DISTRIBUTIONS", "MISTAKES", "Oracle", "plain"]
