"""What the commands do: fetch the parts, call them, print text or data, and exit with the right code."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate

from . import lane, model_dir, services
from .voice import Voice

if TYPE_CHECKING:
    from .dispatch import Config


def propose(model: str, op: str | None, *, as_json: bool, chat: dict[str, object], **options: object) -> NoReturn:
    """Runs the lane with an agent."""
    from .agents.settings import ChatOptions

    options["hardware"], options["chat"] = tuple(options["hardware"]), ChatOptions(**chat)
    options["workloads"], options["packs"] = tuple(options["workloads"]), pack_files(options["packs"])
    op = op or _only_op(model)
    if options["agent"] == "external":
        from . import run_commands

        for name in ("agent", "transcript", "chat", "dry_run", "packs", "workloads"):
            options.pop(name)
        run_commands.mcp(model, op, http=True, port=0, resume=False, run=None, as_json=as_json, **options)
    parts = services.default(records=not options["packs"])
    end(lane.propose(lane.Options(model=model, op=op, **options), parts, Voice(quiet=as_json)), as_json)


def submit(
    model: str, op: str, path: Path | None, config: str | None, *, as_json: bool, **options: object
) -> NoReturn:
    """Runs the lane with one candidate, or with packs of several."""
    options["hardware"], options["packs"] = tuple(options["hardware"]), pack_files(options["packs"])
    if path is not None:
        candidate = Candidate.from_path(path, op, parsed_config(config))
        options["submitted"] = with_defaults(candidate, model_dir.load(model), op)
    chosen = lane.Options(model=model, op=op, agent="single", **options)
    parts = services.default(records=not chosen.packs)
    end(lane.propose(chosen, parts, Voice(quiet=as_json)), as_json)


def resume(model: str, op: str | None, run: str | None, *, as_json: bool) -> NoReturn:
    """Goes on with a run."""
    # A run on packs records nothing; where one does, the recorder itself refuses a Triton that it does not know.
    end(lane.resume(model, op, run, None, services.default(records=False), Voice(quiet=as_json)), as_json)


def pack_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The files that `paths` name, those of directories among them."""
    return tuple(file for path in paths for file in (sorted(path.glob("*.pack")) if path.is_dir() else [path]))


def doctor(pins: Path | None, *, as_json: bool) -> NoReturn:
    """Prints every check, or those of versions alone."""
    from . import doctor as checks

    lines = checks.examine() if pins is None else checks.versions(pins)
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        for line in lines:
            print(f"{line.state:4} {line.name}: {line.what}")
            if line.state != "ok":
                print(f"     {line.how}")
    raise typer.Exit(checks.exit_code(lines))


def models(*, as_json: bool) -> None:
    """Prints the models of the checkout, or of the installed package."""
    checkout = model_dir.find_checkout(Path.cwd())
    names = model_dir.model_names(checkout / "models" if checkout else model_dir.installed_models())
    manifests = [model_dir.load(name).manifest.model for name in names]
    if as_json:
        print(json.dumps([manifest.model_dump(mode="json") for manifest in manifests], indent=2))
        return
    for manifest in manifests:
        print(f"{manifest.name}: {manifest.title} (owner {manifest.owner}, review by {manifest.review_by})")


def ops(model: str, *, as_json: bool) -> None:
    """Prints the ops of a model with kernels and workloads."""
    directory = model_dir.load(model)
    contract = services.contract(directory.manifest.model.contract)
    found = {
        name: {"kernels": list(op.kernels), "workloads": [workload.name for workload in contract.op(name).workloads()]}
        for name, op in directory.manifest.ops.items()
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, op in found.items():
        print(f"{name}: {', '.join(op['kernels'])}\n  workloads: {', '.join(op['workloads'])}")


def _only_op(model: str) -> str:
    names = sorted(model_dir.load(model).manifest.ops)
    if len(names) > 1:
        raise UserError(f"{model} has several ops: {', '.join(names)}", "choose one with --op")
    return names[0]


def with_defaults(candidate: Candidate, directory: model_dir.ModelDirectory, op: str) -> Candidate:
    """The candidate with the design space's default for every parameter that its configuration leaves open.

    A contract judges ops, and parts of its graph, that the model directory has no kernels for yet.
    """
    space = directory.space(op) if op in directory.manifest.ops else None
    if space is None:
        return candidate
    return candidate.model_copy(update={"config": {**space.default, **candidate.config}})


def parsed_config(text: str | None) -> "Config | None":
    """The value of `--config`. Raises UserError for anything but a flat JSON object of plain values."""
    if text is None:
        return None
    how = """give a flat JSON object, such as --config '{"num_warps": 4}'"""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--config is not JSON: {error}", how) from error
    plain = isinstance(value, dict) and all(isinstance(item, bool | int | float | str) for item in value.values())
    if not plain or not json.dumps(value, ensure_ascii=False).isprintable() or any(
        isinstance(item, float) and not math.isfinite(item) for item in value.values()
    ):
        raise UserError("--config is not an object of booleans, finite numbers and printable strings", how)
    return value


def end(outcome: lane.Outcome, as_json: bool) -> NoReturn:
    if as_json:
        print(outcome.model_dump_json(indent=2))
    else:
        out = sys.stdout if outcome.exit_code == 0 else sys.stderr
        print(outcome.message, file=out)
        for note in outcome.notes:
            print(f"  {note}", file=out)
        for name in ("branch", "report", "body"):
            if getattr(outcome, name):
                print(f"{name}: {getattr(outcome, name)}", file=out)
    raise typer.Exit(outcome.exit_code)
