"""Git access: deaf to the environment and to repository programs, and harmless to the user's checkout."""

import os
import subprocess
from pathlib import Path

import pytest
from fasttrack import git
from fasttrack.git import Repository, display
from fasttrack_validation.errors import UserError
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def no_person(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("EMAIL", raising=False)
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        monkeypatch.delenv(key)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    path = tmp_path / "check\nout"
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(path)], check=True)
    (path / "models" / "alpha").mkdir(parents=True)
    (path / "models" / "alpha" / "k.py").write_text("A = 1\n")
    run(path, "add", ".")
    run(path, "-c", "user.name=P", "-c", "user.email=p@example.org", "commit", "--quiet", "-m", "base")
    return path


def run(path: Path, *args: str) -> str:
    return subprocess.run(["git", "-C", str(path), *args], check=True, capture_output=True, text=True).stdout.strip()


def test_opens_from_any_directory_inside(checkout):
    top = Repository.open(checkout)
    below = Repository.open(checkout / "models" / "alpha")
    assert top.git_dir == below.git_dir == checkout / ".git"
    assert top.work_tree == below.work_tree == checkout
    assert Repository.open(checkout / ".git").work_tree is None
    assert top.resolve("main") == run(checkout, "rev-parse", "HEAD") == below.resolve("HEAD")


def test_environment_does_not_redirect(checkout, tmp_path, monkeypatch, forge):
    monkeypatch.setenv("GIT_DIR", str(forge.path))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    assert Repository.open(checkout).work_tree == checkout


def test_errors_say_what_to_do(checkout, tmp_path):
    with pytest.raises(UserError, match="not inside a git repository"):
        Repository.open(tmp_path)
    with pytest.raises(UserError, match="is not a directory"):
        Repository.open(tmp_path / "absent")
    with pytest.raises(UserError, match="unknown revision 'mian'") as caught:
        Repository.open(checkout).resolve("mian")
    assert caught.value.how == "did you mean main?"
    for revision in ("", "--all", "main..main", "a\nb", "main:models", "0" * 40):
        with pytest.raises(UserError, match="unknown revision"):
            Repository.open(checkout).resolve(revision)


def test_git_missing(checkout, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="git is not installed"):
        Repository.open(checkout)


def test_old_git_cannot_merge(forge, monkeypatch):
    base = forge.commit({"a": b"1"})
    monkeypatch.setattr(git, "version", lambda: (2, 37, 9))
    with Repository.open(forge.path).quarantine() as objects, pytest.raises(UserError, match=r"2\.37\.9") as caught:
        objects.merge(base, base)
    assert caught.value.how == "install git 2.38 or newer"


def test_foreign_owner_is_read_but_not_written(forge, tmp_path):
    base = forge.commit({"a": b"1"})
    forge.ref("main", base)
    for path in (forge.path, *forge.path.rglob("*")):
        os.chown(path, 12345, 12345)
    repository = Repository.open(forge.path)
    assert repository.resolve("main") == base
    with pytest.raises(UserError, match="dubious ownership"):
        repository.add_worktree(tmp_path / "w", "b", "main")


def test_programs_that_a_repository_configures_never_run(checkout, tmp_path):
    trap = tmp_path / "trap"
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\ntouch '{trap}'\ncat\n")
    script.chmod(0o755)
    hooks = checkout / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in (
        "pre-commit",
        "post-checkout",
        "commit-msg",
        "prepare-commit-msg",
        "post-commit",
        "reference-transaction",
    ):
        (hooks / hook).symlink_to(script)
    (checkout / ".git" / "info").mkdir(exist_ok=True)
    (checkout / ".git" / "info" / "attributes").write_text("*.py diff=trap merge=trap\n")
    for key in ("core.fsmonitor", "diff.external", "diff.trap.command", "diff.trap.textconv", "merge.trap.driver",
                "core.pager", "gpg.program", "core.editor"):  # fmt: skip
        run(checkout, "config", key, str(script))
    run(checkout, "config", "commit.gpgSign", "true")
    trap.unlink(missing_ok=True)
    repository = Repository.open(checkout)
    repository.state()
    tree = repository.add_worktree(tmp_path / "w", "proposal", "main")
    (tmp_path / "w" / "models" / "alpha" / "k.py").write_text("A = 2\n")
    commit = tree.commit("Change", ["models/alpha/k.py"])
    assert [change.path for change in repository.diff("main", commit.oid)] == ["models/alpha/k.py"]
    with repository.quarantine() as objects:
        objects.merge(repository.resolve("main"), commit.oid)
    assert not trap.exists()


