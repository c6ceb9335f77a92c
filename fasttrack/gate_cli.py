"""The command line of `fasttrack gate`. Imports nothing heavy before the command needs it, as cli.py."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fasttrack_validation.errors import UserError


class Format(StrEnum):
    """What the gate prints. The exit code is the same for all."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def gate(
    base: Annotated[str, typer.Option(help="revision that the rules and the comparison come from")],
    model: Annotated[
        str | None, typer.Option(help="the model that the change is for; by default the one whose directory changes")
    ] = None,
    head: Annotated[str, typer.Option(help="revision to judge; read as git objects, never checked out")] = "HEAD",
    repo: Annotated[Path, typer.Option(help="the repository")] = Path("."),
    form: Annotated[
        Format,
        typer.Option("--format", help="github: text, annotations, and a summary in $GITHUB_STEP_SUMMARY; sarif: 2.1.0"),
    ] = Format.TEXT,
    body: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the pull request's text, whose figures are held against claims")
    ] = None,
    recheck: Annotated[
        bool, typer.Option("--recheck/--no-recheck", help="judge touched ops again, in the sandbox; needs torch and Triton")
    ] = False,
    recheck_minutes: Annotated[float, typer.Option(min=0.1, help="with --recheck: start no op after so long")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="the same as --format json")] = False,
) -> None:
    """Decide whether a change may stay on the fast track: confined, fresh evidence, derived claims.

    Without --recheck nothing of the head runs. With it, touched ops are compiled for every target and interpreted, by the
    judge of this installation, in its sandbox.

    Example: `fasttrack gate --base origin/main --head HEAD --model kimi_k3 --recheck`
    """
    from . import gate_commands

    if as_json and form not in (Format.TEXT, Format.JSON):
        raise UserError(f"--json does not go with --format {form}", "give one of them")
    gate_commands.gate(
        repo, base, head, model, Format.JSON if as_json else form, body=body, minutes=recheck_minutes if recheck else None
    )
