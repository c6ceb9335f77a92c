"""What `fasttrack report` does: show the pages, render them again from the tree, or hold them against it."""

import json
from collections.abc import Mapping
from pathlib import Path

import typer

from fasttrack_validation.errors import UserError

from . import model_dir
from .git import Repository
from .model_dir import ModelDirectory
from .report import fresh, record
from .report.data import NOBODY
from .report.page import report_data
from .report.render import render
from .storage import write_inside


LAYERS = "layers and steps on"


def report(model: str, *, write: bool, base: str | None, check: bool, as_json: bool) -> None:
    """Prints the report's Markdown, or what --write or --check did."""
    directory = model_dir.load(model, need_checkout=write)
    files = contents(directory.path)
    if write:
        told = {"written": [str(path) for path in _write(directory, files, base)]}
        text = "\n".join(f"wrote {path}" for path in told["written"]) + "\n"
    elif check:
        reasons = fresh.stage(files, directory.manifest, f"models/{model}").reasons
        told = {"reasons": [reason.model_dump(mode="json") for reason in reasons]}
        text = "".join(f"{one.path}: {one.message} [{one.id}]\n  {one.remedy}\n" for one in reasons) or "up to date\n"
    else:
        pages = sorted(name for name in files if name.startswith("report/") and name.endswith(".md"))
        if not pages:
            raise UserError(f"{directory.path / 'report'} has no report", f"render it: `fasttrack report {model} --write`")
        told = {"pages": [str(directory.path / name) for name in pages]}
        text = "".join(f"<!-- {directory.path / name} -->\n{files[name].decode('utf-8', 'replace')}" for name in pages)
    print(json.dumps(told, indent=2) if as_json else text, end="\n" if as_json else "")
    raise typer.Exit(1 if check and told["reasons"] else 0)


def contents(path: Path) -> dict[str, bytes]:
    """The files of a model directory by path relative to it; what Python compiled there is left out.

    So are symbolic links, as in a commit's files: what they lead to is not of the directory. UserError for a file that
    cannot be read.
    """
    found = {}
    for one in sorted(path.rglob("*")):
        if "__pycache__" not in one.parts and one.is_file() and not one.is_symlink():
            try:
                found[one.relative_to(path).as_posix()] = one.read_bytes()
            except OSError as error:
                raise UserError(f"cannot read {one}: {error.strerror}", "fix its permissions") from error
    return found


def _write(directory: ModelDirectory, files: Mapping[str, bytes], base: str | None) -> list[Path]:
    told = fresh.record_of(files, directory.manifest, _author(directory))
    stale, missing = _grid(directory)
    kept = [one for one in told.not_run if not one[0].startswith(LAYERS)]
    told = told.model_copy(update={"stale": stale, "not_run": (*kept, *missing)})
    if base is not None:
        told = told.model_copy(update={"touched": _touched(directory, files, base)})
        if told.provenance.agent == NOBODY:
            commit = Repository.open(directory.path).resolve(base)
            told = told.model_copy(update={"provenance": told.provenance.model_copy(update={"base_commit": commit})})
    markdown, page = render(report_data(files, directory.manifest, told))
    written = []
    for name, text in ((record.DESIGN, told.text()), (record.MARKDOWN, markdown), (record.PAGE, page)):
        written.append(write_inside(directory.path, name, text.encode()))
        written[-1].chmod(0o644)
    return written


def _grid(directory: ModelDirectory) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Records of the grid whose figures are about something else by now, and the cells without one, as the contract
    tells.
    """
    from fasttrack_validation import contracts

    from .grid import DIRECTORY, Grid, Standing

    contract = contracts.load(directory.manifest.model.contract)
    stale, missing = [], []
    for hardware in dict.fromkeys(claim.hardware for claim in directory.manifest.envelope) if contract.has_grid else ():
        grid = Grid(directory, contract, hardware)
        stale += [(f"{DIRECTORY}/{hardware}/{one.spec.key}.json", changed)
                  for one in grid.kept().values() if (changed := grid.stale(one))]  # fmt: skip
        cells = [one for one in grid.cells() if one.standing is not Standing.EXCLUDED]
        silent = [one for one in cells if one.standing is Standing.MISSING]
        if silent:
            missing.append((f"{LAYERS} {hardware}: {len(silent)} of {len(cells)} cells", silent[0].reason))
    return tuple(sorted(stale)), tuple(missing)


def _author(directory: ModelDirectory) -> tuple[str, str]:
    """Who git says is at work, and the commit that is checked out."""
    repository = Repository.open(directory.path)
    person = repository.identity()
    return (f"{person[0]} <{person[1]}>" if person else ""), repository.resolve("HEAD")


def _touched(directory: ModelDirectory, files: Mapping[str, bytes], base: str) -> tuple[record.Touched, ...]:
    repository = Repository.open(directory.path)
    before = repository.files(repository.resolve(base), f"models/{directory.manifest.model.name}")
    changed = {name for name in {*before, *files} if before.get(name) != files.get(name)}
    return tuple(
        record.Touched(path=name, status="D" if name not in files else "M" if name in before else "A")
        for name in sorted(fresh.told(changed))
    )
