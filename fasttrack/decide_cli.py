"""The command line of `fasttrack decide`. Imports nothing heavy before the command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer


def decide(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")],
    ruling: Annotated[str, typer.Argument(metavar="approve|reject", help="what you decide")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="why; it is kept, and shown")],
    key: Annotated[Path, typer.Option(metavar="KEY", help="your SSH private key, or the public half of one in an agent")],
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Approve or reject a design: a note over the digest of the report in this checkout, signed by you.

    Example: `fasttrack decide kimi_k3 approve --note "one launch less, errors at the floor" --key ~/.ssh/id_ed25519`
    """
    from . import decide_commands

    decide_commands.decide(model, ruling, note, key, as_json=as_json)
