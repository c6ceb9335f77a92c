"""Target profiles, and a model directory put unchanged into a checkout of a target and judged there."""

import shutil
import subprocess
from pathlib import Path

import pytest
from fasttrack import cli
from fasttrack.git import Repository
from fasttrack.stages import StageStatus
from fasttrack.targets import profile as profiles
from fasttrack.targets.export import export
from fasttrack.targets.profile import Part
from fasttrack_validation.errors import UserError
from fasttrack_validation.records import digest_files

FILES = {"fasttrack.toml": b"[model]\n", "kernels/k.py": b"from . import shared\n", "kernels/shared.py": b"A = 1\n",
         "evidence/x.json": b"{}\n"}  # fmt: skip
PLACES = {"own": "models/alpha", "vllm": "vllm/models/alpha/nvidia", "sglang": "python/sglang/srt/models/specialized/alpha",
          "flashinfer": "flashinfer/specialized/alpha"}  # fmt: skip


def git(where: Path, *arguments: str) -> str:
    person = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(["git", *person, *arguments], cwd=where, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def vllm(tmp_path) -> Path:
    """A checkout with what marks vLLM, an uncommitted edit, and settings that ignore and convert files."""
    path = tmp_path / "vllm"
    for name, text in {"vllm/__init__.py": "", "vllm/model_executor": "x\n", "pyproject.toml": "[tool.ruff]\nline-length = 88\n",
                       "vllm/models/alpha/nvidia/old.py": "OLD = 1\n", "vllm/models/beta/k.py": "B = 1\n"}.items():  # fmt: skip
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git(path, "init", "--quiet", "-b", "main")
    git(path, "add", "-A")
    git(path, "commit", "--quiet", "-m", "base")
    (path / "vllm/__init__.py").write_text("# an edit under way\n")
    return path


def test_every_profile_is_whole():
    assert set(profiles.names()) == set(PLACES)
    for name, place in PLACES.items():
        profile = profiles.load(name)
        assert (profile.name, profile.place("alpha")) == (name, place)
        assert sorted(part for section in profile.section for part in section.parts) == sorted(Part)


OWN = 'name = "x"\ntitle = "X"\ndirectory = "{directory}"\n' + "".join(
    f'[[section]]\nheading = "{part}"\nparts = ["{part}"]\n' for part in Part
)


def test_another_target_is_a_file(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(OWN.replace("{directory}", "lib/{model}"))
    assert profiles.load(str(file)).place("alpha") == "lib/alpha"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OWN.replace("{directory}", "../{model}"), "plain relative path"),
        (OWN.replace("{directory}", "lib"), "two models would share"),
        (OWN.replace("{directory}", "lib/{model}/{user}"), "is not known"),
        (OWN.replace("{directory}", "lib/{model}").replace('parts = ["ai"]', "parts = []"), "under no heading"),
        (OWN.replace("{directory}", "lib/{model}").replace('parts = ["ai"]', 'parts = ["ai", "open"]'), "there twice"),
        (OWN.replace("{directory}", "lib/{model}") + "surprise = 1\n", "surprise"),
    ],
)
def test_a_profile_that_is_not_one(tmp_path, text, says):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=says):
        profiles.load(str(tmp_path / "x.toml"))


def test_export_puts_the_directory_there_unchanged_and_touches_nothing_else(vllm):
    before = Repository.open(vllm).state()
    made = export(FILES, "alpha", profiles.load("vllm"), vllm, branch="fasttrack/alpha")
    assert (made.directory, made.files) == ("vllm/models/alpha/nvidia", 4)
    assert digest_files(Repository.open(vllm).files(made.commit, made.directory)) == digest_files(FILES) == made.files_digest
    changed = git(vllm, "diff", "--name-status", "--no-renames", "main", "fasttrack/alpha").splitlines()
    assert {line.split("\t")[0] for line in changed} == {"A", "D"} and "D\tvllm/models/alpha/nvidia/old.py" in changed
    assert all(line.split("\t")[1].startswith("vllm/models/alpha/nvidia/") for line in changed)
    after = Repository.open(vllm).state()
    assert (after.head, after.index, after.contents, after.stash) == (before.head, before.index, before.contents, before.stash)
    stages = {stage.stage: stage for stage in made.stages}
    assert stages["confinement"].status is StageStatus.PASS and stages["every source parses"].status is StageStatus.PASS
    assert "worktree" not in git(vllm, "worktree", "list", "--porcelain").split("\n", 1)[1]


def test_what_the_targets_own_check_finds_is_told(vllm):
    pytest.importorskip("ruff", reason="ruff is not installed")
    made = export(FILES | {"kernels/k.py": b"import torch\n"}, "alpha", profiles.load("vllm"), vllm, branch="x")
    (stage,) = (one for one in made.stages if one.stage.startswith("ruff"))
    assert stage.status is StageStatus.FAIL and "F401" in stage.summary and made.exit_code == 1


