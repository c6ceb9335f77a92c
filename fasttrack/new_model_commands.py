"""What `fasttrack new-model` does."""

import json
import sys
from pathlib import Path

import typer

from . import model_dir
from .scaffold import answers as known
from .scaffold import render, write


def questions() -> None:
    """Prints a file of answers to fill in."""
    print(known.questions(), end="")


def new_model(name: str, answers: Path | None, config: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """Writes exam and model directory into the checkout, and says how they travel."""
    checkout = model_dir.find_checkout(Path.cwd()) or Path.cwd()
    write.check(checkout, name)
    given = known.gather(answers, config, _ask if sys.stdin.isatty() and not as_json else None)
    exam, directory = render.render(name, given)
    if not dry_run:
        write.write(checkout, name, exam | directory)
    steps = _steps(name)
    if as_json:
        facts = {
            "model": name, "written": not dry_run, "first_change": sorted(exam), "second_change": sorted(directory),
            "next": [{"what": what, "commands": list(lines)} for what, lines in steps],
        }  # fmt: skip
        print(json.dumps(facts, indent=2))
        return
    wrote = "would write" if dry_run else "wrote"
    print(f"{wrote} {len(exam)} files for people to review and {len(directory)} for the lane:")
    for target in write.targets(name):
        print(f"  {target}")
    for what, lines in steps:
        print(f"\n{what}")
        for line in lines:
            print(f"  {line}")


def _ask(name: str, what: str) -> str:
    hint = {"sources": " (several: separate by ;)", "hardware": " (separate by ,)", "tp": " (separate by ,)",
            "review_by": " (YYYY-MM-DD)", "remove_by": " (YYYY-MM-DD)"}.get(name, "")  # fmt: skip
    return typer.prompt(f"{name}: {what}{hint}", err=True)


def _steps(name: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(what, commands): the two changes that a new model is."""
    contract, exam, kernels, directory = (f"validation/contracts/{name}", *write.targets(name)[:2], f"models/{name}")
    return (
        (
            "1. Read the exam, and let it examine its first kernel:",
            (f"python -m pytest {exam} {kernels}",
             f"fasttrack evaluate {name} --op rms_norm --candidate {directory}/kernels/rms_norm.py"),
        ),
        (
            "2. The exam is a change of its own, reviewed by people, without the label fast-track: the gate refuses "
            "whatever changes what it judges by (confinement.policy_change). It has to be merged first:",
            (f"git switch -c contract/{name} main",
             f"git add {contract} {exam} {kernels}",
             f"git commit -m 'Add the contract of {name}'"),
        ),
        (
            "3. Once it is in main, the model directory travels the lane. `submit` judges the kernel against the contract "
            "at main, and puts evidence and report on a branch:",
            (f"git switch -c fasttrack/{name}/start main",
             f"git add {directory}",
             f"git commit -m 'Add {name} to the lane'",
             f"fasttrack submit {name} --op rms_norm --candidate {directory}/kernels/rms_norm.py "
             f"--branch fasttrack/{name}/rms_norm",
             f"git switch fasttrack/{name}/rms_norm"),
        ),
        (
            "4. The report of that run tells what the run touched. Both commits are one change: let it tell of all of it.",
            (f"fasttrack report {name} --write --base main",
             f"git add {directory}/report",
             "git commit -m 'Tell of the whole change in the report'",
             f"fasttrack gate --base main --head fasttrack/{name}/rms_norm --model {name}"),
        ),
    )  # fmt: skip
