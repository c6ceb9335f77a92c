"""The command line of `fasttrack new-model`. Imports nothing heavy before the command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

from fasttrack_validation.errors import UserError


def new_model(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="of the directories: lower-case words and '_', such as kimi_k3")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with answers; what is missing is asked for on a terminal")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="a published config.json: width and epsilon are read from it")
    ] = None,
    questions: Annotated[bool, typer.Option("--questions", help="print a file of answers to fill in")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check everything, name the files, write none")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text; asks nothing")] = False,
) -> None:
    """Scaffold a model: an exam for people to review, and a model directory with a first kernel that passes it.

    What is not known of the model is asked for, never guessed.

    Example: `fasttrack new-model deepseek_v4_1_flash --answers templates/model/examples/deepseek_v4_1_flash.toml`

    Example: `fasttrack new-model --questions > answers.toml`

    Example: `fasttrack new-model my_model --config config.json`
    """
    from . import new_model_commands

    if questions:
        new_model_commands.questions()
        return
    if name is None:
        raise UserError("NAME is missing", "`fasttrack new-model NAME`; `fasttrack new-model --help` has examples")
    new_model_commands.new_model(name, answers, config, dry_run=dry_run, as_json=as_json)
