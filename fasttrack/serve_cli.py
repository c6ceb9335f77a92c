"""The command line of `fasttrack serve`. Imports nothing heavy before the command runs, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")],
    backend: Annotated[
        str, typer.Option(help="which path generates: plain, stock (GPU), latency_specialized, or the float64 oracle")
    ] = "plain",
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="weights; by default the checkpoint kept with the contract")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="on the loopback interface; 0 takes a free one")] = 8000,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    tp: Annotated[int, typer.Option(min=1, help="simulated ranks; on a GPU for oracle and plain only")] = 1,
    context: Annotated[
        int | None,
        typer.Option(min=2, help="tokens of a request at most, generated ones included; by default all positions"),
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, max=256, help="requests worked on at once; the others wait")] = 8,
    waiting: Annotated[int, typer.Option(min=1, help="texts that may wait; requests beyond are answered 429")] = 1024,
    prompt_scores: Annotated[
        str | None,
        typer.Option(
            metavar="prefill|decode",
            help="what computes log-probabilities of prompts, unless a request says it; by default the decode step for "
            "latency_specialized and stock, which leave prefills to the plain path",
        ),
    ] = None,
    served_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="the model's name there; by default MODEL-nano")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print address and build as one line of JSON")] = False,
) -> None:
    """Serve the model's small checkpoint: OpenAI's completions and chat, and SGLang's /generate, on loopback.

    Example: `fasttrack serve kimi_k3 --backend latency_specialized --port 8001`
    """
    from . import serve_commands

    serve_commands.serve(
        model, backend, checkpoint, port=port, device=device, tp=tp, context=context, sessions=sessions,
        waiting=waiting, prompt_scores=prompt_scores, served_name=served_name, as_json=as_json,
    )  # fmt: skip
