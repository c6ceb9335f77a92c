"""No confinement: limits alone. Only for `unsafe=True`, where no rung holds."""

from . import rung_landlock
from .plan import Plan

CONFINES = False

outside = rung_landlock.make_scratch
clean = rung_landlock.clean


def inside(plan: Plan) -> None:
    """Nothing."""


def lock(plan: Plan) -> None:
    """Nothing."""
