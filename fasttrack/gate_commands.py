"""What `fasttrack gate` does: find the model, decide, print in the form asked for, exit with the gate's code."""

import os
import sys
from pathlib import Path
from typing import NoReturn

import typer

from fasttrack_validation.errors import UserError

from . import recheck
from .gate import GateResult, run_gate
from .gate_cli import Format
from .git import Repository
from .report import gate as told
from .report.gate_sarif import render_sarif
from .report.gate_summary import render_summary

SUMMARY = "GITHUB_STEP_SUMMARY"


def gate(
    repo: Path, base: str, head: str, model: str | None, form: Format, *, body: Path | None = None,
    minutes: float | None = None,
) -> NoReturn:  # fmt: skip
    """Decides on a change. `model`: by default the one whose directory changes. `minutes`: re-check, for so long."""
    again = None if minutes is None else recheck.installed(lambda line: print(line, file=sys.stderr), minutes)
    result = run_gate(
        repo, base, head, model or changed_model(repo, base, head), body=_body(body), again=again
    )
    print({
        Format.TEXT: told.render_text, Format.JSON: told.render_json, Format.SARIF: render_sarif,
        # The text first: a log is read from its top, and every line of it is indented or ours.
        Format.GITHUB: lambda result: told.render_text(result) + told.render_annotations(result),
    }[form](result), end="")  # fmt: skip
    if form is Format.GITHUB:
        _summarise(result)
    raise typer.Exit(result.exit_code)


def _body(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}", "name the file with the pull request's text") from error


def changed_model(repo: Path, base: str, head: str, root: str = "models") -> str:
    """The model whose directory differs between the merge base and `head`.

    UserError where it is none, or several: the lane takes one model at a time.
    """
    repository = Repository.open(repo)
    base, head = repository.resolve(base), repository.resolve(head)
    with repository.quarantine() as objects:
        start = objects.merge_base(base, head) or base
        parts = [change.path.split("/") for change in objects.diff(start, head)]
    models = sorted({part[1] for part in parts if part[0] == root and len(part) > 2})
    if len(models) == 1:
        return models[0]
    what = f"the change touches {len(models)} model directories: {', '.join(map(ascii, models[:5]))}" if models else \
        f"the change touches no directory below {root}/"  # fmt: skip
    raise UserError(what, "name the model with --model; the lane takes one model at a time")


def _summarise(result: GateResult) -> None:
    path = os.environ.get(SUMMARY)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(render_summary(result))
    except OSError as error:
        raise UserError(f"cannot write the step summary {path}: {error.strerror}", f"unset {SUMMARY}") from error
