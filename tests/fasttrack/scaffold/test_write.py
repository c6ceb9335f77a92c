"""What is written: files that fit each other, all of them or none, and only in a clone of the repository."""

import json
import os
import pty
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fasttrack import dispatch, model_dir
from fasttrack.confinement.contents import Limits, check_contents
from fasttrack.scaffold import answers, render, write
from fasttrack_validation import strict
from fasttrack_validation.contracts.policy import ContractPolicy
from fasttrack_validation.errors import UserError
from scaffolding import EXAMPLE, ROOT

ANSWERS = answers.gather(ROOT / EXAMPLE, None, None)
NAME = "deepseek_v4_1_flash"


@pytest.fixture
def checkout(tmp_path) -> Path:
    """What a clone has that matters here."""
    for room in ("validation/contracts", "models"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "__init__.py").write_text("")
    shutil.copytree(ROOT / "models/kimi_k3", tmp_path / "models/kimi_k3", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "validation/contracts/grid.py").write_text("")
    (tmp_path / ".git").mkdir()
    return tmp_path


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in root.rglob("*")}


def run(*arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fasttrack", "new-model", *arguments], cwd=cwd, capture_output=True, text=True,
        **{"stdin": subprocess.DEVNULL} | options,
    )  # fmt: skip


def test_the_files_fit_each_other_and_the_rules_of_confinement():
    exam, directory = render.render(NAME, ANSWERS)
    for path, text in (exam | directory).items():
        assert "{{" not in text and "{%" not in text and text.endswith("\n") and "\n\n\n\n" not in text, path
        if path.endswith(".py"):
            compile(text, path, "exec")
        if path.endswith(".toml"):
            tomllib.loads(text)
    root = f"models/{NAME}/"
    for path, text in directory.items():
        assert list(check_contents(path.removeprefix(root), text.encode(), Limits())) == [], path
    manifest = model_dir.parse_manifest(directory[f"{root}fasttrack.toml"], Path("m"))
    policy = strict.parse(exam[f"validation/contracts/{NAME}/contract.toml"], ContractPolicy, Path("c.toml"))
    assert {entry.hardware for entry in manifest.envelope} == set(policy.envelope) == {"h200", "gb300"}
    assert policy.envelope["gb300"].compute_capability == (10, 3)
    table = dispatch.parse(directory[f"{root}dispatch/rms_norm.toml"], Path("d"))
    dispatch.check_cover(table, [(e.hardware, e.tp, e.rows) for e in manifest.envelope], Path("d"))
    assert {entry.basis for entry in table.entry} == {"modelled"}


def test_a_quote_in_an_answer_stays_text():
    odd = ANSWERS.model_copy(update={"owner": 'the "A" team \\ friends', "sources": ('"', "\\")})
    exam, directory = render.render(NAME, odd)
    assert tomllib.loads(directory[f"models/{NAME}/fasttrack.toml"])["model"]["owner"] == odd.owner
    read = tomllib.loads(exam[f"validation/contracts/{NAME}/architecture.toml"])
    assert tuple(read["sources"]) == odd.sources


def test_it_is_all_there_or_nothing(checkout):
    exam, directory = render.render(NAME, ANSWERS)
    write.check(checkout, NAME)
    write.write(checkout, NAME, exam | directory)
    assert {path: (checkout / path).read_text("utf-8") for path in exam | directory} == exam | directory
    assert not list(checkout.glob(".new-*"))


def test_what_cannot_be_finished_leaves_nothing_behind(checkout):
    """The last of the places is taken by a file, which shows when two of the others are filled."""
    exam, directory = render.render(NAME, ANSWERS)
    (checkout / "tests").mkdir()
    (checkout / "tests/models").write_text("a file")
    before = snapshot(checkout)
    with pytest.raises(UserError, match="nothing was left behind") as caught:
        write.write(checkout, NAME, exam | directory)
    assert "tests/models" in caught.value.what
    after = {path: data for path, data in snapshot(checkout).items() if Path(path).is_file()}
    assert after == {path: data for path, data in before.items() if Path(path).is_file()}


@pytest.mark.parametrize(
    ("name", "made", "what"),
    [
        ("kimi_k3", None, "models/kimi_k3 exists already"),
        ("grid", None, "contracts/grid.py exists already"),
        ("other", "models/OTHER", "the same name on some file systems"),
        ("other", "tests/models/test_other_kernels.py", "exists already"),
        ("other", "validation/contracts/other", "exists already"),
        ("Other", None, "cannot name a model"),
        ("../other", None, "cannot name a model"),
        ("оther", None, "cannot name a model"),
        ("class", None, "a word of Python"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused(checkout, name, made, what):
    if made:
        (checkout / made).mkdir(parents=True)
    with pytest.raises(UserError) as caught:
        write.check(checkout, name)
    assert what in caught.value.what


def test_a_refused_name_is_told_before_anything_is_asked_or_written(checkout):
    before = snapshot(checkout)
    done = run("kimi_k3", cwd=checkout)
    assert done.returncode == 2 and "kimi_k3 exists already" in done.stderr and "hidden_size" not in done.stderr
    as_data = json.loads(run("Other", "--json", cwd=checkout).stdout)
    assert "call it 'other'" in as_data["error"]["how"]
    assert snapshot(checkout) == before


def test_outside_of_a_clone_it_says_so(tmp_path):
    done = run("other", "--answers", str(ROOT / EXAMPLE), cwd=tmp_path)
    assert done.returncode == 2 and "clone of the fasttrack repository" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_writes_nothing_and_says_the_same(checkout):
    before = snapshot(checkout)
    done = run("other", "--answers", str(ROOT / EXAMPLE), "--dry-run", cwd=checkout)
    assert done.returncode == 0 and "would write 13 files" in done.stdout and "models/other" in done.stdout
    assert "confinement.policy_change" in done.stdout and "git switch -c contract/other main" in done.stdout
    assert snapshot(checkout) == before


def test_help_has_examples_and_questions_need_no_name(checkout):
    assert run("--help", cwd=checkout).stdout.count("Example:") >= 2
    assert run("--questions", cwd=checkout).stdout == answers.questions()
    assert "NAME is missing" in run(cwd=checkout).stderr


def test_on_a_terminal_the_rest_is_asked_for(checkout, tmp_path):
    known = (ROOT / EXAMPLE).read_text("utf-8").replace("hidden_size = 5120\n", "")
    (tmp_path / "some.toml").write_text(known, "utf-8")
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"5120\n")
    done = run("other", "--answers", str(tmp_path / "some.toml"), cwd=checkout, stdin=terminal)
    os.close(keyboard)
    os.close(terminal)
    assert done.returncode == 0, done.stderr
    assert "hidden_size: channels of a row of the backbone" in done.stderr
    assert tomllib.loads((checkout / "validation/contracts/other/architecture.toml").read_text())["hidden_size"] == 5120
