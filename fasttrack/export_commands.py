"""What `fasttrack export` does: read a model directory at a revision, put it into a checkout of a target, say what came."""

import json
from pathlib import Path

import typer

from . import model_dir
from .git import Repository
from .targets import export as exporting
from .targets import profile as profiles


def export(
    model: str, target: str, into: Path, *, head: str, base: str, branch: str | None, as_json: bool
) -> None:
    """Exports the committed model directory; what is not committed stays here."""
    profile = profiles.load(target)
    directory = model_dir.load(model, need_checkout=True)
    repository = Repository.open(directory.path)
    commit = repository.resolve(head)
    files = repository.files(commit, f"models/{model}")
    made = exporting.export(
        files, model, profile, into, branch=branch or f"fasttrack/{model}", base=base,
        source=f"Fasttrack-Model: {model}\nFasttrack-Source: {commit}",
    )  # fmt: skip
    if as_json:
        print(json.dumps({"exit_code": made.exit_code, **made.model_dump(mode="json")}, indent=2))
    else:
        print(f"{made.files} files to {made.directory}/ on branch {made.branch} ({made.commit[:12]}) of {into}")
        for stage in made.stages:
            print(f"{stage.status.value:8} {stage.stage}: {stage.summary}")
            for reason in stage.reasons:
                print(f"         {reason.path or ''}{f':{reason.line}' if reason.line else ''} {reason.message} [{reason.id}]\n"
                      f"         {reason.remedy}")  # fmt: skip
    raise typer.Exit(made.exit_code)
