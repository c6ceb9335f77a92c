"""The command line of `fasttrack grid`. Imports nothing heavy before a command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

from fasttrack_validation.errors import UserError

app = typer.Typer(
    name="grid", no_args_is_help=True, rich_markup_mode=None,
    help="The performance grid of a model's decode path: what has been measured, and measuring it.",
)  # fmt: skip

Model = Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")]
Hardware = Annotated[str, typer.Option("--hardware", help="a hardware profile: h200, gb300")]
Cells = Annotated[
    list[str] | None, typer.Option("--cell", metavar="PATTERN", help="cells by name, * and ? allowed; may be repeated")
]
Scope = Annotated[
    str, typer.Option(metavar="rank|server", help="one rank's share on one GPU, or whole servers under load")
]
Gpus = Annotated[
    int | None, typer.Option(min=1, help="server: linked GPUs here; by default as many as the hardware links")
]
OwnGrid = Annotated[Path | None, typer.Option("--grid", metavar="FILE", help="server: another grid than the contract's")]
Records = Annotated[
    Path | None, typer.Option(metavar="DIR", help="where records are kept; by default the model directory")
]
AsJson = Annotated[bool, typer.Option("--json", help="print data instead of text")]


@app.command("plan")
def plan(
    model: Model, hardware: Hardware, cell: Cells = None, scope: Scope = "rank", gpus: Gpus = None,
    grid: OwnGrid = None, records: Records = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """List every cell of the grid, and say which are kept, stale, to be run, or cannot be run and why.

    Example: `fasttrack grid plan kimi_k3 --hardware h200 --cell 'tp8-kda_moe-*'`

    Example: `fasttrack grid plan kimi_k3 --hardware gb300 --scope server --gpus 8`
    """
    from . import grid_commands

    if where := _server(scope, model, hardware, gpus, grid, records):
        from . import server_grid_commands

        return server_grid_commands.plan(where, cell or (), as_json=as_json)
    grid_commands.plan(model, hardware, cell or (), records=records, as_json=as_json)


@app.command("run")
def run(
    model: Model,
    hardware: Hardware,
    cell: Cells = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure again what is kept")] = False,
    quads: Annotated[int, typer.Option(min=5, max=200, help="quads A B B A of each cell")] = 12,
    scope: Scope = "rank",
    servers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="server: TOML that names running servers; see validation/load/README.md")
    ] = None,
    tool: Annotated[str, typer.Option(metavar="auto|own|vllm|aiperf", help="server: who sends the load")] = "auto",
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="server: mixed loads in an open loop, requests a second")
    ] = None,
    raw: Annotated[Path | None, typer.Option(metavar="DIR", help="server: also keep when every piece came")] = None,
    gpus: Gpus = None,
    grid: OwnGrid = None,
    records: Records = None,
    as_json: AsJson = False,
) -> None:
    """Measure cells, stock path against specialised path: on this machine's GPU, or on running servers. Each is kept
    once it is known, so a run that was cut off goes on where it stopped.

    Example: `fasttrack grid run kimi_k3 --hardware h200 --cell 'tp8-*'`

    Example: `fasttrack grid run kimi_k3 --hardware gb300 --scope server --servers servers.toml`
    """
    from . import grid_commands

    if where := _server(scope, model, hardware, gpus, grid, records):
        from . import server_grid_commands

        if servers is None:
            raise UserError("--servers is missing", "name a TOML file of running servers; see validation/load/README.md")
        return server_grid_commands.run(
            where, cell or (), servers=servers, tool=tool, rate=rate, raw=raw, fresh=fresh, as_json=as_json
        )
    if servers is not None or rate is not None or raw is not None or tool != "auto":
        raise UserError("--servers, --tool, --rate and --raw are about servers", "add --scope server")

    grid_commands.run(model, hardware, cell or (), fresh=fresh, quads=quads, records=records, as_json=as_json)


@app.command("show")
def show(
    model: Model,
    hardware: Hardware,
    cell: Cells = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="also draw it: .svg, .png or .pdf")] = None,
    scope: Scope = "rank",
    gpus: Gpus = None,
    grid: OwnGrid = None,
    records: Records = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole grid: figures with their intervals and floors, and for every other cell why it has none.

    Example: `fasttrack grid show kimi_k3 --hardware h200 --plot grid.svg`
    """
    from . import grid_commands

    if where := _server(scope, model, hardware, gpus, grid, records):
        from . import server_grid_commands

        return server_grid_commands.show(where, cell or (), plot=plot, as_json=as_json)

    grid_commands.show(model, hardware, cell or (), plot=plot, records=records, as_json=as_json)


@app.command("compare")
def compare(
    model: Model,
    hardware: Hardware,
    other: Annotated[str, typer.Option("--with", metavar="REV|DIR", help="an earlier revision, or a directory of records")],
    scope: Scope = "rank",
    grid: OwnGrid = None,
    records: Records = None,
    as_json: AsJson = False,
) -> None:
    """Hold the grid that is kept against an earlier one, cell by cell, and list what got slower (exit 1).

    Example: `fasttrack grid compare kimi_k3 --hardware h200 --with origin/main`
    """
    from . import grid_commands

    if where := _server(scope, model, hardware, None, grid, records):
        from . import server_grid_commands

        return server_grid_commands.compare(where, other, as_json=as_json)
    grid_commands.compare(model, hardware, other, records=records, as_json=as_json)


@app.command("decide")
def decide(
    model: Model,
    hardware: Hardware,
    write: Annotated[bool, typer.Option("--write", help="into the table that the decode path reads")] = False,
    records: Records = None,
    as_json: AsJson = False,
) -> None:
    """Say up to how many rows a step takes less time on the model's path than on the stock path, from the cells that are
    kept, and hold the decode path's table against that (exit 1 where it differs).

    A step's layers are added up by kind, at the unfavourable ends of their intervals and at each context; a size without a
    figure for every kind, or one that is not faster by more than the smallest effect, ends it.

    Example: `fasttrack grid decide kimi_k3 --hardware h200 --write`
    """
    from . import grid_commands

    grid_commands.decide(model, hardware, write=write, records=records, as_json=as_json)


@app.command("claim")
def claim(
    model: Model,
    hardware: Hardware,
    cell: Cells = None,
    conditions: Annotated[
        Path | None, typer.Option("--with", metavar="FILE", help="rank: TOML with conditions that no cell measures")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="server: an engine option that switches the path on")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="write there, not to the screen")] = None,
    scope: Scope = "rank",
    grid: OwnGrid = None,
    records: Records = None,
) -> None:
    """Turn measured cells into claims: both arms' records with all their conditions, from which ratios are derived.

    Example: `fasttrack grid claim kimi_k3 --hardware h200 -o claims/rank.json`, then `fasttrack claims check`
    """
    from . import grid_commands

    if where := _server(scope, model, hardware, None, grid, records):
        from . import server_grid_commands

        return grid_commands.write_claims(server_grid_commands.claims(where, cell or (), option or ()), out)
    grid_commands.write_claims(grid_commands.claims(model, hardware, cell or (), conditions, records), out)


def _server(scope: str, model: str, hardware: str, gpus: int | None, grid: Path | None, records: Path | None):
    """Where the server's grid lies; None for the rank's."""
    if scope == "server":
        from .server_grid_commands import Where

        return Where(model, hardware, gpus, grid, records)
    if scope != "rank":
        raise UserError(f"no scope {scope!r}", "known: rank, server")
    if gpus is not None or grid is not None:
        raise UserError("--gpus and --grid are about servers", "add --scope server")
    return None