def test_a_check_that_cannot_run_is_not_run(vllm, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    made = export(FILES, "alpha", profiles.load("vllm"), vllm, branch="x")
    assert {one.status for one in made.stages if one.stage.startswith("ruff")} == {StageStatus.NOT_RUN}
    assert made.exit_code == 3


def test_what_is_not_confined_fails_there_too(vllm):
    made = export(FILES | {"conftest.py": b"x = 1\n"}, "alpha", profiles.load("vllm"), vllm, branch="x")
    assert made.stages[0].status is StageStatus.FAIL
    assert "confinement.tool_configuration" in {one.id for one in made.stages[0].reasons} and made.exit_code == 1


@pytest.mark.parametrize(
    ("target", "branch", "says"), [("sglang", "x", "no checkout of SGLang"), ("vllm", "main", "main"), ("vllm", "main/x", "main")]
)
def test_a_refusal_leaves_nothing_behind(vllm, target, branch, says):
    refs = git(vllm, "for-each-ref")
    with pytest.raises(UserError, match=says):
        export(FILES, "alpha", profiles.load(target), vllm, branch=branch)
    assert git(vllm, "for-each-ref") == refs and len(git(vllm, "worktree", "list").splitlines()) == 1


def test_ignore_rules_of_the_target_do_not_drop_files(vllm):
    (vllm / ".gitignore").write_text("evidence/\n*.json\n")
    git(vllm, "add", ".gitignore")
    git(vllm, "commit", "--quiet", "-m", "ignore")
    made = export(FILES, "alpha", profiles.load("vllm"), vllm, branch="x")
    assert "evidence/x.json" in Repository.open(vllm).files(made.commit, made.directory)


def test_line_ends_that_the_target_converts_are_noticed(vllm):
    (vllm / ".gitattributes").write_text("*.py text\n")
    git(vllm, "add", ".gitattributes")
    git(vllm, "commit", "--quiet", "-m", "attributes")
    with pytest.raises(UserError, match="not what was exported"):
        export(FILES | {"kernels/k.py": b"A = 1\r\n"}, "alpha", profiles.load("vllm"), vllm, branch="x")
    assert "x" not in git(vllm, "branch", "--format=%(refname:short)").split()


@pytest.mark.parametrize(
    ("place", "kind"), [("vllm/models/alpha", "a symbolic link"), ("vllm/models", "a symbolic link"), ("vllm/models/alpha/nvidia", "a file")]
)
def test_what_lies_behind_a_link_of_the_target_is_neither_deleted_nor_written(vllm, tmp_path, place, kind):
    outside = tmp_path / "outside"
    (outside / "alpha/nvidia").mkdir(parents=True)
    (outside / "nvidia").mkdir()
    for folder in (outside / "alpha/nvidia", outside / "nvidia"):
        (folder / "precious.txt").write_text("kept")
    before = sorted(outside.rglob("*"))
    git(vllm, "rm", "-rq", "--cached", "vllm/models")
    shutil.rmtree(vllm / "vllm/models")
    (vllm / place).parent.mkdir(parents=True, exist_ok=True)
    (vllm / place).symlink_to(outside) if kind == "a symbolic link" else (vllm / place).write_text("x\n")
    git(vllm, "add", "-A")
    git(vllm, "commit", "--quiet", "-m", "link")
    with pytest.raises(UserError, match=f"{place} is {kind} in the target"):
        export(FILES, "alpha", profiles.load("vllm"), vllm, branch="x")
    assert sorted(outside.rglob("*")) == before and git(vllm, "branch", "--format=%(refname:short)") == "main"


@pytest.mark.parametrize("path", ["../" * 6 + "evil.txt", "kernels/../../evil.txt", "a//b.py", ".git/hooks/post-commit", "kernels/.GIT/x"])
def test_a_path_that_no_ordinary_git_writes_is_not_exported(vllm, tmp_path, path):
    with pytest.raises(UserError, match="is no name of a file"):
        export(FILES | {path: b"x"}, "alpha", profiles.load("vllm"), vllm, branch="x")
    assert not list(tmp_path.rglob("evil.txt")) and git(vllm, "branch", "--format=%(refname:short)") == "main"


def test_an_ignore_rule_of_the_target_does_not_blind_its_check(vllm):
    pytest.importorskip("ruff", reason="ruff is not installed")
    (vllm / ".gitignore").write_text("kernels/\n")
    git(vllm, "add", ".gitignore")
    git(vllm, "commit", "--quiet", "-m", "ignore")
    made = export(FILES | {"kernels/k.py": b"import torch\n"}, "alpha", profiles.load("vllm"), vllm, branch="x")
    (stage,) = (one for one in made.stages if one.stage.startswith("ruff"))
    assert stage.status is StageStatus.FAIL and "F401" in stage.summary


def test_a_branch_that_is_there_already_is_told(vllm):
    export(FILES, "alpha", profiles.load("vllm"), vllm, branch="x")
    kept = git(vllm, "rev-parse", "x")
    with pytest.raises(UserError, match="has a branch x already"):
        export(FILES, "alpha", profiles.load("vllm"), vllm, branch="x")
    assert git(vllm, "rev-parse", "x") == kept


def test_the_command(vllm, capsys):
    assert cli.run(["export", "nothing", str(vllm)]) == 2
    assert cli.run(["export", "kimi_k3", str(vllm), "--target", "nowhere"]) == 2
    assert "flashinfer, own, sglang, vllm" in capsys.readouterr().err
