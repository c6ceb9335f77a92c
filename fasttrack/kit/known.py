"""Whether the `fasttrack` that writes a kit knows the commands in it: a kit never holds one that nobody can run."""

from collections.abc import Sequence
from typing import Any

from typer.main import get_command


def why_not(arguments: Sequence[str]) -> str | None:
    """Why this version cannot run `fasttrack ...` (its first word included); None where it parses. Nothing is run."""
    from ..cli import app

    _, *rest = arguments
    command: Any = get_command(app)
    path = "fasttrack"
    while hasattr(command, "commands"):
        name, *rest = rest or [""]
        if name not in command.commands:
            return f"this version has no `{path} {name}`"
        command, path = command.commands[name], f"{path} {name}"
    try:
        command.make_context(path, list(rest), resilient_parsing=False)
    except Exception as error:  # whatever the parser calls its complaint, that is why
        told = error.format_message() if hasattr(error, "format_message") else error
        return f"this version's `{path}` does not take it: {told}"
    return None
