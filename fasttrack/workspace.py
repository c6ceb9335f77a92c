"""A worktree of its own for a run, on a branch of its own. The user's tree, index, HEAD and stash are not touched."""

import os
import shutil
import subprocess
from pathlib import Path

from fasttrack_validation.errors import UserError

IDENTITY = ("fasttrack", "fasttrack@localhost")
RUN_TRAILER = "Fasttrack-Run"
_IDENTITY_VARIABLES = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")


def git(directory: Path, *arguments: str, check: bool = True) -> str:
    """Standard output of git run in `directory`, without hooks, prompts or settings of the caller's environment."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("GIT_") or n in _IDENTITY_VARIABLES}
    # Without optional locks, `git status` does not rewrite the user's index.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", "-C", str(directory), "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false",
               "-c", "core.autocrlf=false", *arguments]  # fmt: skip
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="surrogateescape")
    except FileNotFoundError as error:
        raise UserError("git is not installed", "install git 2.38 or later") from error
    if check and done.returncode:
        message = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UserError(
            f"git {arguments[0]} failed in {directory}: {message[-1] if message else done.returncode}",
            "run `fasttrack doctor`; it checks git, the checkout and the identity",
        )
    return done.stdout if done.returncode == 0 else ""


def head(checkout: Path) -> str:
    """The commit that HEAD names. Raises UserError in a repository without commits."""
    commit = git(checkout, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", check=False).strip()
    if not commit:
        raise UserError(f"{checkout} has no commit to start from", "commit the checkout first")
    return commit


def changed_paths(checkout: Path, under: str) -> list[str]:
    """Paths under `under` that differ from HEAD in the index or the working tree, or are untracked."""
    output = git(checkout, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--", under)
    return sorted(entry[3:] for entry in output.split("\0") if entry)


def branch_commit(checkout: Path, branch: str) -> str | None:
    """The commit of a local branch, or None."""
    found = git(checkout, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}^{{commit}}", check=False)
    return found.strip() or None


def check_branch(checkout: Path, branch: str) -> None:
    """Raises UserError when `branch` exists or cannot be a branch's name."""
    if not git(checkout, "check-ref-format", "--branch", branch, check=False):
        raise UserError(f"{branch!r} cannot be the name of a branch", "give another --branch")
    if branch_commit(checkout, branch):
        raise UserError(f"branch {branch!r} exists already", "give another --branch, or delete that one")
    # git keeps branches as files: `main/x` cannot be where `main` is, nor `x` where `x/y` is.
    parents = ["/".join(branch.split("/")[:end]) for end in range(1, branch.count("/") + 1)]
    taken = next((name for name in parents if branch_commit(checkout, name)), None)
    taken = taken or git(checkout, "for-each-ref", "--count=1", "--format=%(refname:lstrip=2)", f"refs/heads/{branch}/").strip()
    if taken:
        raise UserError(f"branch {branch!r} cannot be beside branch {taken!r}", "give another --branch")


class Worktree:
    """The worktree of one run."""

    def __init__(self, checkout: Path, directory: Path, branch: str, base: str, run: str) -> None:
        self.checkout = checkout
        self.directory = directory
        self.branch = branch
        self.base = base
        self.run = run
        self.owned = False

    def open(self, *, resumed: bool) -> None:
        """Creates the branch at the base commit and checks it out.

        A resumed run takes its branch over: at the base, or with the one commit that an earlier sitting made, which
        is dropped to be made again. Anything else on the branch is somebody's work: UserError.
        """
        if not resumed:
            check_branch(self.checkout, self.branch)
        self._remove_directory()
        tip = branch_commit(self.checkout, self.branch)
        if tip and tip != self.base:
            parents = git(self.checkout, "rev-list", "--parents", "-n", "1", tip).split()[1:]
            if parents != [self.base] or self._run_of(tip) != self.run:
                raise UserError(
                    f"branch {self.branch!r} holds commits that are not this run's", "rename the branch, then resume"
                )
            git(self.checkout, "update-ref", f"refs/heads/{self.branch}", self.base, tip)
        arguments = [str(self.directory), self.branch]
        if not tip:
            arguments = ["--no-track", "-b", self.branch, str(self.directory), self.base]
        self.owned = True
        # Twice forced: a killed git may have left the directory registered and locked.
        git(self.checkout, "worktree", "add", "--quiet", "--force", "--force", *arguments)

    def author(self) -> tuple[str, bool]:
        """"name <address>" that a commit will carry, and whether it is the fallback for want of a configured one."""
        name = os.environ.get("GIT_AUTHOR_NAME") or self._setting("user.name")
        address = os.environ.get("GIT_AUTHOR_EMAIL") or self._setting("user.email")
        return (f"{name} <{address}>", False) if name and address else (f"{IDENTITY[0]} <{IDENTITY[1]}>", True)

    def commit(self, message: str, under: str) -> str | None:
        """Commits what changed under `under`; the new commit, or None when nothing changed."""
        git(self.directory, "add", "--all", "--force", "--", under)
        if not git(self.directory, "diff", "--cached", "--name-only", "-z"):
            return None
        # The committer may be unset where the author is not; an identity that git would guess is none.
        settings = [] if self._setting("user.name") and self._setting("user.email") else [
            "-c", f"user.name={IDENTITY[0]}", "-c", f"user.email={IDENTITY[1]}"
        ]  # fmt: skip
        git(self.directory, *settings, "commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", message)
        return head(self.directory)

    def remove(self, *, branch: bool) -> None:
        """Removes the worktree, and with `branch` the branch too, unless it turned out to be somebody else's."""
        self._remove_directory()
        if branch and self.owned and branch_commit(self.checkout, self.branch):
            git(self.checkout, "branch", "--quiet", "-D", self.branch)

    def _setting(self, name: str) -> str:
        return git(self.directory, "config", "--get", name, check=False).strip()

    def _run_of(self, commit: str) -> str:
        pretty = f"--format=%(trailers:key={RUN_TRAILER},valueonly)"
        return git(self.checkout, "show", "--no-patch", pretty, commit).strip()

    def _remove_directory(self) -> None:
        if self.directory.exists():
            git(self.checkout, "worktree", "remove", "--force", "--force", str(self.directory), check=False)
            shutil.rmtree(self.directory, ignore_errors=True)
        git(self.checkout, "worktree", "prune")
