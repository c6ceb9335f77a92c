"""Options and arguments that several commands share, as the command line declares them."""

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="a directory under models/, such as kimi_k3")]
OpName = Annotated[str, typer.Option("--op", help="an op of the model; `fasttrack ops MODEL` lists them")]
CandidateFile = Annotated[
    Path | None, typer.Option("--candidate", metavar="FILE", help="a .py file, or a directory with candidate.toml")
]
ConfigText = Annotated[str | None, typer.Option("--config", metavar="JSON", help="the candidate's configuration")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|gpu", help="what runs the plans: a GPU, or the interpreter")]
AsJson = Annotated[bool, typer.Option("--json", help="print data instead of text")]
Unsafe = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="run candidate code unconfined; the evidence will say so")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check everything, print the plan, touch nothing")]
Seed = Annotated[int | None, typer.Option(min=0, help="seed of the search's choices; the judge's inputs are its own secret")]
Hardware = Annotated[
    list[str], typer.Option(help="hardware to pick for: auto (the whole envelope), h200, gb300; may be repeated")
]
At = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="WORKLOAD", help="only for places that are judged there, such as tp8-b1; may be repeated"),
]
Branch = Annotated[str | None, typer.Option(help="name of the new branch; default fasttrack/MODEL/OP/RUN")]
Rounds = Annotated[int, typer.Option(min=1, help="candidates to judge at most")]
Budget = Annotated[float, typer.Option(min=0.01, max=100_000, help="minutes of judging at most; overshoots by one candidate")]
