"""The command line. Thin, and quick to start: nothing heavy is imported before a command needs it.

Exit codes: 0 pass, 1 fail, 2 wrong usage or configuration, 3 inconclusive or stopped, 4 nothing to check.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from fasttrack_validation.errors import UserError

from . import (
    claims_cli, decide_cli, evidence_cli, exam_cli, forge_cli, gate_cli, grid_cli, judging_cli, kit_cli, new_model_cli,
    serve_cli, validate_cli,
)
from .cli_options import (
    AsJson, At, Branch, Budget, CandidateFile, ConfigText, Device, DryRun, Hardware, ModelName, OpName, Rounds, Seed,
    Unsafe,
)

app = typer.Typer(
    name="fasttrack",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help doubles the time to start
    help="The lane by which machine-written, model-specific kernels reach a serving stack without lowering its bar.",
)

def run(arguments: list[str]) -> int:
    """Runs one command; its exit code. Anything but a UserError is shown in full, with where to report it."""
    # A polite kill is a stop like Ctrl-C: worktree and branch are cleaned up, and the run can go on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(arguments, prog_name="fasttrack")
    except SystemExit as stop:
        if stop.code == 130:  # the shell's code for Ctrl-C; here that is a stop without a result
            print("stopped", file=sys.stderr)
            return 3
        return stop.code or 0
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 3
    except UserError as error:
        if "--json" in arguments:
            print(json.dumps({"error": {"what": error.what, "how": error.how}}))
        else:
            print(harmless(error.what), harmless(error.how), sep="\n", file=sys.stderr)
        return 2
    except Exception:
        import traceback

        traceback.print_exc()
        print(
            "This is a defect of fasttrack. Please report it with the lines above and `fasttrack doctor --json`.",
            file=sys.stderr,
        )
        return 3
    return 0


def harmless(text: str) -> str:
    """`text` without characters that act on a terminal: errors quote files, branches and servers."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"fasttrack {version('fasttrack')}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    pass


@app.command()
def propose(
    model: ModelName,
    op: Annotated[str | None, typer.Option("--op", help="an op; needed where the model has several")] = None,
    agent: Annotated[str, typer.Option(help="who writes candidates: auto, search, chat, external, replay")] = "auto",
    rounds: Rounds = 10,
    budget_minutes: Budget = 4.0,
    seed: Seed = None,
    hardware: Hardware = ["auto"],  # noqa: B006 - typer copies it
    device: Device = "auto",
    branch: Branch = None,
    at: At = None,
    pack: Annotated[
        list[Path] | None,
        typer.Option("--pack", metavar="FILE", help="search: what `fasttrack record` wrote, or a directory of it, to draw from; may be repeated"),
    ] = None,
    transcript: Annotated[Path | None, typer.Option(metavar="FILE", help="what agent replay follows")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="chat: an OpenAI-compatible endpoint; by default $OPENAI_BASE_URL")
    ] = None,
    llm: Annotated[str | None, typer.Option(metavar="MODEL", help="chat: the model there; by default $FASTTRACK_MODEL")] = None,
    price: Annotated[
        str | None, typer.Option(metavar="IN,OUT", help="chat: USD per million tokens; 0 where requests cost nothing")
    ] = None,
    prices: Annotated[Path | None, typer.Option(metavar="FILE", help="chat: a table of prices; by default $FASTTRACK_PRICES")] = None,
    budget_usd: Annotated[float | None, typer.Option(min=0.0001, help="chat: money at most; by default 5")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="chat: tokens in and out at most; by default 4000000")] = None,
    wall_minutes: Annotated[
        float | None, typer.Option(min=0.01, help="chat: minutes of requests and judging at most; by default 480")
    ] = None,
    llm_settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="chat: TOML with more settings; see fasttrack/agents/README.md")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run, by default the last one")] = False,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="with --resume: the run to go on with")] = None,
    dry_run: DryRun = False,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Search for better kernels and put them on a branch with evidence and a report. Your checkout is not touched.

    Example: `fasttrack propose kimi_k3 --op kda_decode --rounds 24`

    On a GPU machine whose Triton cannot record, the search draws from what was recorded elsewhere:
    `fasttrack record kimi_k3 --op kda_decode --space --at tp8-b1 -o packs`, and there
    `fasttrack propose kimi_k3 --op kda_decode --at tp8-b1 --hardware h200 --pack packs`

    With a language model, whose key is in $OPENAI_API_KEY or in the file that $OPENAI_API_KEY_FILE names:
    `fasttrack propose kimi_k3 --op kda_decode --agent chat --endpoint https://host/v1 --llm MODEL --price 1.25,10`
    """
    from . import commands

    if run is not None and not resume:
        raise UserError(f"unexpected argument {run!r}", "a run is only named together with --resume")
    if resume:
        commands.resume(model, op, run, as_json=as_json)
    else:
        commands.propose(
            model, op, agent=agent, rounds=rounds, budget_minutes=budget_minutes, seed=seed, hardware=hardware,
            workloads=at or (), packs=pack or (), device=device, branch=branch, transcript=transcript, dry_run=dry_run, unsafe_no_sandbox=unsafe_no_sandbox,
            as_json=as_json,
            chat={
                "endpoint": endpoint, "llm": llm, "price": price, "prices": prices, "settings": llm_settings,
                "usd": budget_usd, "tokens": budget_tokens, "wall_minutes": wall_minutes,
            },
        )  # fmt: skip


@app.command()
def mcp(
    model: ModelName,
    op: OpName,
    http: Annotated[bool, typer.Option("--http", help="serve HTTP on the loopback interface instead of standard input and output")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="with --http; 0 takes a free one")] = 0,
    rounds: Rounds = 50,
    budget_minutes: Budget = 240.0,
    seed: Seed = None,
    hardware: Hardware = ["auto"],  # noqa: B006 - typer copies it
    device: Device = "auto",
    branch: Branch = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a run of agent external, by default the last one")] = False,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="with --resume: the run to go on with")] = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Serve the lane's tools to a coding agent over MCP; its candidates go the way of any other.

    Over HTTP, address and token are in a file that is printed first. `--json` prints the outcome as data (with --http).

    Example: `fasttrack mcp kimi_k3 --op kda_decode`
    """
    from . import run_commands

    if run is not None and not resume:
        raise UserError(f"unexpected argument {run!r}", "a run is only named together with --resume")
    run_commands.mcp(
        model, op, http=http, port=port, resume=resume, run=run, as_json=as_json, rounds=rounds,
        budget_minutes=budget_minutes, seed=seed, hardware=tuple(hardware), device=device, branch=branch,
        unsafe_no_sandbox=unsafe_no_sandbox,
    )  # fmt: skip


RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="a run, by default the latest")]


@app.command()
def status(
    run: RunName = None,
    watch: Annotated[bool, typer.Option("--watch", help="go on showing it until the run is over")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run is doing: rounds, best so far, requests and their cost, what is left of its budget.

    Example: `fasttrack status --watch`
    """
    from . import run_commands

    run_commands.status(run, watch=watch, as_json=as_json)


@app.command()
def history(run: RunName = None, as_json: AsJson = False) -> None:
    """List a run's candidates: verdict, reason, time, descent.

    Example: `fasttrack history`
    """
    from . import run_commands

    run_commands.history(run, as_json=as_json)


@app.command()
def explain(run: RunName = None, as_json: AsJson = False) -> None:
    """Tell how a run's kernels came about: proposals, verdicts, turning points, cost.

    Example: `fasttrack explain 20260101-120000-ab12`
    """
    from . import run_commands

    run_commands.explain(run, as_json=as_json)


@app.command()
def submit(
    model: ModelName,
    op: OpName,
    candidate: CandidateFile = None,
    pack: Annotated[
        list[Path] | None,
        typer.Option("--pack", metavar="FILE", help="what `fasttrack record` wrote, in place of --candidate; may be repeated"),
    ] = None,
    config: ConfigText = None,
    hardware: Hardware = ["auto"],  # noqa: B006 - typer copies it
    device: Device = "auto",
    branch: Branch = None,
    dry_run: DryRun = False,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Put one candidate through the whole lane: judged, confirmed, and on a branch with evidence and a report.

    Example: `fasttrack submit kimi_k3 --op kda_decode --candidate my_kernel.py --config '{"num_warps": 4}'`

    A GPU machine whose Triton cannot record takes packs: of the candidate, and with each configuration of the table.

    Example: `fasttrack submit kimi_k3 --op kda_decode --pack one.pack --pack other.pack --hardware h200`
    """
    from . import commands

    if (candidate is None) == (not pack):
        raise UserError("give a candidate or packs", "either --candidate FILE, or --pack FILE once or more")
    if pack and config is not None:
        raise UserError("--config does not go with --pack", "a pack says what it is a record of")
    commands.submit(
        model, op, candidate, config, packs=pack or (), hardware=hardware, device=device, branch=branch, dry_run=dry_run,
        unsafe_no_sandbox=unsafe_no_sandbox, as_json=as_json,
    )  # fmt: skip


app.command()(judging_cli.record)
app.command()(judging_cli.evaluate)
app.command()(judging_cli.confirm)
app.command()(gate_cli.gate)
app.command()(decide_cli.decide)
app.command()(forge_cli.export)
app.command("new-model")(new_model_cli.new_model)
app.command()(kit_cli.kit)
app.command()(validate_cli.validate)
app.command()(serve_cli.serve)


@app.command()
def report(
    model: ModelName,
    write: Annotated[bool, typer.Option("--write", help="render the pages again from the evidence that is there")] = False,
    base: Annotated[
        str | None, typer.Option(metavar="REV", help="with --write: list as touched what differs from this revision")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="are the pages what the evidence gives? exit 1 where not")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the model's design report, render it again from evidence, or hold it against evidence.

    Example: `fasttrack report kimi_k3 --write --base origin/main`
    """
    from . import report_commands

    if write and check or (base is not None and not write):
        raise UserError("these options exclude each other", "--write, with --base or without, or --check")
    report_commands.report(model, write=write, base=base, check=check, as_json=as_json)


@app.command()
def doctor(
    pins: Annotated[
        Path | None, typer.Option(metavar="FILE", help="look at installed versions alone, against these constraints")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and this checkout, and say what to do where something is not in order.

    Example: `fasttrack doctor`
    """
    from . import commands

    commands.doctor(pins, as_json=as_json)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models.

    Example: `fasttrack models`
    """
    from . import commands

    commands.models(as_json=as_json)


@app.command()
def ops(model: ModelName, as_json: AsJson = False) -> None:
    """List a model's ops with their kernels and workloads.

    Example: `fasttrack ops kimi_k3`
    """
    from . import commands

    commands.ops(model, as_json=as_json)


trace = typer.Typer(
    name="trace", no_args_is_help=True, rich_markup_mode=None,
    help="Exchange ops and kernels with other tools as FlashInfer Trace JSON.",
)  # fmt: skip
app.add_typer(trace)
app.add_typer(claims_cli.app)
app.add_typer(exam_cli.app)
app.add_typer(evidence_cli.app)
app.add_typer(grid_cli.app)
app.add_typer(forge_cli.app)


@trace.command("export")
def trace_export(
    model: ModelName,
    op: OpName,
    out: Annotated[Path, typer.Option(metavar="DIR", help="root of the trace set; made where it does not exist")],
    tp: Annotated[int, typer.Option(min=1, help="ranks that the op is split over")] = 8,
    workload: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="a workload; may be repeated; by default all of this TP")
    ] = None,
    distribution: Annotated[str, typer.Option(help="what the written values look like")] = "typical",
    seed: Annotated[int, typer.Option(min=0, help="of the written values; they are public, the judge's are not")] = 0,
    candidate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write this candidate as a solution")
    ] = None,
    config: ConfigText = None,
    as_json: AsJson = False,
) -> None:
    """Write an op as a definition with workloads, and a candidate as a solution, for FlashInfer-Bench.

    Example: `fasttrack trace export kimi_k3 --op kda_decode --out traces --candidate my_kernel.py`
    """
    from . import trace_commands

    trace_commands.export(
        model, op, out, tp=tp, workloads=workload or (), distribution=distribution, seed=seed, candidate=candidate,
        config=config, as_json=as_json,
    )  # fmt: skip


@trace.command("check")
def trace_check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="definitions, solutions (.json), traces (.jsonl)")
    ],
    as_json: AsJson = False,
) -> None:
    """Read FlashInfer Trace files strictly and name the first field of each that does not fit.

    Example: `fasttrack trace check traces/definitions/kda_decode/*.json`
    """
    from . import trace_commands

    trace_commands.check(files, as_json=as_json)


@trace.command("import")
def trace_import(
    definition: Annotated[Path, typer.Argument(metavar="DEFINITION", help="a definition's JSON file")],
    workloads: Annotated[Path, typer.Option(metavar="FILE", help="its workloads, JSON Lines")],
    judging: Annotated[Path, typer.Option(metavar="FILE", help="TOML: static, batch_axis, flops, and more")],
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="what value files lie below; by default beside the definition")
    ] = None,
    candidate: Annotated[Path | None, typer.Option(metavar="FILE", help="judge this candidate on it")] = None,
    config: ConfigText = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Load somebody's definition as an exam, say what of it can be examined, and judge a candidate on it.

    Example: `fasttrack trace import rmsnorm.json --workloads rmsnorm.jsonl --judging rmsnorm.toml --candidate k.py`
    """
    from . import trace_commands

    trace_commands.import_(
        definition, workloads, judging, root, candidate=candidate, config=config, unsafe_no_sandbox=unsafe_no_sandbox,
        as_json=as_json,
    )  # fmt: skip