def test_a_configured_merge_driver_does_not_decide(checkout, tmp_path):
    trap = tmp_path / "trap"
    run(checkout, "config", "merge.trap.driver", f"touch '{trap}'")
    (checkout / ".git" / "info").mkdir(exist_ok=True)
    (checkout / ".git" / "info" / "attributes").write_text("*.py merge=trap\n")
    repository = Repository.open(checkout)
    heads = []
    for name in "ab":
        tree = repository.add_worktree(tmp_path / name, name, "main")
        (tmp_path / name / "models" / "alpha" / "k.py").write_text(f"{name}\n")
        heads.append(tree.commit("Change", ["models/alpha/k.py"]).oid)
    with repository.quarantine() as objects:
        assert objects.merge(*heads).conflicts == ("models/alpha/k.py",)
    assert not trap.exists()


def test_commit_in_a_worktree_leaves_the_checkout_alone(checkout, tmp_path):
    (checkout / "models" / "alpha" / "k.py").write_text("A = 'edited'\n")
    (checkout / "new.txt").write_text("new\n")
    run(checkout, "add", "new.txt")
    repository = Repository.open(checkout)
    before = repository.state()
    tree = repository.add_worktree(tmp_path / "w", "proposal", "main")
    (tmp_path / "w" / ".gitignore").write_text("*.json\n")
    (tmp_path / "w" / "models" / "alpha" / "e.json").write_text("{}\n")
    (tmp_path / "w" / "models" / "alpha" / "k.py").unlink()
    commit = tree.commit("Propose\n\n# not a comment\n", ["models/alpha/e.json", "models/alpha/k.py"])
    after = repository.state()
    assert (before.head, before.index, before.stash, before.status, before.contents) == (
        after.head, after.index, after.stash, after.status, after.contents)  # fmt: skip
    assert before.refs != after.refs
    assert [(c.status, c.path) for c in repository.diff("main", commit.oid)] == [
        ("A", "models/alpha/e.json"), ("D", "models/alpha/k.py")]  # fmt: skip
    assert run(checkout, "log", "-1", "--format=%B", "proposal") == "Propose\n\n# not a comment"
    repository.remove_worktree(tmp_path / "w")
    assert not (tmp_path / "w").exists()
    assert repository.resolve("proposal") == commit.oid


def test_identity(checkout, tmp_path, monkeypatch):
    repository = Repository.open(checkout)
    tree = repository.add_worktree(tmp_path / "w", "proposal", "main")
    target = tmp_path / "w" / "models" / "alpha" / "k.py"

    def commit(text: str) -> git.Commit:
        target.write_text(text)
        return tree.commit("Change", ["models/alpha/k.py"])

    first = commit("A = 2\n")
    assert (first.author, first.fallback_identity) == ("fasttrack <fasttrack@localhost>", True)
    assert (
        run(checkout, "log", "-1", "--format=%an <%ae> %cn", "proposal") == "fasttrack <fasttrack@localhost> fasttrack"
    )
    run(checkout, "config", "user.name", "Ada Lovelace")
    assert commit("A = 3\n").fallback_identity
    run(checkout, "config", "user.email", "ada@example.org")
    assert commit("A = 4\n") == git.Commit(tree.resolve("HEAD"), "Ada Lovelace <ada@example.org>", False)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Grace")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "grace@example.org")
    assert commit("A = 5\n").author == "Grace <grace@example.org>"
    with pytest.raises(UserError, match="nothing to commit"):
        commit("A = 5\n")


