"""The command line of `fasttrack exam`. Imports nothing heavy before a command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="exam", no_args_is_help=True, rich_markup_mode=None,
    help="Frozen exams, and what two arms' recorded answers to one of them show.",
)  # fmt: skip

Place = Annotated[Path, typer.Argument(metavar="DIR", help="a frozen exam")]
AsJson = Annotated[bool, typer.Option("--json", help="print data instead of text")]


@app.command("build")
def build(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="aime25, gpqa_diamond, mrcr; offline: sample_integers, sample_choices, mrcr_synthetic, and kimi_k3_nano_arithmetic, _product and _copying for the small model")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="a new directory")],
    seed: Annotated[int, typer.Option(min=0, help="of the order of options, and of synthetic text")] = 0,
    needles: Annotated[str, typer.Option(metavar="N,...", help="mrcr, mrcr_synthetic: how many needles")] = "2,4,8",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="mrcr: leave longer items out (tokens of o200k_base)")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="published exams: of the dataset; by default a pinned one, or main")
    ] = None,
    words: Annotated[str, typer.Option(metavar="N,...", help="mrcr_synthetic: prompt lengths in words")] = "4000",
    items_each: Annotated[
        int, typer.Option(min=1, max=1000, help="mrcr_synthetic: items for each count and length; small models: items")
    ] = 8,
    as_json: AsJson = False,
) -> None:
    """Freeze an exam: items, ordered options, digests. The same bytes on every machine.

    Published exams come from the hub (HF_ENDPOINT names another; HF_TOKEN is needed for gated data, GPQA): the commit and
    the digest of each file go into the manifest. The other kinds need no network.

    Examples: `fasttrack exam build mrcr --needles 2,4 --max-tokens 131072 -o exams/mrcr`;
    `fasttrack exam build mrcr_synthetic --needles 2,4,8 --words 4000,32000 -o exams/mrcr_synthetic`
    """
    from . import exam_commands

    exam_commands.build(
        kind, out, seed=seed, needles=needles, words=words, items_each=items_each, max_tokens=max_tokens,
        revision=revision, as_json=as_json,
    )  # fmt: skip


@app.command("verify")
def verify(
    place: Place,
    digest: Annotated[str | None, typer.Option(metavar="SHA256", help="of the exam that is meant")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a frozen exam: digests, items against key, options, needles; offline kinds are built again and compared.

    0 where it holds, 1 where it does not. No answer is printed.

    Example: `fasttrack exam verify exams/mrcr`
    """
    from . import exam_commands

    exam_commands.verify(place, digest, as_json=as_json)


