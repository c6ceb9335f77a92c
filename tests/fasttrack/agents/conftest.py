import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "lane"))
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of the toy model, with a state directory of its own, no configured person, and no endpoint."""
    import os

    import lane_fakes

    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(("OPENAI_", "FASTTRACK_MODEL", "FASTTRACK_PRICES")):
            monkeypatch.delenv(name)
    root = tmp_path / "repo"
    root.mkdir()
    return lane_fakes.write_repository(root)
