"""`fasttrack report` on the real model directory: written from evidence, held against it, and found edited."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fasttrack import cli, report_commands, storage
from fasttrack.confinement.contents import Limits, check_contents
from fasttrack_validation.errors import UserError

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_report_of_kimi_k3(tmp_path, monkeypatch, capsys):
    copied = tmp_path / "models/kimi_k3"
    shutil.copytree(ROOT / "models/kimi_k3", copied, ignore=shutil.ignore_patterns("__pycache__", "report"))
    git = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "--quiet"], ["add", "-A"], ["commit", "--quiet", "-m", "base"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    base = subprocess.run([*git, "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "head"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    assert cli.run(["report", "kimi_k3"]) == 2  # there is none yet
    assert cli.run(["report", "kimi_k3", "--write", "--base", "HEAD~1"]) == 0
    assert cli.run(["report", "kimi_k3", "--check"]) == 0
    for name in ("design.md", "design.html", "design.json"):
        assert list(check_contents(f"report/{name}", (copied / "report" / name).read_bytes(), Limits())) == []
    page = copied / "report/design.md"
    text = page.read_text("utf-8")
    for part in ("# Design report: Kimi K3", "layers and steps on gb300", "AIME25: not run", "(../evidence/grid/h200/",
                 f"Base commit: `{base}`", "(../evidence/exchange/h200-tp2.json)", "lost or late rank"):
        assert part in text
    changed, times = re.subn(r"\b\d+ ops", "17 ops", text, count=1)
    assert times == 1
    page.write_text(changed, "utf-8")
    capsys.readouterr()
    assert cli.run(["report", "kimi_k3", "--check", "--json"]) == 1
    (reason,) = json.loads(capsys.readouterr().out)["reasons"]
    assert reason["id"] == "report.edited" and "17 ops" in reason["message"]
    assert cli.run(["report", "kimi_k3", "--write", "--check"]) == 2


def test_links_of_a_directory_are_no_files_of_it(tmp_path):
    (tmp_path / "secret.md").write_text("not of the directory")
    folder = tmp_path / "model"
    (folder / "evidence").mkdir(parents=True)
    (folder / "evidence/own.json").write_text("{}")
    (folder / "evidence/link.md").symlink_to(tmp_path / "secret.md")
    (folder / "elsewhere").symlink_to(tmp_path)
    assert report_commands.contents(folder) == {"evidence/own.json": b"{}"}


def test_nothing_is_written_where_a_link_leads(tmp_path):
    (tmp_path / "outside").mkdir()
    root = tmp_path / "model"
    root.mkdir()
    (root / "report").symlink_to(tmp_path / "outside")
    for name in ("report/design.md", "../outside/x", "/x", ""):
        with pytest.raises(UserError):
            storage.write_inside(root, name, b"x")
    (root / "link.md").symlink_to(tmp_path / "outside/x")
    with pytest.raises(UserError, match="is a symbolic link"):
        storage.write_inside(root, "link.md", b"x")
    assert list((tmp_path / "outside").iterdir()) == []
    assert storage.write_inside(root, "pages/design.md", b"x").read_bytes() == b"x"
