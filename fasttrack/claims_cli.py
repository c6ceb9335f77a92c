"""The command line of `fasttrack claims`. Imports nothing heavy before a command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="claims", no_args_is_help=True, rich_markup_mode=None,
    help="Say how much faster something is, and under which conditions. A multiplier is derived, never typed.",
)  # fmt: skip

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="claims and records (.json, .jsonl), texts (.md, .txt)")
]


@app.command("check")
def check(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
    as_sarif: Annotated[
        bool, typer.Option("--sarif", help="print SARIF 2.1.0 instead of text; same exit code")
    ] = False,
) -> None:
    """Hold claims and records against the twenty rules, and texts against the claims.

    0 where all pass, 1 where one does not or a text has a figure that no claim derives, 3 where one is withheld for what
    is unknown or is provisional, 4 where there is nothing to check.

    Example: `fasttrack claims check pull_request.md claims/*.json`
    """
    from . import claims_commands

    claims_commands.check(files, as_json=as_json, as_sarif=as_sarif)


@app.command("render")
def render(
    files: Files,
    claim: Annotated[
        list[str] | None, typer.Option("--claim", metavar="ID", help="only this one; may be repeated")
    ] = None,
) -> None:
    """Print claims as Markdown: figures, what the title has to carry, findings. `check` knows these blocks again.

    Example: `fasttrack claims render claims/decode.json >> report.md`
    """
    from . import claims_commands

    claims_commands.show(files, claim or ())


@app.command("compare")
def compare(
    baseline: Annotated[Path, typer.Argument(metavar="BASELINE", help="records of the one (.json, .jsonl)")],
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="records of the other")],
    claim_id: Annotated[str, typer.Option("--id", help="what texts call the claim")] = "comparison",
    title: Annotated[str, typer.Option(help="without figures")] = "Candidate against baseline",
    metric: Annotated[str, typer.Option(help="tok_s_user, step_time, tok_s_gpu, ...")] = "tok_s_user",
    under_test: Annotated[str, typer.Option(help="the one thing that differs: code, option, topology, ...")] = "code",
    option: Annotated[list[str] | None, typer.Option(metavar="NAME", help="an engine option that may differ")] = None,
    twins: Annotated[Path | None, typer.Option(metavar="FILE", help="one arm in both places: the swap test")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="write the claim there")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Match two sets of records cell by cell, and say what may be said: ratios with intervals, and what got slower.

    0 where the claim passes and no cell is slower, 1 where one is or the claim does not pass, 3 where it is withheld.

    Example: `fasttrack claims compare old.jsonl new.jsonl --twins twins.jsonl --id release -o claims/release.json`
    """
    from . import claims_commands

    claims_commands.compare(
        baseline, candidate, claim_id=claim_id, title=title, metric=metric, under_test=under_test,
        options=option or (), twins=twins, out=out, as_json=as_json,
    )  # fmt: skip


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="what a benchmark wrote")],
    format: Annotated[
        str, typer.Option(metavar="auto|vllm|sglang|aiperf|inferencex", help="whose file it is")
    ] = "auto",
    conditions: Annotated[
        Path | None, typer.Option("--with", metavar="FILE", help="TOML: conditions that the tool did not write down")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="write there, not to the screen")
    ] = None,
) -> None:
    """Read what `vllm bench serve`, SGLang, AIPerf or InferenceX wrote as measurement records, one a line.

    What a file does not hold stays unknown. A condition that the file holds can't be set again.

    Example: `fasttrack claims import result.json --with h200.toml -o record.jsonl`
    """
    from . import claims_commands

    claims_commands.import_(file, format, conditions, out)


@app.command("explain")
def explain(rule: Annotated[str | None, typer.Argument(metavar="[RULE]", help="P1 to P20")] = None) -> None:
    """Print the page of a rule: why it is there, the remedy, an example. Without a rule, list them.

    Example: `fasttrack claims explain P4`
    """
    from . import claims_commands

    claims_commands.explain(rule)


@app.command("plot")
def plot(
    files: Files,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="where the SVG files go; made if needed")],
) -> None:
    """Draw claims over their grid, and records as tok/s/user against tok/s/GPU. Needs `pip install 'fasttrack[plot]'`.

    Example: `fasttrack claims plot claims/*.json -o plots`
    """
    from . import claims_commands

    claims_commands.plot(files, out)
