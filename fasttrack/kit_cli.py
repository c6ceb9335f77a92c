"""The command line of `fasttrack kit`. Imports nothing heavy before the command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer


def kit(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")],
    hardware: Annotated[str, typer.Option(help="what its owner has: gb300, h200")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="a new directory; by default MODEL-HARDWARE-kit")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="linked GPUs there; by default all that the hardware links")] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", metavar="PATTERN", help="of one rank's grid these cells alone, * and ? allowed; may be repeated"),
    ] = None,
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="the same steps with the small model on this machine's CPU")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Write a directory with which the owner of other hardware measures the model there: checks of the machine, one rank's
    share on one GPU, and where there is a grid of servers for such hardware numerics and exams server against server and
    that grid; then one sealed file to send back.

    Example: `fasttrack kit kimi_k3 --hardware gb300 --gpus 32 -o gb300-kit`

    Example: `fasttrack kit kimi_k3 --hardware h200 --cell 'tp8-kda_moe-*'`
    """
    from . import kit_commands

    kit_commands.write(model, hardware, out, gpus=gpus, cells=cell or (), rehearsal=rehearsal, as_json=as_json)
