"""No confinement: limits alone. Only for `unsafe=True`."""

from . import filesystem_rules
from .plan import Plan

CONFINES = False

outside = filesystem_rules.make_scratch
clean = filesystem_rules.clean


def inside(plan: Plan) -> None:
    """Nothing."""


def lock(plan: Plan) -> None:
    """Nothing."""