def test_state_sees_each_kind_of_change(checkout):
    repository = Repository.open(checkout)
    target = checkout / "models" / "alpha" / "k.py"
    seen = [repository.state()]

    def moved(*fields: str) -> None:
        seen.append(repository.state())
        assert {name for name in fields if getattr(seen[-1], name) == getattr(seen[-2], name)} == set()

    assert repository.state() == seen[0]
    target.write_text("A = 2\n")
    moved("status", "contents")
    target.write_text("A = 3\n")
    moved("contents")
    run(checkout, "add", ".")
    moved("index", "status")
    run(checkout, "-c", "user.name=P", "-c", "user.email=p@e", "stash")
    moved("stash", "contents", "refs")
    run(checkout, "checkout", "--quiet", "-b", "other")
    moved("head", "refs")
    (checkout / "untracked").symlink_to("nowhere")
    moved("status", "contents")


def test_push_sends_one_branch_and_never_by_force(checkout, forge, tmp_path):
    repository = Repository.open(checkout)
    run(checkout, "remote", "add", "origin", str(forge.path))
    tree = repository.add_worktree(tmp_path / "w", "proposal", "main")
    (tmp_path / "w" / "models" / "alpha" / "k.py").write_text("A = 2\n")
    oid = tree.commit("Change", ["models/alpha/k.py"]).oid
    tree.push("origin", "proposal")
    assert forge.git("for-each-ref", "--format=%(refname) %(objectname)") == f"refs/heads/proposal {oid}"
    forge.ref("proposal", forge.commit({"a": b"1"}))
    with pytest.raises(UserError, match="git push failed"):
        tree.push("origin", "proposal")


def test_shallow_clone_says_fetch(checkout, tmp_path):
    (checkout / "x").write_text("1")
    run(checkout, "add", "x")
    run(checkout, "-c", "user.name=P", "-c", "user.email=p@e", "commit", "--quiet", "-m", "two")
    source = tmp_path / "source.git"
    run(checkout, "clone", "--quiet", "--bare", ".", str(source))
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "s")], check=True)
    run(tmp_path / "s", "fetch", "--quiet", "--depth=1", f"file://{source}", "main:a")
    other = run(tmp_path / "s", "-c", "user.name=P", "-c", "user.email=p@e", "commit-tree", "a^{tree}", "-m", "o")
    with pytest.raises(UserError, match="too shallow"):
        Repository.open(tmp_path / "s").merge_base("a", other)


def test_shallow_clone_with_enough_history_can_be_checked(checkout, tmp_path):
    first = run(checkout, "rev-parse", "HEAD")
    for text in "23":
        (checkout / "x").write_text(text)
        run(checkout, "add", "x")
        run(checkout, "-c", "user.name=P", "-c", "user.email=p@e", "commit", "--quiet", "-m", text)
    subprocess.run(["git", "clone", "--quiet", "--depth=2", f"file://{checkout}", str(tmp_path / "s")], check=True)
    repository = Repository.open(tmp_path / "s")
    base, head = repository.resolve("HEAD~1"), repository.resolve("HEAD")
    assert repository.shallow and first not in (base, head)
    with repository.quarantine() as objects:
        assert objects.merge_base(base, head) == base
        assert [oid for oid, _ in objects.commits(base, head)] == [head]
        assert objects.merge(base, head).tree == repository.tree_of(head)


def test_missing_object_is_a_user_error(forge):
    with pytest.raises(UserError, match="missing"):
        Repository.open(forge.path).blobs(["1" * 40])


@given(st.binary(min_size=1, max_size=40))
def test_displayed_paths_are_printable_and_distinct_bytes_stay_visible(data):
    shown = display(os.fsdecode(data))
    assert shown.isascii() and shown.isprintable()
    if data.isascii() and data.decode().isprintable():
        assert shown == data.decode()


def test_display():
    assert display("a\nb") == r"a\x0ab"
    assert display("\u0430") == r"\u0430"
    assert display("\udcff") == r"\xff"
