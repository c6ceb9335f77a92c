"""The command line of `fasttrack pr` and `fasttrack export`. Imports nothing heavy before a command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="pr", no_args_is_help=True, rich_markup_mode=None,
    help="Send a proposal to a forge: always a draft, always under a person's name.",
)  # fmt: skip

Model = Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")]
Branch = Annotated[str | None, typer.Option(metavar="NAME", help="the branch to send; by default the one that is checked out")]
Repository = Annotated[
    str | None, typer.Option(metavar="OWNER/NAME", help="the repository on the forge; by default the target's, or the remote's")
]
Remote = Annotated[str, typer.Option(metavar="NAME|URL", help="where the branch is pushed")]
Base = Annotated[str | None, typer.Option(metavar="NAME", help="the branch to merge into; by default the target's")]
Api = Annotated[
    str | None, typer.Option(metavar="URL", help="the forge's REST interface; by default $GITHUB_API_URL, else github.com's")
]
HeadOwner = Annotated[str | None, typer.Option(metavar="OWNER", help="whose fork --remote is, where it is one")]
Target = Annotated[str, typer.Option(metavar="NAME|FILE", help="own, vllm, sglang, flashinfer, or a profile's .toml file")]
AsJson = Annotated[bool, typer.Option("--json", help="print data instead of text")]


@app.command("open")
def open_(
    model: Model, branch: Branch = None, repository: Repository = None, remote: Remote = "origin", base: Base = None,
    target: Target = "own", head_owner: HeadOwner = None, api: Api = None,
    replace: Annotated[bool, typer.Option("--replace", help="the branch was rewritten: replace what was sent before")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Push a branch and open its draft, or bring the open one up to date. The gate judges it over the forge's base first.

    The token is in $GITHUB_TOKEN, or in the file that $GITHUB_TOKEN_FILE names. Nothing is pushed where something can be
    refused beforehand, and a branch whose draft could not be opened is taken back.

    Example: `fasttrack pr open kimi_k3 --branch fasttrack/kimi_k3/kda_decode/RUN --repository owner/name`
    """
    from . import forge_commands

    forge_commands.open_pull(model, branch, repository, remote, base, target, head_owner, api, replace, as_json=as_json)


@app.command("ready")
def ready(
    model: Model, branch: Branch = None, repository: Repository = None, remote: Remote = "origin", base: Base = None,
    target: Target = "own", head_owner: HeadOwner = None, api: Api = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Take a draft out of draft, under your name. Refused while anything is open: the owner's paragraph first of all.

    Example: `fasttrack pr ready kimi_k3 --branch fasttrack/kimi_k3/kda_decode/RUN --repository owner/name`
    """
    from . import forge_commands

    forge_commands.ready(model, branch, repository, remote, base, target, head_owner, api, as_json=as_json)


@app.command("write")
def write(
    model: Model,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="the Markdown file to write, or to replace")],
    base: Annotated[str, typer.Option(metavar="REV", help="a local revision of the branch to merge into")],
    branch: Branch = None, target: Target = "own", as_json: AsJson = False,
) -> None:  # fmt: skip
    """Write the draft's title and body to a file, and send nothing. Needs no token and no network.

    Example: `fasttrack pr write kimi_k3 --base origin/main --target vllm -o body.md`
    """
    from . import forge_commands

    forge_commands.write(model, branch, base, target, out, as_json=as_json)


def export(
    model: Model,
    into: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="a checkout of the target; it is not touched")],
    target: Target = "vllm",
    head: Annotated[str, typer.Option(help="revision whose model directory is exported")] = "HEAD",
    base: Annotated[str, typer.Option(help="revision of the target to start from")] = "HEAD",
    branch: Annotated[str | None, typer.Option(metavar="NAME", help="the new branch there; by default fasttrack/MODEL")] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Put a model directory unchanged on a new branch of a target's checkout; confinement and the target's own checks
    judge it there.

    0 where all passed, 1 where something failed, 3 where a check of the target could not run here.

    Example: `fasttrack export kimi_k3 ../vllm --target vllm`
    """
    from . import export_commands

    export_commands.export(model, target, into, head=head, base=base, branch=branch, as_json=as_json)