@app.command("power")
def power(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="TOML; see validation/accuracy/README.md")],
    within: Annotated[float, typer.Option(min=0, max=1, help="variance of one repeat, both arms added; from A/A runs")],
    between: Annotated[float, typer.Option(min=0, max=1, help="variance between items of the true difference")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Say what a plan can show before it is run: its power at each look, and the repeats that it takes.

    Example: `fasttrack exam power aime25.toml --within 0.12`
    """
    from . import exam_commands

    exam_commands.power(plan, within=within, between=between, as_json=as_json)


@app.command("decide-family")
def decide_family(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="TOML: a [[sat]] for each exam, its paths in it")],
    as_json: AsJson = False,
) -> None:
    """Decide several exams together, as their plans say: every exam at its own, then the family.

    A [[sat]] names `exam`, `plan`, `baseline` and `candidate`, relative to the file. Exit codes as for `decide`.

    Example: `fasttrack exam decide-family exams.toml`
    """
    from . import exam_commands

    exam_commands.decide_family(file, as_json=as_json)


@app.command("calibrate")
def calibrate(
    place: Place,
    plan: Annotated[Path, typer.Option(metavar="FILE", help="the plan that both runs were made by, TOML")],
    first: Annotated[Path, typer.Option(metavar="FILE", help="recorded answers of the stock path, JSON Lines")],
    second: Annotated[Path, typer.Option(metavar="FILE", help="the stock path once more, with other seeds")],
    as_json: AsJson = False,
) -> None:
    """Measure an exam's noise from an A/A run, and how often the planned rule errs on it.

    0 where the errors are what the rule states, 1 where they are not or the runs are no A/A run.

    Example: `fasttrack exam calibrate exams/aime25 --plan aime25.toml --first stock.jsonl --second again.jsonl`
    """
    from . import exam_commands

    exam_commands.calibrate(place, plan, first, second, as_json=as_json)


@app.command("plan")
def plan(
    place: Place,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="a new file, TOML")],
    margin: Annotated[float, typer.Option(min=0.01, max=100, help="points of mean score that may be lost")],
    looks: Annotated[str, typer.Option(metavar="N,...", help="repeats an arm at which a decision is taken")],
    temperature: Annotated[float, typer.Option(min=0, max=10)],
    max_tokens: Annotated[int, typer.Option(min=1, help="of an answer, reasoning included")],
    top_p: Annotated[float, typer.Option(min=0.01, max=1)] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="a stop string; may be repeated")] = None,
    together: Annotated[str | None, typer.Option(metavar="EXAM,...", help="exams decided together, this one among them")] = None,
    pooled: Annotated[bool, typer.Option("--pooled", help="decide them by their mean, not each")] = False,
    digest: Annotated[str | None, typer.Option(metavar="SHA256", help="of the exam that is meant")] = None,
) -> None:
    """Write the plan of an exam: margin, looks, sampling and family, fixed before the first answer.

    Example: `fasttrack exam plan exams/aime25 --margin 3 --looks 16,32 --temperature 1 --max-tokens 65536 -o aime25.toml`
    """
    from . import exam_commands

    exam_commands.plan(
        place, out, digest=digest, margin=margin, looks=looks, temperature=temperature, top_p=top_p,
        max_tokens=max_tokens, stop=tuple(stop or ()), together=together, pooled=pooled,
    )  # fmt: skip


@app.command("sit")
def sit(
    place: Place,
    plan: Annotated[Path, typer.Option(metavar="FILE", help="the plan, TOML, with [sampling]")],
    server: Annotated[str, typer.Option(metavar="URL", help="an OpenAI-compatible server, such as http://host:8000/v1")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="answers; a run goes on there")],
    arm: Annotated[str, typer.Option(help="baseline or candidate")] = "baseline",
    run: Annotated[str, typer.Option(metavar="NAME", help="tells two runs of one arm apart: other seeds")] = "",
    repeats: Annotated[int | None, typer.Option(min=1, help="up to this planned look; by default the last")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="the model there; needed where it lists several")] = None,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="requests at a time")] = 8,
    silence: Annotated[float, typer.Option(min=1, help="seconds without a byte before an answer is asked for again")] = 3600,
    as_json: AsJson = False,
) -> None:
    """Let one arm sit one exam, for an A/A run or where the two servers are not up at the same time.

    A key for the server is taken from $OPENAI_API_KEY. A run that was cut off goes on with the same command.

    Example: `fasttrack exam sit exams/aime25 --plan aime25.toml --server http://stock:8000/v1 --run again -o runs/again`
    """
    from . import validate_accuracy

    validate_accuracy.sit(
        place, plan, server, arm, model=model, out=out, run=run, repeats=repeats, workers=workers, silence=silence,
        as_json=as_json,
    )  # fmt: skip


@app.command("plan-digest")
def plan_digest(plan: Annotated[Path, typer.Argument(metavar="PLAN", help="TOML")]) -> None:
    """Print the digest of a plan, which both arms record with their answers.

    Example: `fasttrack exam plan-digest aime25.toml`
    """
    from . import exam_commands

    exam_commands.plan_digest(plan)


@app.command("decide")
def decide(
    place: Place,
    plan: Annotated[Path, typer.Option(metavar="FILE", help="the plan that both arms were run by, TOML")],
    baseline: Annotated[Path, typer.Option(metavar="FILE", help="recorded answers of the stock path, JSON Lines")],
    candidate: Annotated[Path, typer.Option(metavar="FILE", help="recorded answers of the specialised path")],
    as_json: AsJson = False,
) -> None:
    """Hold one arm's recorded answers against the other's: guards first, then the planned rule.

    0 pass; 1 fail, or invalid with the reasons; 3 inconclusive, with how many more repeats would settle it.

    Example: `fasttrack exam decide exams/aime25 --plan aime25.toml --baseline stock.jsonl --candidate ours.jsonl`
    """
    from . import exam_commands

    exam_commands.decide(place, plan, baseline, candidate, as_json=as_json)
