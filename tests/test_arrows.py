"""The arrows between the rooms hold, and a module that breaks one is caught."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {"fasttrack": "fasttrack", "fasttrack_validation": "validation", "fasttrack_models": "models"}


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter with the contracts of pyproject.toml over the packages in `tree`."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    command += ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, cwd=tree, env=environment)


@pytest.fixture
def tree(tmp_path):
    """A copy of the packages under their import names."""
    for package, room in ROOMS.items():
        shutil.copytree(ROOT / room, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_arrows_hold(tree):
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "source", "contract"),
    [
        ("fasttrack_validation/judge/bad.py", "from fasttrack import lane", "The proof knows nothing of the lane"),
        ("fasttrack_models/kimi_k3/bad.py", "import fasttrack_validation.records", "A model directory imports neither"),
        ("fasttrack_models/kimi_k3/bad.py", "def f():\n    import fasttrack", "A model directory imports neither"),
        ("fasttrack/agents/bad.py", "import fasttrack_models.kimi_k3", "only through its manifest"),
        ("fasttrack_validation/contracts/bad.py", "from ..judge import candidate", "A contract never sees a candidate"),
    ],
)
def test_a_broken_arrow_is_caught(tree, module, source, contract):
    (tree / module).write_text(source + "\n")
    done = lint(tree)
    assert done.returncode == 1
    assert any(contract in line and "BROKEN" in line for line in done.stdout.splitlines()), done.stdout


def absolute_own_imports(tree: Path) -> list[str]:
    """Imports inside model directories that name the installed package: they break once the directory is lifted."""
    found = []
    for path in sorted((tree / "fasttrack_models").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            own = [name for name in names if name.split(".")[0] in ("fasttrack_models", "models")]
            found += [f"{path.name}:{node.lineno}" for _ in own]
    return found


def leaving_imports(tree: Path) -> list[str]:
    """Relative imports that climb out of their model's directory."""
    found = []
    for path in sorted((tree / "fasttrack_models").rglob("*.py")):
        depth = len(path.relative_to(tree / "fasttrack_models").parts) - 1
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > max(depth, 1):
                found.append(f"{path.name}:{node.lineno}")
    return found


def test_a_model_directory_can_be_lifted_out_as_it_stands(tree):
    assert absolute_own_imports(tree) == leaving_imports(tree) == []
    (tree / "fasttrack_models/kimi_k3/bad.py").write_text("import fasttrack_models.kimi_k3\nfrom ..other import x\n")
    assert absolute_own_imports(tree) == ["bad.py:1"] and leaving_imports(tree) == ["bad.py:2"]
