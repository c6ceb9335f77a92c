"""The command line of `fasttrack validate`. Imports nothing heavy before it is needed, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

_RUNGS = "op, teacher_forced, batch_sweep, greedy, long_context"


def validate(
    called: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")],
    stage: Annotated[str, typer.Option("--stage", help="what to validate: numerics or accuracy")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="where records are kept; by default below $FASTTRACK_HOME")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="numerics: another checkpoint than the kept one of the nano model")
    ] = None,
    candidate: Annotated[
        str, typer.Option(metavar="PATH", help="numerics: specialised; or plain:twin, plain:FAULT for a PyTorch path")
    ] = "specialised",
    rung: Annotated[
        list[str] | None, typer.Option("--rung", metavar="NAME", help=f"numerics: {_RUNGS}; may be repeated; by default all")
    ] = None,
    tp: Annotated[str, typer.Option("--tp", metavar="N,...", help="numerics: simulated ranks, all units at the first")] = "1,8,16",
    device: Annotated[
        str, typer.Option(help="numerics: where the kernels run: auto, cpu (interpreted) or cuda")
    ] = "auto",
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="N,...", help="numerics, on a GPU with --tp 8: these layers of the published model at true widths, with "
            "drawn weights and the kernels of the dispatch tables, in place of the nano model",
        ),
    ] = None,
    tokens: Annotated[
        str,
        typer.Option(
            metavar="N|FILE", help="numerics: tokens decoded teacher-forced, all else follows from it; between servers a "
            'file of prompts, {"id": ..., "tokens": [...]} a line',
        ),
    ] = "64",
    stock_url: Annotated[
        str | None, typer.Option(metavar="URL", help="between servers: one that runs the stock path")
    ] = None,
    candidate_url: Annotated[str | None, typer.Option(metavar="URL", help="one that runs the candidate")] = None,
    oracle_url: Annotated[
        str | None, typer.Option(metavar="URL", help="one that computes in float64: both are held against it")
    ] = None,
    control_url: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="another build of the stock path, for the noise; may be repeated"),
    ] = None,
    declare: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='what servers do not say: JSON {"stock": {"dtype": "bfloat16", ...}, ...}'),
    ] = None,
    top: Annotated[int, typer.Option(min=2, max=10_000, help="between servers: candidates of each token")] = 8,
    piece: Annotated[int, typer.Option(min=1, help="between servers: tokens that are kept at a time")] = 4096,
    replicas: Annotated[int, typer.Option(min=2, max=16, help="numerics: runs of the stock path again (A/A)")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="numerics: decode steps of the long state")] = 1000,
    context: Annotated[
        list[int] | None,
        typer.Option(min=256, help="numerics: tokens of the long attention, 4096 by default; may be repeated"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="of the streams of tokens")] = 0,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="numerics: units at a time")] = 2,
    fresh: Annotated[bool, typer.Option("--fresh", help="throw away what --out holds, and start over")] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="run nothing: verdict and figures anew from the records in --out")
    ] = False,
    faults: Annotated[
        bool, typer.Option("--faults", help="numerics: plant every known fault, and show which rung catches which")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="DIR", help="numerics: also draw error against position, flips, layers")
    ] = None,
    plan: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="accuracy: plan of one exam, TOML; may be repeated")
    ] = None,
    exams: Annotated[
        Path | None, typer.Option(metavar="DIR", help="accuracy: a frozen exam, or a directory of several")
    ] = None,
    stock_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="accuracy: the model there; needed where it lists several")
    ] = None,
    candidate_model: Annotated[str | None, typer.Option(metavar="NAME", help="accuracy: the candidate's model")] = None,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="accuracy: requests at a time at a server")] = 8,
    silence: Annotated[
        float, typer.Option(min=1, help="accuracy: seconds without a byte before an answer is asked for again")
    ] = 3600,
    price: Annotated[
        str | None, typer.Option(metavar="IN,OUT", help="accuracy: USD per million tokens, for the bill")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print data instead of text")] = False,
) -> None:
    """Validate a model's decode path on the model. A run that was stopped goes on where it was with the same command.

    0 pass, 1 fail, 3 inconclusive or something did not run.

    Example: `fasttrack validate kimi_k3 --stage numerics --tokens 64 --plot figures`

    Example: `fasttrack validate kimi_k3 --stage numerics --rung teacher_forced --tp 8 --candidate plain:twin`

    Example: `fasttrack validate kimi_k3 --stage numerics --layers 0,1,3 --tp 8`

    Example: `fasttrack validate kimi_k3 --stage numerics --faults`

    Example: `fasttrack validate kimi_k3 --stage numerics --out DIR --recompute --json`

    Between two servers that speak vLLM's or SGLang's interface; exit 2 where they cannot be compared:
    `fasttrack validate kimi_k3 --stage numerics --stock-url http://a:8000 --candidate-url http://b:8000 --tokens FILE`

    Stage accuracy: both servers sit the planned exams, look by look; guards first, then the planned rule. No answer is
    asked for twice. A key for the servers is taken from $OPENAI_API_KEY.

    Example: `fasttrack validate kimi_k3 --stage accuracy --plan aime25.toml --exams exams
    --stock-url http://a:8000 --candidate-url http://b:8000 -o runs/accuracy`
    """
    from . import validate_commands

    options = {name: value for name, value in locals().items() if name not in ("called", "model", "stage", "validate_commands")}
    options["given"] = frozenset(name for name in options if called.get_parameter_source(name).name == "COMMANDLINE")
    validate_commands.validate(model, stage, options)
