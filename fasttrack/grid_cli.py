"""The command line of `fasttrack grid`. Imports nothing heavy before a command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="grid", no_args_is_help=True, rich_markup_mode=None,
    help="The performance grid of a model's decode path: what has been measured, and measuring it.",
)  # fmt: skip

Model = Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")]
Hardware = Annotated[str, typer.Option("--hardware", help="a hardware profile: h200, gb300")]
Cells = Annotated[
    list[str] | None, typer.Option("--cell", metavar="PATTERN", help="cells by name, * and ? allowed; may be repeated")
]
AsJson = Annotated[bool, typer.Option("--json", help="print data instead of text")]


@app.command("plan")
def plan(model: Model, hardware: Hardware, cell: Cells = None, as_json: AsJson = False) -> None:
    """List every cell of the grid, and say which are kept, stale, to be run, or cannot be run and why.

    Example: `fasttrack grid plan kimi_k3 --hardware h200 --cell 'tp8-kda_moe-*'`
    """
    from . import grid_commands

    grid_commands.plan(model, hardware, cell or (), as_json=as_json)


@app.command("run")
def run(
    model: Model,
    hardware: Hardware,
    cell: Cells = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again what is kept")] = False,
    quads: Annotated[int, typer.Option(min=5, max=200, help="quads A B B A of each cell")] = 12,
    as_json: AsJson = False,
) -> None:
    """Measure cells on this machine's GPU, stock path against specialised path. Each is kept once it is known, so a
    run that was cut off goes on where it stopped.

    Example: `fasttrack grid run kimi_k3 --hardware h200 --cell 'tp8-*'`
    """
    from . import grid_commands

    grid_commands.run(model, hardware, cell or (), fresh=fresh, quads=quads, as_json=as_json)


@app.command("show")
def show(
    model: Model,
    hardware: Hardware,
    cell: Cells = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="also draw it: .svg, .png or .pdf")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole grid: figures with their intervals and floors, and for every other cell why it has none.

    Example: `fasttrack grid show kimi_k3 --hardware h200 --plot grid.svg`
    """
    from . import grid_commands

    grid_commands.show(model, hardware, cell or (), plot=plot, as_json=as_json)


@app.command("compare")
def compare(
    model: Model,
    hardware: Hardware,
    other: Annotated[str, typer.Option("--with", metavar="REV|DIR", help="an earlier revision, or a directory of records")],
    as_json: AsJson = False,
) -> None:
    """Hold the grid that is kept against an earlier one, cell by cell, and list what got slower (exit 1).

    Example: `fasttrack grid compare kimi_k3 --hardware h200 --with origin/main`
    """
    from . import grid_commands

    grid_commands.compare(model, hardware, other, as_json=as_json)
