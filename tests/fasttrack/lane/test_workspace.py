import lane_fakes as fakes
import pytest

from fasttrack.workspace import Worktree, changed_paths, git, head
from fasttrack_validation.errors import UserError


def worktree(checkout, tmp_path, branch="work", run="run-1"):
    return Worktree(checkout, tmp_path / "tree", branch, head(checkout), run)


def test_resume_takes_over_its_own_branch_and_drops_its_own_commit(checkout, tmp_path):
    tree = worktree(checkout, tmp_path)
    tree.open(resumed=False)
    (tree.directory / "models/toy/new.py").write_text("x = 1\n")
    first = tree.commit("work\n\nFasttrack-Run: run-1", "models/toy")
    # As after a kill: the worktree is still there and the branch holds the commit.
    tree.open(resumed=True)
    assert head(tree.directory) == tree.base != first
    assert not (tree.directory / "models/toy/new.py").exists()


def test_somebody_elses_branch_is_neither_taken_nor_deleted(checkout, tmp_path):
    fakes.git(checkout, "checkout", "-qb", "work")
    (checkout / "mine.txt").write_text("mine\n")
    mine = fakes.commit_all(checkout, "mine")
    fakes.git(checkout, "checkout", "-q", "main")
    for resumed, text in ((False, "exists already"), (True, "not this run's")):
        tree = worktree(checkout, tmp_path)
        with pytest.raises(UserError, match=text):
            tree.open(resumed=resumed)
        tree.remove(branch=True)
        assert fakes.git(checkout, "rev-parse", "work") == mine


def test_a_worktree_left_locked_by_a_killed_git_is_no_obstacle(checkout, tmp_path):
    tree = worktree(checkout, tmp_path)
    tree.open(resumed=False)
    registered = next((checkout / ".git/worktrees").iterdir())
    (registered / "locked").write_text("initializing")
    tree.open(resumed=True)
    assert head(tree.directory) == tree.base


def test_only_changes_below_the_directory_are_committed_ignored_files_included(checkout, tmp_path):
    tree = worktree(checkout, tmp_path)
    tree.open(resumed=False)
    (tree.directory / ".git_exclude").write_text("")
    (tree.directory / "outside.py").write_text("")
    (tree.directory / "models/toy/evidence.log").write_text("kept\n")
    (checkout / ".git/info/exclude").write_text("*.log\n")
    tree.commit("m", "models/toy")
    assert fakes.git(checkout, "diff", "--name-only", "main", "work") == "models/toy/evidence.log"


def test_commit_of_nothing_is_none_and_a_configured_person_is_the_author(checkout, tmp_path):
    git(checkout, "config", "user.name", "Grace")
    git(checkout, "config", "user.email", "grace@example.org")
    tree = worktree(checkout, tmp_path)
    tree.open(resumed=False)
    assert tree.commit("nothing", "models/toy") is None
    (tree.directory / "models/toy/a.py").write_text("")
    tree.commit("something", "models/toy")
    assert fakes.git(checkout, "log", "-1", "--format=%an <%ae>", "work") == "Grace <grace@example.org>"


def test_changed_paths_leaves_the_index_alone(checkout):
    file = checkout / "models/toy/kernels/copy.py"
    file.touch()
    before = (checkout / ".git/index").read_bytes()
    assert changed_paths(checkout, "models/toy") == []
    file.write_text("changed\n")
    (checkout / "models/toy/nëw.py").write_text("")
    assert changed_paths(checkout, "models/toy") == ["models/toy/kernels/copy.py", "models/toy/nëw.py"]
    assert (checkout / ".git/index").read_bytes() == before


def test_a_repository_without_commits(tmp_path):
    fakes.git(tmp_path, "init", "-q")
    with pytest.raises(UserError, match="no commit"):
        head(tmp_path)


def test_git_errors_and_the_callers_git_environment(checkout, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert len(head(checkout)) == 40
    with pytest.raises(UserError, match="git checkout failed"):
        git(checkout, "checkout", "no-such-thing")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="git is not installed"):
        git(checkout, "status")


@pytest.mark.parametrize(("there", "asked"), [("main", "main/x"), ("x/y", "x"), ("a/b", "a/b/c/d")])
def test_a_branch_that_git_cannot_keep_beside_another_is_refused_at_once(checkout, there, asked):
    """Branches are files: where one is, no directory can be, and the other way round."""
    from fasttrack import workspace

    if there != "main":
        workspace.git(checkout, "branch", there)
    with pytest.raises(UserError, match="cannot be beside branch"):
        workspace.check_branch(checkout, asked)
    workspace.check_branch(checkout, f"{there}-x")
