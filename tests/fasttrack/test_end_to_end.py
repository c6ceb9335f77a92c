"""The whole lane through the command line, with the real judge, sandbox, interpreter and compiler.

The repository of the test holds the model directory alone, as a serving tree would: policy comes from the installed
package. The directory claims little (small_model.py), which is all that a confirmation has to cover.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import small_model

from fasttrack.git import Repository


def run(*command: str, cwd: Path, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # A home without a git configuration: no identity.
    env = {**os.environ, "FASTTRACK_HOME": str(home), "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "fasttrack", *command], cwd=cwd, env=env | environment, capture_output=True, text=True
    )


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A Person", "-c", "user.email=person@example.org"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """A checkout with the model directory, a staged and an unstaged change, an untracked file and a stash."""
    root = tmp_path_factory.mktemp("checkout")
    small_model.write(root, "routing")
    (root / "notes.txt").write_text("one\n")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=base")
    (root / "notes.txt").write_text("stashed\n")
    git(root, "stash", "push", "--quiet")
    (root / "notes.txt").write_text("staged\n")
    git(root, "add", "notes.txt")
    (root / "notes.txt").write_text("unstaged\n")
    (root / "untracked.txt").write_text("mine\n")
    return root


@pytest.fixture(scope="module")
def proposed(repository, tmp_path_factory):
    """One finished run: (outcome, home, state before, state after)."""
    home = tmp_path_factory.mktemp("home")
    before = Repository.open(repository).state()
    options = ("--op", "routing", "--rounds", "1", "--seed", "3", "--json")
    done = run("propose", "kimi_k3", *options, cwd=repository, home=home)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout), home, before, Repository.open(repository).state()


@pytest.mark.slow
def test_the_checkout_is_as_it_was(proposed):
    _, _, before, after = proposed
    for what in ("head", "index", "stash", "status", "contents"):
        assert getattr(before, what) == getattr(after, what), what


@pytest.mark.slow
def test_the_branch_differs_below_the_model_directory_alone(proposed, repository):
    outcome = proposed[0]
    changed = git(repository, "diff", "--name-only", "main", outcome["branch"]).splitlines()
    assert changed and all(path.startswith("models/kimi_k3/") for path in changed)
    assert git(repository, "log", "-1", "--format=%an <%ae>", outcome["branch"]) == "fasttrack <fasttrack@localhost>"
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.slow
def test_every_performance_cell_says_not_measured_and_why(proposed, repository):
    outcome = proposed[0]
    path = "models/kimi_k3/evidence/statements/routing.judge.json"
    statement = json.loads(git(repository, "show", f"{outcome['branch']}:{path}"))
    cells = [cell[arm] for cell in statement["predicate"]["performance"] for arm in ("candidate", "stock")]
    assert len(cells) == 6 and all(cell["kind"] == "not_measured" and cell["reason"] for cell in cells)
    page = Path(outcome["report"]).read_text("utf-8")
    # One, two and four rows of the one op that is claimed; layers are counted apart.
    counts = [int(count) for count in re.findall(r"\b0 of (\d+)", page)]
    assert max(counts) >= 3 and page.count("not measured") >= 3
    body = Path(outcome["body"]).read_text("utf-8")
    assert "stays a draft" in body and "nobody was configured as author" in body


@pytest.mark.slow
def test_the_gate_passes_from_another_directory_and_fails_an_edited_kernel(proposed, repository, tmp_path):
    outcome, home, *_ = proposed
    command = ("gate", "--repo", str(repository), "--base", "main", "--model", "kimi_k3", "--json")
    passed = run(*command, "--head", outcome["branch"], cwd=tmp_path, home=home)
    assert passed.returncode == 0, passed.stdout
    tree = tmp_path / "edit"
    git(repository, "worktree", "add", "--quiet", "-b", "edited", str(tree), outcome["branch"])
    kernel = tree / "models/kimi_k3/kernels/routing.py"
    kernel.write_text(kernel.read_text().replace("1e-20", "1e-19"))
    git(tree, "commit", "--quiet", "--all", "--message=edit")
    failed = run(*command, "--head", "edited", cwd=tmp_path, home=home)
    assert failed.returncode == 1 and "evidence.stale" in failed.stdout


@pytest.mark.slow
def test_a_second_run_repeats_no_compilation_and_makes_its_own_branch(proposed, repository):
    outcome, home, *_ = proposed
    archive = Path(outcome["directory"])
    done = run(
        "propose", "kimi_k3", "--op", "routing", "--agent", "replay",
        "--transcript", str(archive / "transcript.jsonl"), "--json",
        cwd=repository, home=home,
    )  # fmt: skip
    again = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert again["branch"] != outcome["branch"]
    table = "models/kimi_k3/dispatch/routing.toml"
    assert git(repository, "show", f"{again['branch']}:{table}") == git(repository, "show", f"{outcome['branch']}:{table}")
