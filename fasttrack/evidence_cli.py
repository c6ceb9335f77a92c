"""The command line of `fasttrack evidence`. Imports nothing heavy before a command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="evidence", no_args_is_help=True, rich_markup_mode=None,
    help="Vouch for evidence with an SSH key, and see who vouches for what.",
)  # fmt: skip


@app.command("sign")
def sign(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="statements, records of the performance grid, verdicts of the numerics ladder")
    ],
    key: Annotated[Path, typer.Option(metavar="KEY", help="an SSH private key, or the public half of one in an agent")],
    kind: Annotated[str | None, typer.Option(metavar="statement|grid|numerics", help="sign nothing else; default all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Sign evidence that this machine made itself; the signature lies beside each file as FILE.sig.

    Example: `fasttrack evidence sign models/kimi_k3/evidence/statements/*.json --key /etc/fasttrack/runner_key`
    """
    from . import evidence_commands

    evidence_commands.sign(files, key, kind, as_json=as_json)


@app.command("verify")
def verify(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")],
    base: Annotated[str, typer.Option(help="revision whose .github/allowed_signers says who may sign")],
    head: Annotated[str, typer.Option(help="revision whose evidence is read, as git objects")] = "HEAD",
    repo: Annotated[Path, typer.Option(help="the repository")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Say for each file of committed evidence whether it is attested, by whom, or why its signature does not count.

    0 where all is attested, 1 where a signature does not count, 3 where something is self-reported, 4 without evidence.

    Example: `fasttrack evidence verify kimi_k3 --base origin/main`
    """
    from . import evidence_commands

    evidence_commands.verify(repo, base, head, model, as_json=as_json)


@app.command("seal")
def seal(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a kit in which ./run.sh was run")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="the sealed file, .tar.gz")],
    key: Annotated[Path | None, typer.Option(metavar="KEY", help="your SSH key; without one nobody vouches for it")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Put all that a kit gave into one file, with digests and your signature. Exam items and keys stay where they are.

    Example: `fasttrack evidence seal . --out sealed.tar.gz --key ~/.ssh/id_ed25519`
    """
    from . import sealed_commands

    sealed_commands.seal(folder, out, key, as_json=as_json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what `fasttrack evidence seal` wrote")],
    sender: Annotated[
        Path | None, typer.Option("--from", metavar="KEY.pub", help="the sender's public key: the signature has to be its")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="check it and file nothing")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="other evidence in a file's place gives way")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Check what a kit's owner sent back, and file it as evidence of the model: digests, signature, sources, cells, and
    claims derived again.

    0 filed, or a rehearsal in order; 1 something does not hold, and nothing was filed; 4 it holds no measurement.

    Example: `fasttrack evidence import sealed.tar.gz --from partner.pub`
    """
    from . import sealed_commands

    sealed_commands.import_(file, sender, check=check, replace=replace, as_json=as_json)
