"""The wheel: no generic top-level name, everything inside, and a command that works outside a checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The unpacked wheel."""
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "tree"
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    ).stdout.split(b"\0")
    for name in filter(None, names):
        path = ROOT / os.fsdecode(name)
        if path.is_file():
            copy = source / os.fsdecode(name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
         "--disable-pip-version-check", "-w", str(out), str(source)], check=True,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(out / "site")
    return out / "site"


def fasttrack(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "FASTTRACK_HOME": str(cwd / "home")}
    command = [sys.executable, "-m", "fasttrack", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_top_level_names(site):
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"fasttrack", "fasttrack_validation", "fasttrack_models"}


def test_every_tracked_module_and_data_file_is_inside(site):
    rooms = {"fasttrack": "fasttrack", "validation": "fasttrack_validation", "models": "fasttrack_models"}
    rooms["templates"] = "fasttrack/templates"
    missing = []
    for room, package in rooms.items():
        for path in (ROOT / room).rglob("*"):
            needed = path.suffix in (".py", ".toml", ".json", ".j2") or path.parent.name == "pages"
            if path.is_file() and "__pycache__" not in path.parts and needed:
                if not (site / package / path.relative_to(ROOT / room)).is_file():
                    missing.append(str(path.relative_to(ROOT)))
    assert missing == []


def test_read_only_commands_work_outside_a_checkout(site, tmp_path):
    listed = fasttrack(site, tmp_path, "models", "--json")
    assert listed.returncode == 0, listed.stderr
    names = sorted(path.parent.name for path in (ROOT / "models").glob("*/fasttrack.toml"))
    assert "kimi_k3" in names and [model["name"] for model in json.loads(listed.stdout)] == names
    ops = fasttrack(site, tmp_path, "ops", "kimi_k3", "--json")
    assert ops.returncode == 0 and "kda_decode" in json.loads(ops.stdout)


def test_propose_outside_a_checkout_says_so(site, tmp_path):
    refused = fasttrack(site, tmp_path, "propose", "kimi_k3", "--op", "kda_decode")
    what, how = [line for line in refused.stderr.splitlines() if not line.startswith("agent ")]
    assert refused.returncode == 2 and "checkout" in what + how
    assert list(tmp_path.iterdir()) == []
