"""What `fasttrack validate` does: one function a stage, found in a table."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NoReturn

from fasttrack_validation.errors import UserError

Run = Callable[[str, Mapping[str, Any]], NoReturn]
"""(model, options of the command line): prints, and ends with the exit code"""

STAGES = {
    "numerics": "validate_numerics",
    "accuracy": "validate_accuracy",
}
"""Stage -> the module of this package whose `run` carries it out"""


def validate(model: str, stage: str, options: Mapping[str, Any]) -> NoReturn:
    """Carries out `stage`."""
    if stage not in STAGES:
        raise UserError(f"there is no stage {stage!r}", f"the stages are {', '.join(STAGES)}")
    run: Run = import_module(f".{STAGES[stage]}", __package__).run
    run(model, options)
