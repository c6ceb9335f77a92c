"""A model directory, put unchanged into a checkout of a target, on a branch of its own, and judged there.

The target's checkout, index and HEAD are not touched: the files go into a worktree beside it.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, digest_files

from ..confinement.check import Confinement, Finding, examine
from ..confinement.contents import Limits
from ..git import Repository, display
from ..stages import Reason, StageResult, StageStatus
from .profile import Check, Profile

SECONDS = 600


class Exported(Frozen):
    """What was put where, and what was said of it there."""

    target: str
    directory: str
    branch: str
    commit: str
    base: str
    files: int
    files_digest: str
    """SHA-256 over the files: the same here and there"""
    stages: tuple[StageResult, ...]

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 a check did not run."""
        statuses = {stage.status for stage in self.stages}
        return 1 if StageStatus.FAIL in statuses else 3 if StageStatus.NOT_RUN in statuses else 0


def export(
    files: Mapping[str, bytes], model: str, profile: Profile, checkout: Path, *, branch: str, base: str = "HEAD",
    source: str = "", limits: Limits | None = None,
) -> Exported:
    """Commits `files` (paths relative to the model directory) to the new branch `branch` from `base` of the target.

    `source`: what the commit message says of where they come from. UserError where the checkout is no checkout of the
    target, or the branch exists; then nothing was left behind.
    """
    repository = Repository.open(checkout)
    start = repository.resolve(base)
    there = {path for path, _ in repository.tree(start)}
    if missing := [mark for mark in profile.marks if mark not in there]:
        raise UserError(f"{checkout} is no checkout of {profile.title}: {missing[0]} is not there at {start[:12]}",
                        "name a checkout of the target, or another --target")  # fmt: skip
    directory = profile.place(model)
    if len(files) == 0:
        raise UserError("there is nothing to export", "commit the model directory first")
    _check_names(files)
    _check_place(repository, start, directory)
    if repository.has_branch(branch):
        raise UserError(f"{checkout} has a branch {branch} already", "delete it there, or name another with --branch")
    with tempfile.TemporaryDirectory(prefix="fasttrack-export-") as name:
        place = Path(name) / "tree"
        tree = repository.add_worktree(place, branch, start)
        done = False
        try:
            old = [path for path in tree.files(start, directory)]
            shutil.rmtree(place / directory, ignore_errors=True)
            for path, data in files.items():
                (place / directory / path).parent.mkdir(parents=True, exist_ok=True)
                (place / directory / path).write_bytes(data)
            message = f"Add the latency-specialised decode path of {model}\n\n{source}\n".rstrip() + "\n"
            made = tree.commit(message, [f"{directory}/{path}" for path in sorted({*files, *old})])
            if digest_files(tree.files(made.oid, directory)) != digest_files(dict(files)):
                raise UserError(f"what was committed below {directory} is not what was exported",
                                "look for a filter or an ignore rule of the target that touches these files")  # fmt: skip
            with repository.quarantine() as objects:
                found = examine(objects, start, made.oid, model, directory, limits or Limits())
            stages = [_confined(found), *(_run(check, place, directory) for check in profile.check)]
            done = True
        finally:
            repository.remove_worktree(place)
            if not done:
                repository.delete_branch(branch)
    return Exported(
        target=profile.name, directory=directory, branch=branch, commit=made.oid, base=start, files=len(files),
        files_digest=digest_files(dict(files)), stages=tuple(stages),
    )  # fmt: skip


def _check_names(files: Mapping[str, bytes]) -> None:
    """UserError for a path that would leave the directory: trees that no ordinary git writes may hold one."""
    for path in files:
        bad = [part for part in path.split("/") if part in ("", ".", "..") or part.casefold() == ".git"]
        if bad:
            raise UserError(f"{display(path)} cannot be exported: {bad[0]!r} is no name of a file", "take it out of the commit first")


def _check_place(repository: Repository, start: str, directory: str) -> None:
    """UserError where the target has anything but directories on the way to `directory`.

    Behind a symbolic link lies what is not the worktree's: files would be deleted and written there.
    """
    parts = directory.split("/")
    way = {"/".join(parts[:end]) for end in range(1, len(parts) + 1)}
    for path, entry in repository.tree(start):
        if path in way and entry.kind != "tree":
            kind = {"120000": "a symbolic link", "160000": "a submodule"}.get(entry.mode, "a file")
            raise UserError(f"{path} is {kind} in the target at {start[:12]}, and {directory} would lie below it",
                            "start from a revision where it is a directory: --base REV")  # fmt: skip


def _confined(found: Confinement) -> StageResult:
    reasons = tuple(_reason(one) for one in found.findings)
    summary = f"{len(found.files)} files, all below {found.directory}/" if found.passed else f"{len(reasons)} findings"
    return StageResult(
        stage="confinement", status=StageStatus.PASS if found.passed else StageStatus.FAIL, summary=summary, reasons=reasons
    )


def _reason(one: Finding) -> Reason:
    return Reason(id=one.rule, message=f"{one.title}: {one.message}", remedy=one.remedy, path=one.path, line=one.line)


def _run(check: Check, place: Path, directory: str) -> StageResult:
    def answer(status: StageStatus, summary: str) -> StageResult:
        return StageResult(stage=check.name, status=status, summary=summary)

    if check.where and not (place / check.where).is_file():
        return answer(StageStatus.NOT_RUN, f"the target has no {check.where}")
    if check.needs and importlib.util.find_spec(check.needs) is None:
        return answer(StageStatus.NOT_RUN, f"{check.needs} is not installed here: pip install {check.needs}")
    command = [part.replace("{python}", sys.executable).replace("{directory}", directory).replace("{root}", str(place))
               for part in check.command]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except FileNotFoundError:
        return answer(StageStatus.NOT_RUN, f"{command[0]} is not installed here")
    except subprocess.TimeoutExpired:
        return answer(StageStatus.FAIL, f"did not end within {SECONDS} seconds")
    said = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode:
        return answer(StageStatus.FAIL, f"exit code {done.returncode}: " + " | ".join(said[:12])[:1500])
    return answer(StageStatus.PASS, said[-1][:200] if said else "nothing found")
