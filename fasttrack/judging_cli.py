"""The command line of `fasttrack record`, `evaluate` and `confirm`. Imports nothing heavy before a command needs it, as cli.py."""

from pathlib import Path
from typing import Annotated

import typer

from fasttrack_validation.errors import UserError

from .cli_options import AsJson, At, CandidateFile, ConfigText, Device, ModelName, Unsafe


def record(
    model: ModelName,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="the file to write, or to replace; with --space or --table a directory")],
    op: Annotated[list[str] | None, typer.Option("--op", help="an op of the model; with --table several, by default all")] = None,
    candidate: CandidateFile = None,
    config: ConfigText = None,
    space: Annotated[
        bool, typer.Option("--space", help="the tree's kernel with every configuration of its design space, into a directory")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="what the tree's dispatch tables name, at the places where they do, into a directory")
    ] = False,
    at: At = None,
    hardware: Annotated[list[str] | None, typer.Option(help="with --table: whose entries; may be repeated  [default: h200]")] = None,
    unseen: Annotated[int, typer.Option(min=1, max=16, help="unseen layouts of each workload")] = 1,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Record and compile one candidate into a file, which a machine with a GPU can judge. Needs no GPU itself.

    Example: `fasttrack record kimi_k3 --op kda_decode --candidate my_kernel.py -o my_kernel.pack`

    What a search may draw from there: the design space at the workloads that it is for, and what the dispatch table
    names at all of them, since that may have to stand in it again.

    Example: `fasttrack record kimi_k3 --op kda_decode --space --at tp8-b1 -o packs`

    What `confirm` judges there: what stands in the tables of all ops. What was recorded before is kept.

    Example: `fasttrack record kimi_k3 --table --hardware h200 -o packs`
    """
    from . import judging_commands

    if [candidate is not None, space, table].count(True) != 1:
        raise UserError("give a candidate, --space or --table", "--candidate FILE, --space or --table for the tree's kernels")
    common = {"unseen": unseen, "unsafe_no_sandbox": unsafe_no_sandbox, "as_json": as_json}
    if at and not space:
        raise UserError("--at goes with --space", "one candidate is recorded at every workload, a table at its places")
    if config is not None and candidate is None:
        raise UserError("--config goes with --candidate", "--space and --table say which configurations are recorded")
    if hardware and not table:
        raise UserError("--hardware goes with --table", "leave it out: a record is compiled for every target")
    if table:
        judging_commands.record_tables(model, op or (), hardware or ["h200"], out, **common)
    if len(op or ()) != 1:
        raise UserError("name one op with --op", f"`fasttrack ops {model}` lists them")
    if space:
        judging_commands.record_space(model, op[0], out, at or (), **common)
    judging_commands.record(model, op[0], candidate, config, out, **common)


def evaluate(
    model: ModelName,
    op: Annotated[str | None, typer.Option("--op", help="an op of the model; with --candidate")] = None,
    candidate: CandidateFile = None,
    pack: Annotated[Path | None, typer.Option("--pack", metavar="FILE", help="what `fasttrack record` wrote")] = None,
    config: ConfigText = None,
    device: Device = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="judge again, whatever verdict is kept")] = False,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Judge one candidate, or one that was recorded elsewhere, and say why. Keeps the verdict, and says when it answers
    from what it kept; the lane itself never does.

    Example: `fasttrack evaluate kimi_k3 --op kda_decode --candidate my_kernel.py --json`

    Example: `fasttrack evaluate kimi_k3 --pack my_kernel.pack --device gpu`
    """
    from . import judging_commands

    if (pack is None) == (candidate is None):
        raise UserError("give a candidate or a pack", "either --op OP --candidate FILE, or --pack FILE")
    if pack is not None:
        if op is not None or config is not None:
            raise UserError("--op and --config do not go with --pack", "a pack says what it is a record of")
        judging_commands.evaluate_pack(
            model, pack, device=device, fresh=fresh, unsafe_no_sandbox=unsafe_no_sandbox, as_json=as_json
        )
    if op is None:
        raise UserError("--op is missing", f"`fasttrack ops {model}` lists the ops")
    judging_commands.evaluate(
        model, op, candidate, config, device=device, fresh=fresh, unsafe_no_sandbox=unsafe_no_sandbox, as_json=as_json
    )


def confirm(
    model: ModelName,
    op: Annotated[list[str] | None, typer.Option("--op", help="an op of the model; may be repeated; by default all")] = None,
    hardware: Annotated[list[str], typer.Option(help="whose entries of the tables; may be repeated")] = ["h200"],  # noqa: B006
    pack: Annotated[
        list[Path] | None,
        typer.Option("--pack", metavar="FILE", help="what `fasttrack record --table` wrote, or a directory of it; may be repeated"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="write there what belongs into models/MODEL; by default into the checkout")
    ] = None,
    device: Device = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="judge again, whatever verdicts are kept")] = False,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Judge what stands in the tree: every kernel and configuration that a dispatch table names, at its places. Each op that
    is accepted gets the judge's statement as evidence, and its table the times that were measured.

    Example: `fasttrack confirm kimi_k3 --op kda_decode --device gpu`

    On a GPU machine whose Triton cannot record: `fasttrack record kimi_k3 --table -o packs` elsewhere, and there
    `fasttrack confirm kimi_k3 --pack packs -o confirmed`. A run that was cut off is begun again with the same command; what
    was judged before is kept.
    """
    from . import judging_commands

    judging_commands.confirm(
        model, op or (), hardware, pack or (), out, device=device, fresh=fresh, unsafe_no_sandbox=unsafe_no_sandbox,
        as_json=as_json,
    )  # fmt: skip
